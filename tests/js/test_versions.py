"""The JavaScript client's tests and the example run on every version of Node that it supports."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.js.conftest import CLIENTS, run
from tests.process import Server

EXAMPLE = CLIENTS.parent / "examples" / "conversation.mjs"


@pytest.mark.slow
@pytest.mark.parametrize("version", ["20", "22"])
def test_it_runs_on_node(npm: Path, server: Server, tmp_path: Path, version: str) -> None:
    (tmp_path / "package.json").write_text("{}")
    run(tmp_path, "npm", "install", "--no-audit", "--no-fund", f"node@{version}")
    path = f"{tmp_path / 'node_modules' / '.bin'}{os.pathsep}{os.environ['PATH']}"
    assert run(tmp_path, "node", "--version", PATH=path).startswith(f"v{version}.")
    run(npm / "js", "npx", "vitest", "run", EVERLONG_URL=server.url, PATH=path)
    client = tmp_path / "clients" / "js"
    run(npm / "js", "npx", "tsc", "--project", "tsconfig.build.json", "--outDir", str(client / "dist"))
    shutil.copy(npm / "js" / "package.json", client)
    (tmp_path / "examples").mkdir()
    program = shutil.copy(EXAMPLE, tmp_path / "examples")
    book = tmp_path / "book.txt"
    book.write_text("Alice fell.")
    flags = ["--experimental-websocket"] if version == "20" else []
    node = subprocess.run(
        ["node", *flags, program, book], input="Who fell?", capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "PATH": path, "EVERLONG_URL": server.url},
    )  # fmt: skip
    assert (node.returncode, node.stderr) == (0, ""), node.stderr
    assert re.match(r"\d+ tokens read\n", node.stdout)
