"""`everlong ask`, what `everlong search` shares with it, `everlong status`, and the lines of the originals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from everlong_client.cli.main import app
from everlong_client.cli.originals import Originals
from everlong_client.cli.status import Status
from everlong_client.client import Documents
from everlong_client.errors import APIConnectionError
from everlong_client.types.document import Document
from everlong_client.types.model import Model
from tests.client.fake_server import ANSWER, Fake, FakeServer
from tests.process import wait_for

Run = Callable[..., Result]
TEXT = "Loomings.\n\nCall me Ishmael.\n"


@pytest.fixture
def run(server: FakeServer) -> Run:
    def run(*args: str | Path, input: str = "") -> Result:
        return CliRunner().invoke(app, [str(arg) for arg in args], input=input, env={"EVERLONG_URL": server.url})

    return run


@pytest.fixture
def cited(server: FakeServer) -> dict:
    """Gives answers this passage as evidence, cited by their first sentence."""
    passage = {"document": "doc_1", "start": 11, "end": 27, "start_byte": 11, "end_byte": 27, "text": TEXT[11:27]}
    citation = {"start": 0, "end": 7, "evidence": 0, "document": "doc_1", "document_start": 19, "document_end": 27}
    server.fake.sources = {"evidence": [passage], "citations": [citation | {"filename": "book.txt"}]}
    return server.fake.sources


def test_a_question_about_files(run: Run, fake: Fake, book: Path):
    other = book.with_name("other.txt")
    other.write_text("x")
    result = run("ask", book, other, "Who?", "--max-tokens", "9", "--temperature", "0")
    assert (result.exit_code, result.stdout) == (0, f"{ANSWER}\n")
    assert fake.questions == [{"content": "Who?", "max_tokens": 9, "temperature": 0.0, "stream": True}]
    assert fake.asked_about == ["doc_1", "doc_2"]
    assert result.stderr.splitlines()[-1] == "the search found no passage"
    assert (fake.sessions, fake.documents) == ({}, {}), "nothing is left behind"


@pytest.mark.parametrize("command", ["ask", "chat"])
def test_how_a_follow_up_was_understood_is_above_the_sources(run: Run, fake: Fake, book: Path, command: str):
    fake.sources = {"standalone_question": "Who is the captain\nof the Pequod?"}
    result = run("ask", book, "Who?") if command == "ask" else run("chat", book, input="Who?")
    lines = result.stderr.splitlines()
    place = lines.index("the question was understood as “Who is the captain of the Pequod?”")
    assert lines[place + 1] == "the search found no passage"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--model", "huge"], "error: --model huge: unknown; the server offers tiny"),
        (["--max-tokens", "0"], "Invalid value for '--max-tokens': "),
        (
            ["--url", "http://127.0.0.1:9/v1/"],
            "error: --url http://127.0.0.1:9/v1/: leave out /v1, which the commands add",
        ),
    ],
)
@pytest.mark.parametrize("command", ["ask", "chat"])
def test_a_wrong_option_is_refused_before_files_are_uploaded(
    run: Run, fake: Fake, book: Path, command: str, options: list[str], error: str
):
    result = run(command, *options, book, *(["Who?"] if command == "ask" else []), input="Who?")
    assert result.exit_code != 0
    assert error in " ".join(result.stderr.replace("│", "").split())
    assert fake.documents == {}


@pytest.mark.parametrize("command", ["ask", "search"])
def test_an_empty_name_of_a_file(run: Run, fake: Fake, book: Path, command: str):
    result = run(command, book, "", "Who?")
    assert (result.exit_code, result.stderr) == (1, "error: the name of a file must not be empty\n")
    assert fake.documents == {}


@pytest.mark.parametrize("command", ["ask", "chat"])
@pytest.mark.parametrize(("agreement", "doubted"), [(0.39, True), (0.4, False), (None, False)])
def test_an_answer_that_the_others_contradict_is_doubted(
    run: Run, fake: Fake, book: Path, command: str, agreement: float | None, doubted: bool
):
    fake.sources = {"agreement": agreement}
    result = run("ask", book, "Who?") if command == "ask" else run("chat", book, input="Who?")
    lines = result.stderr.splitlines()
    assert (
        any(line.startswith("probably wrong: the model answered the question several times") for line in lines)
        is doubted
    )


def test_the_source_of_an_answer_is_a_line_of_the_original(run: Run, book: Path, cited: dict):
    book.write_text("\ufeff" + TEXT)
    assert run("ask", book, "Who?").stderr.splitlines()[-1] == "from book.txt, line 3: “Ishmael.”"
    cited["citations"] = []
    assert run("ask", book, "Who?").stderr.splitlines()[-1] == "the model was shown book.txt, line 3"
    cited["evidence"][0] |= {"page": 7, "section": "Loomings"}
    assert run("ask", book, "Who?").stderr.splitlines()[-1] == "the model was shown book.txt, page 7, Loomings"


def test_the_source_of_an_answer_is_standard_input(run: Run, cited: dict):
    cited["citations"][0]["filename"] = None
    assert run("ask", "-", "Who?", input=TEXT).stderr.splitlines()[-1] == "from standard input: “Ishmael.”"


def test_the_line_is_that_of_the_cited_part(run: Run, book: Path, cited: dict):
    book.write_text(TEXT)
    cited["evidence"][0] |= {"start": 0, "start_byte": 0, "text": TEXT[:27]}
    assert run("ask", book, "Who?").stderr.splitlines()[-1] == "from book.txt, line 3: “Ishmael.”"


def test_chat_shows_the_sources_as_ask_does(run: Run, fake: Fake, book: Path, cited: dict):
    book.write_text(TEXT)
    assert "from book.txt, line 3: “Ishmael.”" in run("chat", book, input="Who?").stderr.splitlines()
    cited["citations"] = []
    cited["evidence"][0]["document"] = "doc_2"
    assert "the model was shown book.txt, line 3" in run("chat", book, input="Who?").stderr.splitlines()
    assert "the model was shown book.txt" in run("chat", "--document", "doc_2", input="Who?").stderr.splitlines()
    del fake.documents["doc_2"]
    assert "the model was shown doc_2" in run("chat", "--session", "ses_1", input="Who?").stderr.splitlines()
    cited["evidence"] = []
    assert "the search found no passage" in run("chat", "--session", "ses_1", input="Who?").stderr.splitlines()
    assert "found no passage" not in run("chat", input="Who?").stderr, "there is no document to search"


def test_chat_survives_a_name_that_cannot_be_fetched(
    run: Run, book: Path, cited: dict, monkeypatch: pytest.MonkeyPatch
):
    """It knows the names of the files that it has uploaded."""
    run("ingest", book)

    def fail(*_: object) -> None:
        raise APIConnectionError("no response")

    monkeypatch.setattr(Documents, "get", fail)
    cited["citations"] = []
    result = run("chat", "--document", "doc_1", input="Who?\nWhere?\n")
    assert (result.exit_code, result.stdout) == (0, f"{ANSWER}\n{ANSWER}\n")
    assert "the model was shown doc_1" in result.stderr.splitlines()
    cited["evidence"][0] |= {"document": "doc_2", "page": 7}
    assert "the model was shown book.txt, page 7" in run("chat", book, input="Who?").stderr.splitlines()


def test_an_answer_from_many_passages_names_the_first_places(
    run: Run, book: Path, cited: dict, monkeypatch: pytest.MonkeyPatch
):
    passage = cited["evidence"][0]
    cited |= {"evidence": [passage | {"page": page} for page in (1, 1, 2, 3, 4, 5, 6, 7)], "citations": []}
    places = "; ".join(f"book.txt, page {page}" for page in range(1, 6))
    assert run("ask", book, "Who?").stderr.splitlines()[-1] == f"the model was shown {places}; and 2 more passages"
    found: list[int] = []

    def line(self: Originals, document: str, start_byte: int, text: str) -> int:
        found.append(start_byte)
        return start_byte

    monkeypatch.setattr(Originals, "line", line)
    cited["evidence"] = [passage | {"start_byte": n} for n in range(1, 7)]
    shown = run("ask", book, "Who?").stderr.splitlines()[-1]
    assert shown == f"the model was shown {places.replace('page', 'line')}; and 1 more passage"
    assert found == [1, 2, 3, 4, 5], "no line is looked for that is not shown"


@pytest.mark.parametrize("command", ["ask", "chat"])
@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("length", "cut off after 7 tokens: raise --max-tokens"),
        ("repetition", "cut off after 7 tokens: the model began to repeat itself"),
    ],
)
def test_an_answer_that_was_cut_off(run: Run, fake: Fake, book: Path, command: str, reason: str, line: str):
    words = ["ask", book, "Who?"] if command == "ask" else ["chat", book]
    assert "cut off" not in run(*words, input="Who?").stderr
    fake.finish_reason = reason
    result = run(*words, input="Who?")
    assert (result.stdout, line in result.stderr.splitlines()) == (f"{ANSWER}\n", True)


def test_json(run: Run, book: Path, cited: dict):
    book.write_text(TEXT)
    result = run("ask", "--json", book, "Who?")
    answer = json.loads(result.stdout)
    assert (answer["content"], answer["session"], "documents" in answer) == (ANSWER, None, False)
    (passage,) = answer["evidence"]
    assert (passage["filename"], passage["line"], passage["text"]) == ("book.txt", 3, "Call me Ishmael.")
    assert answer["citations"][0]["document_start"] == 19


def test_what_is_kept(run: Run, fake: Fake, server: FakeServer, book: Path):
    kept = run("ask", "--json", "--keep", book, "Who?")
    assert kept.stderr.splitlines()[-3:] == [
        f"to continue: everlong chat --session ses_1 --url {server.url}",
        f"to delete the sessions that stay on the server: everlong sessions delete ses_1 --url {server.url}",
        f"to delete the documents that stay on the server: everlong documents delete doc_1 --url {server.url}",
    ]
    answer = json.loads(kept.stdout)
    assert (answer["documents"], answer["session"]) == (["doc_1"], "ses_1")
    assert (list(fake.documents), list(fake.sessions)) == (["doc_1"], ["ses_1"])
    result = run("ask", "--document", "doc_1", "Where?")
    assert result.stdout == f"{ANSWER}\n"
    assert list(fake.documents) == ["doc_1"], "it was there before"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["Who?"], "name the files"),
        (["book", "book"], "is a file, and the last argument must be the question"),
        (["none.txt", "Who?"], "No such file or directory"),
        (["book", ""], "error: the question is empty"),
        (["book", " \n"], "error: the question is empty"),
    ],
)
def test_missing_words(run: Run, fake: Fake, book: Path, words: list[str], error: str):
    result = run("ask", *(book if word == "book" else word for word in words))
    assert (result.exit_code, result.stdout) == (1, "")
    assert error in result.stderr
    assert not fake.uploads


@pytest.mark.parametrize("command", ["ask", "chat"])
def test_an_empty_id_of_a_document(run: Run, fake: Fake, book: Path, command: str):
    result = run(command, "--document", "doc_1", "--document", "", book, "Who?")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: the document id must not be empty\n"
    assert not fake.uploads


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("command", ["ask", "chat"])
def test_a_temperature_that_is_not_a_number(run: Run, fake: Fake, book: Path, command: str, value: str):
    result = run(command, "--temperature", value, book, "Who?")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"error: --temperature must be a finite number, got {value}\n"
    assert not fake.uploads


def test_a_question_may_be_longer_than_the_name_of_a_file(run: Run, fake: Fake, book: Path):
    assert run("ask", book, "Who? " * 100).exit_code == 0
    assert fake.questions[0]["content"] == "Who? " * 100


def test_an_empty_query(run: Run, fake: Fake, book: Path):
    result = run("search", book, "")
    assert (result.exit_code, result.stderr) == (1, "error: the query is empty\n")
    assert not fake.uploads


@pytest.mark.parametrize("words", [["ingest"], ["chat"], ["ask", "Who?"], ["search", "Ishmael"]])
def test_a_folder_in_place_of_a_file(run: Run, fake: Fake, book: Path, words: list[str]):
    command, *question = words
    result = run(command, book, book.parent, *question)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"error: {book.parent} is a folder: name its files, for example {book.parent}/*\n"
    assert not fake.uploads


def test_a_file_that_cannot_be_read_ends_it(run: Run, fake: Fake, book: Path):
    bad = book.with_name("broken")
    bad.write_bytes(b"\xff")
    result = run("ask", book, bad, "Who?")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "error: broken: doc_2 could not be read" in result.stderr
    assert (fake.sessions, fake.documents) == ({}, {})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("command", "name", "question"),
    [("ask", "stuck", "Who?"), ("ask", "book.txt", "hang"), ("search", "stuck", "Who?")],
)
def test_an_interruption_leaves_nothing_behind(
    server: FakeServer, fake: Fake, tmp_path: Path, command: str, name: str, question: str, number: int
):
    """It is interrupted while the server reads the second file, or answers."""
    files = [tmp_path / "first.txt", tmp_path / name]
    for file in files:
        file.write_text("Words.")
    arguments = [sys.executable, "-m", "everlong_client", command, *map(str, files), question, "--url", server.url]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asking:
        wait_for(lambda: len(fake.documents) == 2 if name == "stuck" else fake.questions, 60)
        wait_for(lambda: name != "stuck" or fake.documents["doc_1"]["status"] == "ready", 60)
        asking.send_signal(number)
        _, errors = asking.communicate(timeout=60)
    assert asking.returncode != 0
    assert "Traceback" not in errors
    assert (fake.documents, fake.sessions) == ({}, {})


@pytest.mark.parametrize(("command", "question"), [("ask", "Who?"), ("ask", "fail"), ("search", "Who?")])
def test_what_could_not_be_deleted_is_named(
    run: Run, fake: Fake, server: FakeServer, book: Path, monkeypatch: pytest.MonkeyPatch, command: str, question: str
):
    """As when the server stops while it answers."""

    def delete(self: Documents, document: str) -> None:
        raise APIConnectionError("no response")

    monkeypatch.setattr(Documents, "delete", delete)
    result = run(command, book, question)
    assert result.exit_code == 1
    left = (
        "error: what this command created could not be deleted: no response",
        f"to delete the documents that stay on the server: everlong documents delete doc_1 --url {server.url}",
    )
    assert "\n".join(left) in result.stderr
    assert ("error: no room for the answer" in result.stderr) == (question == "fail")
    assert not fake.sessions


def test_a_session_that_was_deleted_meanwhile(run: Run, fake: Fake, book: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("everlong_client.cli.ask.Asking._show", lambda *_: fake.sessions.clear())
    assert run("ask", book, "Who?").exit_code == 0
    assert not fake.documents


def test_a_terminated_chat_names_what_it_has_left(server: FakeServer, fake: Fake, book: Path):
    arguments = [sys.executable, "-m", "everlong_client", "chat", str(book), "--url", server.url]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as chat:
        wait_for(lambda: fake.sessions, 60)
        chat.terminate()
        errors = chat.communicate(timeout=60)[1].splitlines()
    assert chat.returncode == 128 + signal.SIGTERM
    assert errors[-1].startswith("to delete the documents that stay on the server: everlong documents delete doc_1")


def test_chat_without_a_file_and_without_a_question_makes_no_session(run: Run, fake: Fake):
    result = run("chat", input="\n \n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: there is nothing to ask: name a file")
    assert not fake.sessions


def test_a_file_that_has_changed_has_no_line(tmp_path: Path):
    file, originals = tmp_path / "a.txt", Originals()
    file.write_text("one\ntwo\nthree")
    originals.add(Document(id="doc_1", status="ready"), file)
    originals.add(Document(id="doc_2", status="ready", format="pdf"), file)
    assert originals.line("doc_1", 4, "two") == 2
    assert originals.line("doc_1", 4, "six") is None
    assert originals.line("doc_1", 40, "two") is None
    assert originals.line("doc_2", 4, "two") is None


def test_status(run: Run, fake: Fake, server: FakeServer, book: Path):
    run("ingest", book, book)
    result = run("status")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        f"server     {server.url}, ready",
        "model      tiny",
        "memory     rmt",
        "documents  2 ready",
        "sessions   0",
    ]
    status = json.loads(run("status", "--json").stdout)
    assert (status["ready"], status["model"]["id"], status["documents"]) == (True, "tiny", {"ready": 2})


def test_status_of_several_models():
    others = (
        Model(id="second", loaded=False),
        Model(id="third", loaded=True),
        Model(id="encoder", dimensions=384),
    )
    status = Status(url="http://a", ready=True, model=Model(id="first", memory="window", loaded=True), others=others)
    assert list(status.lines())[1:] == [
        "model      first",
        "memory     window",
        "also       second, loaded when a request names it",
        "also       third, loaded",
        "also       encoder, embeddings",
    ]
    assert [each["id"] for each in status.as_dict()["others"]] == ["second", "third", "encoder"]


def test_status_of_no_server(run: Run, closed_url: str):
    result = run("status", "--url", closed_url)
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout.startswith(f"server     {closed_url}, not ready: no response from {closed_url}: ")
    assert json.loads(run("status", "--json", "--url", closed_url).stdout)["ready"] is False
