"""Every command of the documentation runs, page by page and in order, against a real server."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.js.conftest import npm, run  # noqa: F401, the fixture
from tests.pages import COMMANDS, PAGES, REASONS, ROOT, SHOWN, Block, blocks, run_by
from tests.process import Server
from tests.tinymodel import NOVEL, STORY

ADDRESS = "http://127.0.0.1:8080"
PLACEHOLDERS = {"doc_…": r"\b(doc_[0-9a-f]{32})\b", "ses_…": r"\b(ses_[0-9a-f]{32})\b", "revoke ID": r"^key (\w+) of"}
"""Placeholders that pages use for an id printed by an earlier command, and the pattern that finds this id in its output."""


def ours(page: str, *, slow: bool) -> list[Block]:
    """Return the blocks of `page` to run here, without those that an earlier page has, too."""
    known = {block.code for earlier in PAGES[: PAGES.index(page)] for block in blocks(earlier)}
    free = [block for block in blocks(page) if block.language in COMMANDS and not (block.reason or block.test)]
    return [block for block in free if bool(block.slow) is slow and block.code not in known]


@pytest.fixture(scope="module")
def own_server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a tiny model. Answers are short, because their content does not matter here."""
    with Server(tiny_model, tmp_path_factory.mktemp("data"), recall_tokens=20, embeddings="auto") as server:
        server.start()
        yield server


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which commands run. It contains the files that the pages name."""
    monkeypatch.chdir(tmp_path)
    books = tmp_path / "DATA" / "books-260"
    for made in (".venv/bin", "docs/research/pictures", "tests/data", "DATA/books-260"):
        (tmp_path / made).mkdir(parents=True)
    for book in (NOVEL, STORY):
        (books / book.name).write_text(book.read_text()[:40_000])
    for short in (*(tmp_path / "tests" / "data" / each.name for each in (STORY, NOVEL)), tmp_path / "book.txt"):
        short.write_text(STORY.read_text()[:6_000])
    command = tmp_path / ".venv" / "bin" / "everlong"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.small_everlong "$@"\n')
    command.chmod(0o755)
    return tmp_path


def typed(server: Server, *command: str) -> str:
    """Run a command, which must succeed, and return what it prints."""
    environment = server.environment | {
        "EVERLONG_URL": server.url,
        "PATH": f"{Path.cwd() / '.venv' / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    del environment["EVERLONG_MODEL"]
    done = subprocess.run(
        command, input="Who is Alice?\n", capture_output=True, text=True, timeout=240, check=False, env=environment
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def in_shell(code: str, server: Server, request: pytest.FixtureRequest) -> str:
    """Run a script: line by line if a line contains a placeholder for the output of an earlier line."""
    if not any(placeholder in code for placeholder in PLACEHOLDERS):
        return typed(server, "bash", "-ec", code)
    printed = ""
    for line in code.splitlines():
        command = line
        for placeholder, pattern in PLACEHOLDERS.items():
            if found := re.findall(pattern, printed, re.MULTILINE):
                command = command.replace(placeholder, placeholder.replace(placeholder.split()[-1], found[-1]))
        output = typed(server, "bash", "-ec", command)
        assert not re.match(r'\{"error"', output), output
        for document in re.findall(r'^\{"id":"(doc_\w+)"', output):
            server.wait_read(document)
        printed += output
    return printed


def in_python(code: str, server: Server, request: pytest.FixtureRequest) -> str:
    return typed(server, sys.executable, "-c", code)


def in_node(code: str, server: Server, request: pytest.FixtureRequest) -> str:
    client, package = request.getfixturevalue("npm") / "js", Path("node_modules") / "everlong-client"
    (package / "dist").mkdir(parents=True)
    shutil.copy(client / "package.json", package)
    run(client, "npx", "tsc", "--project", "tsconfig.build.json", "--outDir", str(package.absolute() / "dist"))
    Path("page.mjs").write_text(code)
    return typed(server, "node", "--experimental-websocket", "page.mjs")


RUNNERS: dict[str, Callable[[str, Server, pytest.FixtureRequest], str]] = {
    "sh": in_shell, "python": in_python, "js": in_node,
}  # fmt: skip


def run_all(chosen: list[Block], own_server: Server, request: pytest.FixtureRequest) -> None:
    """Run the blocks in order. Neighbouring blocks of Python or JavaScript are one program."""
    runs = itertools.groupby(chosen, key=lambda block: (block.language, block.number if block.language == "sh" else 0))
    for (language, _), group in runs:
        code = "\n".join(block.code for block in group).replace(ADDRESS, own_server.url)
        assert RUNNERS[language](code, own_server, request).strip(), code
    own_server.check_keys()


@pytest.mark.long
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("page", [page for page in PAGES if ours(page, slow=False)])
def test_a_page_runs(page: str, own_server: Server, request: pytest.FixtureRequest) -> None:
    run_all(ours(page, slow=False), own_server, request)


@pytest.mark.slow
@pytest.mark.docs
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("page", [page for page in PAGES if ours(page, slow=True)])
def test_slow_blocks_of_a_page_run(page: str, own_server: Server, request: pytest.FixtureRequest) -> None:
    run_all(ours(page, slow=True), own_server, request)


def test_every_block_is_run_or_has_a_reason() -> None:
    every = [block for page in PAGES for block in blocks(page)]
    fences = sum(len(re.findall(r"^```", (ROOT / page).read_text(), re.MULTILINE)) for page in PAGES)
    assert 2 * len(every) == fences
    for block in every:
        assert block.language in (*COMMANDS, *SHOWN), f"{block} has an unknown language"
    assert {block.reason for block in every if block.reason} <= set(REASONS)
    left = {page: [b.number for b in blocks(page) if b.reason] for page in PAGES}
    assert {page: numbers for page, numbers in left.items() if numbers} == {
        "docs/research/results.md": [*range(10), 11],
        "docs/guide/operations.md": [1],
        "docs/research/reliability.md": [0, 1, 2],
        "docs/research/data.md": [0, 1, 2, 3, 4, 5],
        "deploy/README.md": [*range(8), *range(9, 16)],
    }
    elsewhere = {block.test for block in every if block.test}
    assert {test: len(run_by(test)) for test in elsewhere} == {
        "tests/compat/test_agents.py": 3,
        "tests/compat/test_compat.py": 4,
        "tests/compat/test_lm_eval.py": 2,
        "tests/compat/test_rerank.py": 1,
        "tests/mcp/test_mcp.py": 2,
        "tests/server/api/anthropic/test_messages.py": 1,
        "tests/server/api/ollama/test_ollama.py": 2,
        "tests/server/api/ollama/test_tools.py": 1,
        "tests/server/api/openai/test_batches.py": 1,
        "tests/server/api/openai/tools/test_page.py": 1,
        "tests/test_site.py": 1,
        "tests/test_newcomer.py": 3,
    }
    assert all("run_by" in (ROOT / test).read_text() for test in elsewhere)
