"""`everlong eval questions`: reading a file of questions, searching for them, asking a server, and the report."""

from __future__ import annotations

import json
import lzma
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from typer.testing import CliRunner

from everlong_lab import corpora
from everlong_lab.cli.eval import eval as command
from everlong_lab.eval import questions
from everlong_lab.eval.questions import AskedQuestion, Result
from everlong_models.errors import DataError
from everlong_server.engine.answering.evidence.templates import REFUSAL
from tests.process import Server
from tests.tinymodel import STORY, make_model

HANDBOOK = "The club owns fourteen boats. A locker costs 35 euros a year.\n\n" + STORY.read_text()[:6000]
ROWS = [
    {"text": "handbook.md", "question": "How many boats does the club own?", "pattern": "fourteen|14"},
    {"text": "handbook.md", "question": "How much is a locker?", "pattern": "36 euros"},
    {"text": "handbook.md", "question": "Which submarine torpedoed Zanzibar?", "pattern": "does not say"},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "handbook.md").write_text(HANDBOOK)
    file = tmp_path / "asked.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    return file


def run(file: Path, *arguments: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the rows of the report by kind, and the answers."""
    output = file.parent / "out.json"
    result = CliRunner().invoke(command, ["questions", str(file), "--json", str(output), *arguments])
    assert result.exit_code == 0, result.output
    document = json.loads(output.read_text())
    return {row["kind"]: row for row in document["rows"]}, document["answers"]


def test_evidence_is_searched_for_without_a_server(file: Path) -> None:
    rows, answers = run(file, "--evidence-only", "--embeddings", "off", "--recall", "4,300")
    assert [answer["held"] for answer in answers] == [True, False, False]
    assert [bool(answer["evidence"]) for answer in answers] == [True, True, False]
    assert rows["fact"]["questions"] == 2
    assert rows["fact"]["evidence holds it"] == rows["all"]["evidence holds it"] == 1
    assert rows["not in the text"]["questions"] == 1
    assert "right" not in rows["all"]


@pytest.mark.long
def test_a_run_that_is_told_to_stop_leaves_no_server(file: Path) -> None:
    model = make_model(file.parent / "model")
    command = [sys.executable, "-m", "everlong_client", "eval", "questions", str(file), "--model", str(model)]
    run = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (started := run.children(recursive=True)):
        assert run.poll() is None
        time.sleep(0.1)
    run.terminate()
    assert run.wait(60) == 128 + signal.SIGTERM
    assert psutil.wait_procs(started, timeout=60)[1] == []


def test_a_server_is_asked_and_left_as_it_was(file: Path, new_server: Any, tmp_path: Path) -> None:
    server: Server = new_server(make_model(tmp_path / "model", segment_length=240)).start()
    before = server.stored()
    rows, answers = run(file, "--url", str(server.http.base_url), "--tokens", "4")
    assert [answer["held"] for answer in answers] == [True, False, False]
    assert all(answer["answer"] is not None and answer["over"] >= answer["first"] > 0 for answer in answers)
    assert rows["all"]["right"] == sum(answer["right"] for answer in answers)
    assert server.stored() == before
    assert server.http.get("/v1/documents").json()["data"] == []


def test_a_document_whose_vectors_never_come_is_given_up_and_deleted(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "_PATIENCE", 0.0)
    deleted = []

    def handle(request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":
            deleted.append(request.url.path)
        return httpx.Response(200, json={"id": "doc_1", "status": "ready", "vectors": {"progress": 0.25}})

    asked = questions.questions(file)
    with (
        httpx.Client(base_url="http://server", transport=httpx.MockTransport(handle)) as http,
        pytest.raises(DataError, match=r"vectors of handbook\.md have been at 25%"),
    ):
        questions.ask(http, asked, questions.find_texts(["handbook.md"], [file.parent]), 4, lambda *_: None)
    assert deleted == ["/v1/documents/doc_1"]


def test_messages_of_a_conversation_have_one_session(file: Path) -> None:
    """The later message is searched for with the one before it, if it refers to that, and answered in its session."""
    rows = [ROWS[0], {**ROWS[1], "question": "And the locker?", "follows": True}, ROWS[2]]
    file.write_text("\n".join(map(json.dumps, rows)))
    sessions, messages = list[str](), list[str]()

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/sessions":
            sessions.append(f"ses_{len(sessions)}")
            return httpx.Response(201, json={"id": sessions[-1]})
        if request.url.path.endswith("/messages"):
            messages.append(request.url.path.split("/")[3])
            answer = {"type": "response.completed", "message": {"content": "Fourteen.", "evidence": []}}
            return httpx.Response(200, text=f"event: response.completed\ndata: {json.dumps(answer)}\n\n")
        return httpx.Response(200, json={"id": "doc_1", "status": "ready"})

    with httpx.Client(base_url="http://server", transport=httpx.MockTransport(handle)) as http:
        texts = questions.find_texts(["handbook.md"], [file.parent])
        found = questions.ask(http, questions.questions(file), texts, 4, lambda *_: None)
    assert messages == ["ses_0", "ses_0", "ses_1"]
    rows_of = {row["kind"]: row for row in questions.report(found, []).rows}
    assert (rows_of["first messages"]["questions"], rows_of["later messages"]["questions"]) == (2, 1)
    assert rows_of["first messages"]["right"] == 1


def test_questions_about_a_text_are_asked_in_one_session(file: Path) -> None:
    rows = [{**row, "text": name} for row, name in zip(ROWS, ("handbook.md", "other.md", "handbook.md"), strict=True)]
    file.write_text("\n".join(map(json.dumps, rows)))
    asked = questions.in_one_session(questions.questions(file))
    assert [(one.question, one.follows) for one in asked] == [
        (ROWS[0]["question"], False), (ROWS[2]["question"], True), (ROWS[1]["question"], False),
    ]  # fmt: skip
    (file.parent / "other.md").write_text(HANDBOOK)
    rows_of, _ = run(file, "--one-session", "--evidence-only", "--embeddings", "off")
    assert rows_of["later messages"]["questions"] == 1


def test_the_packaged_conversations_are_about_their_texts(tmp_path: Path) -> None:
    packed = Path(corpora.__file__).parent / "conversations.tar.xz"
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path, filter="data")
    asked = questions.questions(tmp_path / "conversations.jsonl")
    assert sum(not one.follows for one in asked) == 24
    assert len(asked) == 192
    assert len(questions.find_texts((one.text for one in asked), [tmp_path])) == 24
    for one in asked:
        assert one.matches(REFUSAL) is (one.kind == "not in the text"), one


def test_the_packaged_unanswerable_questions_are_ten_about_each_text() -> None:
    packed = (Path(corpora.__file__).parent / "unanswerable-questions.jsonl.xz").read_bytes()
    rows = [json.loads(line) for line in lzma.decompress(packed).decode().splitlines()]
    assert set(Counter(row["text"] for row in rows).values()) == {10}
    assert len({(row["text"], row["q"]) for row in rows}) == 450
    assert all(row["near"] for row in rows)


@pytest.mark.parametrize("name", ["development", "held-out"])
def test_the_packaged_conversations_about_books_can_be_asked(tmp_path: Path, name: str) -> None:
    packed = (Path(corpora.__file__).parent / "book-conversations.jsonl.xz").read_bytes()
    lines = [line for line in lzma.decompress(packed).decode().splitlines() if json.loads(line)["set"] == name]
    (tmp_path / "questions.jsonl").write_text("\n".join(lines))
    asked = questions.questions(tmp_path / "questions.jsonl")
    assert (len(asked), sum(not one.follows for one in asked), len({one.text for one in asked})) == (84, 14, 7)
    for one, row in zip(asked, map(json.loads, lines), strict=True):
        assert one.matches(row["quote"]), one
        assert not one.matches(row["standalone"]), "the question does not give its answer away"
        assert not one.matches(REFUSAL)


@pytest.mark.parametrize(("folder", "texts", "count"), [("development", 12, 108), ("held-out", 9, 72)])
def test_the_packaged_questions_about_a_few_pages_are_about_their_texts(
    tmp_path: Path, folder: str, texts: int, count: int
) -> None:
    with tarfile.open(Path(corpora.__file__).parent / "few-pages.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    asked = questions.questions(tmp_path / "few-pages" / folder / "questions.jsonl")
    assert len(asked) == count
    assert len(questions.find_texts((one.text for one in asked), [tmp_path / "few-pages" / folder])) == texts
    for one in asked:
        assert one.matches(REFUSAL) is (one.kind == "not in the text"), one


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2"), ('{"text": "a"}', "line 2.*question"), ('{"text": "a", "question": "b", "pattern": "("}', "line 2"),
        ('{"text": "a", "question": "b", "pattern": "c", "kind": "riddle"}', "kind is 'riddle'"),
        ('{"text": "a", "question": "b", "pattern": "c", "follows": true}', "line 2: follows is True"),
        ('{"text": "handbook.md", "question": "b", "pattern": "c", "follows": "no"}', "follows is 'no'"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_question_is_named(file: Path, line: str, message: str) -> None:
    file.write_text(json.dumps(ROWS[0]) + "\n" + line)
    with pytest.raises(DataError, match=message):
        questions.questions(file)


def test_a_text_that_is_missing_or_no_text_is_named(file: Path) -> None:
    with pytest.raises(DataError, match=r"no text 'handbook\.md'.*--texts"):
        questions.find_texts(["handbook.md"], [])
    (file.parent / "handbook.md").write_bytes(b"\xff\xfe\xfd text")
    result = CliRunner().invoke(command, ["questions", str(file), "--evidence-only", "--embeddings", "off"])
    assert result.exit_code == 1
    assert "handbook.md is neither UTF-8 text nor" in " ".join(result.output.split())


def test_the_report_counts_by_kind_and_refusals_hold_no_evidence() -> None:
    def result(kind: str, *, held: bool, right: bool, agreement: float | None = None) -> Result:
        return Result(AskedQuestion("t", "q", "p", kind), held, ["four"], "answer", right, 1.0, 2.0, agreement)

    results = [
        result("fact", held=True, right=True, agreement=0.39),
        result("fact", held=True, right=False, agreement=0.4),
        result("whole text", held=False, right=True),
        result("not in the text", held=False, right=True),
    ]
    rows = {row["kind"]: row for row in questions.report(results, []).rows}
    assert [row["doubted"] for row in rows.values()] == [1, 0, 0, 1]
    assert [row["doubted but right"] for row in rows.values()] == [1, 0, 0, 1]
    assert [(row["questions"], row["right"], row["evidence holds it"]) for row in rows.values()] == [
        (2, 1, 2),
        (1, 1, 0),
        (1, 1, ""),
        (4, 3, 2),
    ]


@pytest.mark.parametrize(
    ("pattern", "kind"),
    [("fourteen|14", "fact"), ("(?=.*Alice)(?=.*Queen)", "whole text"), ("not (say|mention)", "not in the text")],
)
def test_a_question_without_a_kind_has_that_of_its_pattern(file: Path, pattern: str, kind: str) -> None:
    file.write_text(json.dumps({"text": "a", "q": "b", "a": pattern}))
    assert questions.questions(file)[0].kind == kind
