"""`everlong mcp` with the command line of MCP's Inspector, over standard input and output, and over HTTP.

The first run installs it into `node/`, with a Node that is new enough for it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.test_mcp import BOOK, TOOLS, book, command, http_server, own_server
from tests.process import Server

__all__ = ["book", "http_server", "own_server"]
pytestmark = [pytest.mark.slow, pytest.mark.docs, pytest.mark.timeout(600)]

FOLDER = Path(__file__).parent / "node"
Inspect = Callable[..., tuple[int, Any]]
"""Runs a method and returns the exit code and what was printed."""


@pytest.fixture(scope="module")
def inspector() -> Path:
    """The installed program."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("Node is not installed")
    lock, done = FOLDER / "package-lock.json", FOLDER / "node_modules" / ".package-lock.json"
    if not done.exists() or done.stat().st_mtime < lock.stat().st_mtime:
        # Not `npm ci`: it wants an optional package for Windows in the lock file, which npm itself does not write there.
        subprocess.run(
            [npm, "install", "--no-save", "--no-audit", "--no-fund"], cwd=FOLDER, check=True, capture_output=True,
            timeout=400,
        )  # fmt: skip
    return FOLDER / "node_modules" / ".bin" / "mcp-inspector"


@pytest.fixture(params=["stdio", "http"])
def inspect(request: pytest.FixtureRequest, inspector: Path, server: Server, tmp_path: Path) -> Inspect:
    """Runs the inspector, with each transport."""
    if request.param == "stdio":
        parameters = command(server.url)
        target = ["-e", f"EVERLONG_URL={server.url}", "--", parameters.command, *parameters.args]
    else:
        target = ["--transport", "http", "--server-url", request.getfixturevalue("http_server")]
    environment = os.environ | {"PATH": f"{inspector.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}

    def run(method: str, *arguments: str) -> tuple[int, Any]:
        done = subprocess.run(
            [inspector, "--cli", "--method", method, *arguments, *target], env=environment, timeout=120,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    return run


def test_the_tools_are_listed_and_their_schemas_are_portable(inspect: Inspect) -> None:
    code, listed = inspect("tools/list", "--strict")
    assert code == 0, "--strict fails for schemas that some clients do not understand"
    assert [tool["name"] for tool in listed["tools"]] == [*TOOLS]


def test_tools_are_called(inspect: Inspect, book: str) -> None:
    def call(tool: str, **arguments: Any) -> tuple[int, Any]:
        pairs = [f"{name}={json.dumps(value)}" for name, value in arguments.items()]
        return inspect("tools/call", "--tool-name", tool, *(part for pair in pairs for part in ("--tool-arg", pair)))

    code, found = call("search_documents", query="Humpty Dumpty kitten", documents=[book], limit=2)
    assert (code, found["isError"]) == (0, False)
    passages = found["structuredContent"]["passages"]
    assert 0 < len(passages) <= 2
    for passage in passages:
        assert BOOK.encode()[passage["start_byte"] : passage["end_byte"]].decode() == passage["text"]
    code, answer = call("ask", question="What did Alice say to the kitten?", documents=[book], max_tokens=4)
    assert code == 0
    assert answer["structuredContent"]["sources"]
    code, refused = call("read_document", document="doc_none")
    assert (code, refused["isError"]) == (5, True)
    assert "no document 'doc_none'" in refused["content"][0]["text"]


def test_resources_are_listed_and_read(inspect: Inspect, book: str) -> None:
    code, listed = inspect("resources/list")
    uri = f"everlong://documents/{book}"
    assert code == 0
    assert uri in [resource["uri"] for resource in listed["resources"]]
    code, read = inspect("resources/read", "--uri", uri)
    assert (code, read["contents"][0]["text"]) == (0, BOOK)
    code, templates = inspect("resources/templates/list")
    assert (code, templates["resourceTemplates"][0]["uriTemplate"]) == (0, "everlong://documents/{document}")
