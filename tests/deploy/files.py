"""The files under test, read; and the programs that check them, found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "deploy" / "README.md"


def dockerfile() -> dict[str, list[str]]:
    """The arguments of every instruction of the Dockerfile, by its name, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    instructions = defaultdict(list)
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line:
            name, arguments = line.split(maxsplit=1)
            instructions[name].append(arguments)
    return instructions


def image_environment() -> dict[str, str]:
    """Return the variables that ENV sets."""
    return dict(pair.split("=", 1) for arguments in dockerfile()["ENV"] for pair in arguments.split())


def program(name: str) -> str:
    """Path of a program beside this Python or on PATH; skips the test where there is none."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return found or pytest.skip(f"{name} is not installed")


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return the result."""
    return subprocess.run(command, check=False, capture_output=True, text=True, **options)
