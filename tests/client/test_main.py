"""`everlong ingest` and `everlong chat`, through pipes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from everlong_client.cli.main import app
from everlong_client.transport import conversion
from tests.client.fake_server import ANSWER, Fake, FakeServer
from tests.client.test_memory import WINDOW

Run = Callable[..., Result]


@pytest.fixture
def run(server: FakeServer) -> Run:
    def run(*args: str | Path, input: str | bytes = "") -> Result:
        return CliRunner().invoke(app, [str(arg) for arg in args], input=input, env={"EVERLONG_URL": server.url})

    return run


def test_ingest(run: Run, fake: Fake, book: Path):
    result = run("ingest", book)
    assert (result.exit_code, result.stdout) == (0, "doc_1\n")
    assert fake.uploads[0][0] == b"Call me Ishmael."
    assert result.stderr.splitlines() == [
        "uploading book.txt",
        "reading book.txt: 20 %, 250 tokens, 500 tokens/s",
        "reading book.txt: 70 %, 750 tokens, 500 tokens/s",
        "reading book.txt: 100 %, 1,000 tokens, 500 tokens/s",
    ]


def test_ingest_shows_the_page_that_is_converted(run: Run, book: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conversion, "INTERVAL", 0.01)
    scan = book.with_name("scan.pdf")
    scan.write_bytes(b"x")
    assert "converting scan.pdf: page 1 of 12" in run("ingest", "--no-wait", scan).stderr


def test_ingest_with_a_language_of_the_text_in_pictures(run: Run, fake: Fake, book: Path):
    run("ingest", "--no-wait", "--ocr-language", "latin", book)
    run("ingest", "--no-wait", book)
    assert fake.ocr_languages == ["latin", None]


def test_ingest_the_files_of_an_archive(run: Run, book: Path):
    archive = book.with_name("all.zip")
    archive.write_text("one.txt=One.\nb.bin=x\nbroken=x\ntwo.txt=Two.")
    result = run("ingest", "--unpack", archive)
    assert (result.exit_code, result.stdout) == (1, "doc_1\ndoc_3\n")
    assert "all.zip: b.bin: it was left out\n" in result.stderr
    assert "reading two.txt: 100 %" in result.stderr
    assert f"{archive}: one.txt: doc_1\n" in result.stderr
    assert f"{archive}: two.txt: doc_3\n" in result.stderr
    assert "error: broken: doc_2 could not be read" in result.stderr


def test_ingest_many(run: Run, fake: Fake, book: Path):
    other = book.with_name("other [1].txt")
    other.write_text("x")
    result = run("ingest", book, other)
    assert result.stdout == "doc_1\ndoc_2\n"
    assert [line for line in result.stderr.splitlines() if "doc_" in line] == [
        f"{book}: doc_1",
        f"{other}: doc_2",
    ]
    assert [document["filename"] for document in fake.documents.values()] == ["book.txt", "other [1].txt"]


def test_ingest_tells_files_of_the_same_name_apart(run: Run, book: Path):
    other = book.parent / "other" / book.name
    other.parent.mkdir()
    other.write_text("x")
    lines = run("ingest", book, other).stderr.splitlines()
    assert [line for line in lines if "doc_" in line] == [f"{book}: doc_1", f"{other}: doc_2"]


def test_ingest_continues_after_a_refused_file(run: Run, fake: Fake, book: Path):
    refused, other = book.with_name("large"), book.with_name("other.txt")
    refused.write_text("x")
    other.write_text("x")
    result = run("ingest", book, refused, other)
    assert (result.exit_code, result.stdout) == (1, "doc_1\ndoc_2\n")
    assert "large: at most 1000 bytes" in result.stderr


def test_ingest_from_a_pipe(run: Run, fake: Fake):
    assert run("ingest", "-", input="größer").stdout == "doc_1\n"
    assert fake.uploads[0][0] == "größer".encode()


def test_ingest_without_waiting(run: Run, fake: Fake, book: Path):
    assert run("ingest", "--no-wait", book).stdout == "doc_1\n"
    assert fake.documents["doc_1"]["status"] == "queued"


def test_ingest_continues_after_an_unreadable_file(run: Run, book: Path):
    bad = book.with_name("broken")
    bad.write_bytes(b"\xff")
    result = run("ingest", bad, book)
    assert (result.exit_code, result.stdout) == (1, "doc_2\n")
    assert "error: broken: doc_1 could not be read: byte 17 is not UTF-8\n" in result.stderr


def test_ingest_opens_all_files_before_it_uploads(run: Run, fake: Fake, book: Path, tmp_path: Path):
    result = run("ingest", book, tmp_path / "none.txt")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"error: {tmp_path}/none.txt: No such file or directory\n"
    assert not fake.uploads


@pytest.mark.parametrize("command", ["ingest", "chat"])
def test_no_server(run: Run, book: Path, closed_url: str, command: str):
    result = run(command, book, "--url", closed_url)
    assert result.exit_code == 1
    assert result.stdout == ""
    (line,) = (line for line in result.stderr.splitlines() if line != "uploading book.txt")
    assert line.startswith(f"error: no response from {closed_url}: ")
    assert "start a server with `everlong serve`" in line


def test_an_invalid_address(run: Run, book: Path):
    result = run("ingest", book, "--url", "localhost:8080")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "error: the server's address must start with http:// or https://, got 'localhost:8080'"
    )


@pytest.mark.parametrize("proxy", ["foo://x", "socks5://127.0.0.1:1"])
def test_a_proxy_that_cannot_be_used(run: Run, book: Path, monkeypatch: pytest.MonkeyPatch, proxy: str):
    monkeypatch.setitem(sys.modules, "socksio", None)  # the optional package that httpx needs for SOCKS
    monkeypatch.setenv("ALL_PROXY", proxy)
    result = run("ingest", book)
    assert (result.exit_code, result.exception.__class__) == (1, SystemExit)
    assert result.stderr.startswith("error: the proxy in ALL_PROXY, HTTP_PROXY or HTTPS_PROXY cannot be used: ")
    assert result.stderr.count("\n") == 1


def test_the_key(run: Run, fake: Fake, book: Path):
    fake.api_key = "sesame"
    assert run("ingest", book, "--api-key", "sesame").exit_code == 0
    result = run("ingest", book)
    assert result.exit_code == 1
    assert "error: wrong API key; set the key with --api-key or EVERLONG_API_KEY\n" in result.stderr
    assert run("ingest", book, "--api-key", "sesame\n").exit_code == 0
    result = run("ingest", book, "--api-key", "top secret")
    assert (result.exit_code, result.exception.__class__) == (1, SystemExit)
    assert result.stderr == "error: the API key may contain only ASCII letters, digits and punctuation, no spaces\n"


def test_ingest_names_what_was_uploaded_when_it_cannot_wait(run: Run, book: Path):
    lost = book.with_name("deleted")  # the fake server deletes a document with this name while it is read
    lost.write_text("x")
    result = run("ingest", book, lost, book)
    assert (result.exit_code, result.stdout) == (1, "doc_1\n")
    assert result.stderr.splitlines()[-3:] == [
        "deleted was uploaded as doc_2",
        "book.txt was uploaded as doc_3",
        "error: no document doc_2",
    ]


def test_chat_through_a_pipe(run: Run, server: FakeServer, book: Path):
    result = run("chat", book, "--max-tokens", "9", "--temperature", "0", input="Who?\n\n  Where?  \n")
    assert (result.exit_code, result.stdout) == (0, f"{ANSWER}\n{ANSWER}\n")
    sampling = {"max_tokens": 9, "temperature": 0.0}
    assert server.fake.questions == [{"content": "Who?", **sampling}, {"content": "Where?", **sampling}]
    assert server.fake.sessions["ses_1"]["documents"] == ["doc_1"]
    assert result.stderr.splitlines()[-3:] == [
        f"to continue: everlong chat --session ses_1 --url {server.url}",
        f"to delete the sessions that stay on the server: everlong sessions delete ses_1 --url {server.url}",
        f"to delete the documents that stay on the server: everlong documents delete doc_1 --url {server.url}",
    ]


def test_chat_about_several_files(run: Run, fake: Fake, book: Path):
    other = book.with_name("other.txt")
    other.write_text("x")
    assert run("chat", other, book, input="Who?").stdout == f"{ANSWER}\n"
    assert [fake.documents[id]["filename"] for id in fake.asked_about] == ["other.txt", "book.txt"]


def test_chat_names_what_it_has_left(run: Run, fake: Fake, server: FakeServer, book: Path):
    """Its documents if it fails, and the sessions of its own if it was about others."""
    bad = book.with_name("broken")
    bad.write_bytes(b"\xff")
    result = run("chat", book, bad, input="Who?")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        f"to delete the documents that stay on the server: everlong documents delete doc_1 doc_2 --url {server.url}"
    )
    fake.session([])
    assert "to delete" not in run("chat", "--session", "ses_1", input="Who?").stderr
    result = run("chat", "--session", "ses_1", input="/fork\n/new\n")
    assert result.stderr.splitlines()[-1] == (
        f"to delete the sessions that stay on the server: everlong sessions delete ses_2 ses_3 --url {server.url}"
    )


def test_chat_about_documents(run: Run, fake: Fake, book: Path):
    run("ingest", book, book)
    result = run("chat", "--document", "doc_1", "--document", "doc_2", book, input="Who?")
    assert result.stdout == f"{ANSWER}\n"
    assert fake.sessions["ses_1"]["documents"] == ["doc_1", "doc_2", "doc_3"]


def test_chat_continues_a_session(run: Run, fake: Fake):
    fake.session([])
    assert run("chat", "--session", "ses_1", input="Who?").stdout == f"{ANSWER}\n"
    assert len(fake.sessions) == 1
    result = run("chat", "--session", "ses_1", "--document", "doc_1")
    assert result.exit_code == 1
    assert result.stderr == "error: --session has its own documents and model: leave out FILE, --document and --model\n"


@pytest.mark.parametrize("command", ["chat --session", "memory"])
def test_an_empty_id_of_a_session(run: Run, fake: Fake, command: str):
    result = run(*command.split(), "")
    assert (result.exit_code, result.exception.__class__) == (1, SystemExit)
    assert result.stderr == "error: the session id must not be empty\n"
    assert not fake.sessions


def test_chat_through_a_pipe_that_is_not_utf8(run: Run, fake: Fake):
    result = run("chat", input=b"Wer?\nWo f\xfchrt es hin?\n")
    assert (result.exit_code, result.exception.__class__) == (1, SystemExit)
    assert "error: a question is not valid UTF-8: invalid start byte\n" in result.stderr


def test_chat_commands(run: Run, fake: Fake):
    result = run("chat", input="/fork\nWho?\n/new\n/help\n/etc is what?\n/quit\nnever asked\n")
    assert result.exit_code == 0
    assert ANSWER in result.stdout
    assert "/fork  continue in a copy" in result.stdout
    assert list(fake.sessions) == ["ses_1", "ses_2", "ses_3"]
    assert "--session ses_3" in result.stderr
    assert [question["content"] for question in fake.questions] == ["Who?", "/etc is what?"]


@pytest.mark.parametrize(
    ("question", "error"),
    [
        ("fail", "no room for the answer"),
        ("die", "the server is restarting: see you soon"),
    ],
)
def test_chat_through_a_pipe_stops_at_an_error(run: Run, fake: Fake, question: str, error: str):
    result = run("chat", input=f"{question}\nnever asked\n")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == f"error: {error}"
    assert "--session ses_1" in result.stderr, "the session is still there"
    assert len(fake.questions) == 1


def test_chat_with_an_unknown_session(run: Run):
    result = run("chat", "--session", "ses_9")
    assert result.exit_code == 1
    assert result.stderr == "error: no session ses_9\n"


def test_chat_about_a_document_that_cannot_be_read(run: Run, fake: Fake, book: Path):
    result = run("chat", book.rename(book.with_name("broken")), input="Who?")
    assert result.exit_code == 1
    assert not fake.sessions


def test_control_sequences_do_not_reach_the_terminal(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.client.fake_server.ANSWER", "safe\x1b]0;owned\x07\x9b2J\ttext\n")
    assert run("chat", input="Who?").stdout == "safe]0;owned2J\ttext\n\n"


def shell(command: str, *args: str | bytes | Path, url: str) -> tuple[int, str]:
    """Run a command in a shell and return its exit code and standard error."""
    line = ["sh", "-c", f'exec "$0" -m everlong_client {command}', sys.executable, *args]
    done = subprocess.run(line, env=os.environ | {"EVERLONG_URL": url}, capture_output=True, check=False, timeout=60)
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize(
    ("command", "closed"),
    [
        ("chat <&-", "input"),
        ("chat >&-", "output"),
        ("ingest - <&-", "input"),
        ('ingest "$1" >&-', "output"),
        ("memory ses_1 >&-", "output"),
    ],
)
def test_a_closed_stream(fake: Fake, server: FakeServer, book: Path, command: str, closed: str):
    fake.session([])
    fake.memory = WINDOW
    code, errors = shell(command, book, url=server.url)
    assert (code, errors) == (1, f"error: standard {closed}: Bad file descriptor\n")
    assert not fake.uploads


def test_a_file_whose_name_is_not_unicode(fake: Fake, server: FakeServer, tmp_path: Path):
    name = os.fsencode(tmp_path) + b"/B\xfccher.txt"
    Path(os.fsdecode(name)).write_text("x")
    code, errors = shell('ingest "$1"', name, url=server.url)
    assert code == 0
    assert errors.startswith("uploading B?cher.txt\n")
    assert fake.documents["doc_1"]["filename"] == "B?cher.txt"
