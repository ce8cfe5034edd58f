"""OpenAI's SDK for Node, unmodified, against the same server. The checks themselves are in `node/`.

`retrieval/` and `tools/` run those that need another server.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.process import Server

FOLDER = Path(__file__).parent / "node"


@pytest.fixture(scope="module")
def node() -> str:
    """Where Node is, with the packages that the lock file names."""
    found, npm = shutil.which("node"), shutil.which("npm")
    if found is None or npm is None:
        pytest.skip("there is no Node on this machine")
    lock, installed = FOLDER / "package-lock.json", FOLDER / "node_modules" / ".package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        subprocess.run([npm, "ci", "--no-audit", "--no-fund"], cwd=FOLDER, check=True, capture_output=True, timeout=240)
    return found


def run_checks(node: str, checks: str, server: Server, **environment: str) -> None:
    """Run a file of checks against the server."""
    done = subprocess.run(
        [node, "--test", checks], capture_output=True, text=True, cwd=FOLDER, timeout=120, check=False,
        env={**os.environ, "OPENAI_BASE_URL": f"{server.url}/v1", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# pass 0" not in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("checks", sorted(path.name for path in FOLDER.glob("*.test.mjs")))
def test_the_sdk_for_node(server: Server, node: str, checks: str) -> None:
    run_checks(node, checks, server)
