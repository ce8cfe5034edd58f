"""`everlong documents` and `everlong sessions`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from everlong_client.cli.main import app
from tests.client.fake_server import Fake, FakeServer

Run = Callable[..., Result]
CREATED = 1_790_000_000.5


@pytest.fixture
def run(server: FakeServer) -> Run:
    def run(*args: str | Path) -> Result:
        return CliRunner().invoke(app, [str(arg) for arg in args], env={"EVERLONG_URL": server.url})

    return run


@pytest.fixture
def stored(run: Run, fake: Fake, book: Path) -> Fake:
    """A server with three documents and three sessions, on two pages each."""
    run("ingest", book, book, book)
    fake.documents["doc_2"] |= {
        "filename": "Die Bücher\n一\x1b[2J.pdf",
        "status": "reading",
        "progress": 0.4,
        "bytes": 1_234_567,
    }
    fake.documents["doc_3"] |= {"created_at": CREATED, "status": "failed"}
    for documents in ([], ["doc_1"], []):
        fake.session(documents)
    fake.sessions["ses_2"] |= {"title": f"Who is {'very ' * 20}tall?", "messages": 12, "state_bytes": 73_728}
    fake.sessions["ses_3"] |= {"title": "How does\nit end?", "created_at": CREATED, "status": "ready"}
    return fake


def test_the_table_of_documents(run: Run, stored: Fake):
    result = run("documents")
    assert (result.exit_code, result.stderr) == (0, "")
    date = time.strftime("%Y-%m-%d %H:%M", time.localtime(CREATED))
    assert result.stdout.splitlines() == [
        "id         size  status        created           name",
        "doc_1  16 bytes  ready                           book.txt",
        "doc_2    1.2 MB  reading, 40%                    Die Bücher 一[2J.pdf",
        f"doc_3  16 bytes  failed        {date}  book.txt",
    ]


def test_the_table_of_sessions(run: Run, stored: Fake):
    date = time.strftime("%Y-%m-%d %H:%M", time.localtime(CREATED))
    assert run("sessions").stdout.splitlines() == [
        "id     documents  messages     size  status   created           title",
        "ses_1          0         0  0 bytes  reading",
        "ses_2          1        12  73.7 kB  reading                    Who is very very very very very very very very very very ve…",
        f"ses_3          0         0  0 bytes  ready    {date}  How does it end?",
    ]


@pytest.mark.parametrize(("kind", "prefix"), [("documents", "doc"), ("sessions", "ses")])
def test_the_list_as_json(run: Run, stored: Fake, kind: str, prefix: str):
    rows = json.loads(run(kind, "--json").stdout)
    assert [row["id"] for row in rows] == [f"{prefix}_1", f"{prefix}_2", f"{prefix}_3"]
    assert rows[2]["created_at"] == CREATED


@pytest.mark.parametrize("kind", ["documents", "sessions"])
def test_a_server_that_stores_nothing(run: Run, kind: str):
    result = run(kind)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"the server has no {kind}\n")
    assert run(kind, "--json").stdout == "[]\n"


@pytest.mark.parametrize(("kind", "prefix"), [("documents", "doc"), ("sessions", "ses")])
def test_deleting(run: Run, stored: Fake, kind: str, prefix: str):
    result = run(kind, "delete", f"{prefix}_1", f"{prefix}_9", f"{prefix}_3")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        f"deleted {prefix}_1",
        f"error: no {kind[:-1]} {prefix}_9",
        f"deleted {prefix}_3",
    ]
    assert list(getattr(stored, kind)) == [f"{prefix}_2"]
    assert run(kind, "delete", f"{prefix}_2").exit_code == 0


@pytest.mark.parametrize("kind", ["documents", "sessions"])
@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["delete", ""], "error: an id must not be empty\n"),
        (["--url", "http://127.0.0.1:1", "delete", "doc_1"], "error: write the options after `delete`\n"),
    ],
)
def test_a_deletion_that_is_refused(run: Run, stored: Fake, kind: str, words: list[str], error: str):
    result = run(kind, *words)
    assert (result.exit_code, result.exception.__class__, result.stderr) == (1, SystemExit, error)
    assert len(getattr(stored, kind)) == 3
