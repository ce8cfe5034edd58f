"""Installs the packages of `clients/package.json` once. Tests that need them are skipped if Node is missing."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

CLIENTS = Path(__file__).parents[2] / "clients"


@pytest.fixture(scope="session")
def npm() -> Path:
    """The folder `clients`, with node_modules as in package-lock.json."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    lock, done = CLIENTS / "package-lock.json", CLIENTS / "node_modules" / ".package-lock.json"
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not done.exists() or done.stat().st_mtime < lock.stat().st_mtime:
            run(CLIENTS, "npm", "ci", "--no-audit", "--no-fund")
            os.utime(done)
    return CLIENTS


def run(folder: Path, *command: str, **environment: str) -> str:
    """Run `command` and return its output. Fails if the command fails."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-6000:]}"
    return done.stdout
