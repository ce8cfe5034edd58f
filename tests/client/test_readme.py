"""What the README shows is run, in its order, as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.fake_server import ANSWER, FakeServer

README = (Path(__file__).parents[2] / "clients/python/README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture(autouse=True)
def _book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text("Call me Ishmael.")


def test_python(server: FakeServer, capsys: pytest.CaptureFixture[str]):
    names: dict[str, object] = {}
    for block in blocks("python"):
        exec(block.replace("http://127.0.0.1:8080", server.url), names)
    names["client"].close()  # type: ignore[attr-defined]
    output = capsys.readouterr().out
    assert "1,000 tokens read" in output
    assert "1000 tokens were in memory" in output
    assert output.count(ANSWER) == 5, "asked, streamed, twice by WebSocket, and as an event"
    assert [question["content"] for question in server.fake.questions][-1] == "And then?"


def test_shell(server: FakeServer, tmp_path: Path):
    everlong = tmp_path / "everlong"
    everlong.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m everlong_client "$@"\n')
    everlong.chmod(0o755)
    (script,) = (block for block in blocks("sh") if "pip install" not in block)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "EVERLONG_URL": server.url}
    done = subprocess.run(
        ["sh", "-ec", script], check=False, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"{ANSWER}\n{ANSWER}\n"), done.stderr
    assert [session["documents"] for session in server.fake.sessions.values()] == [["doc_1"], ["doc_2"]]
