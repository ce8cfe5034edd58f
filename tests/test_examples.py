"""Every program in examples/ works with a real server and real text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.js.conftest import npm, run  # noqa: F401, the fixture
from tests.process import Server
from tests.tinymodel import STORY, make_model

EXAMPLES = Path(__file__).parents[1] / "examples"
QUESTION = "What does the Red Queen say to Alice?"


@pytest.fixture
def story(tmp_path: Path) -> Path:
    """A text with characters of two and three bytes before the passage asked about."""
    path = tmp_path / "story.md"
    path.write_text("Größe — 字\n\n" + STORY.read_text()[:30_000])
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), segment_length=128)


@pytest.fixture
def server(new_server: Callable[..., Server], model: Path) -> Server:
    """A server whose segments hold passages and a question."""
    return new_server(model, recall_tokens=100).start()


def run_example(server: Server, *command: str | Path, given: str = "") -> str:
    """Run an example and return its output."""
    done = subprocess.run(
        command, input=given.encode(), capture_output=True, timeout=120, check=False,
        env=server.environment | {"EVERLONG_URL": server.url},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return done.stdout.decode()  # unstripped: an answer may contain any white space


def test_all_of_them_are_tested_and_listed() -> None:
    names = {path.name for path in EXAMPLES.glob("*.*")} - {"README.md"}
    assert names == set(re.findall(r'EXAMPLES / "([a-z.]+)"', Path(__file__).read_text()))
    assert names == set(re.findall(r"\]\(([\w.]+)\)", (EXAMPLES / "README.md").read_text()))


@pytest.mark.long
def test_quotes_are_in_the_line_that_is_named(server: Server, story: Path) -> None:
    said = run_example(server, sys.executable, EXAMPLES / "quote.py", story, QUESTION)
    quotes = re.findall(rf"^{re.escape(str(story))}:(\d+): (.+)$", said, re.MULTILINE)
    assert quotes
    lines = story.read_text().split("\n")
    for line, quote in quotes:
        text = " ".join(" ".join(lines[int(line) - 1 :]).split())
        assert quote in text
        assert text.index(quote) <= len(lines[int(line) - 1]), "it starts in a later line"


@pytest.mark.long
def test_each_question_gets_a_line_and_leaves_nothing(server: Server, story: Path) -> None:
    questions = [QUESTION, "Who is the White Queen?", "Where is the kitten?"] * 4
    program = (sys.executable, EXAMPLES / "questions.py", story)
    answers = [json.loads(line) for line in run_example(server, *program, given="\n".join(questions)).splitlines()]
    assert sorted(answer["question"] for answer in answers) == sorted(questions)
    text = story.read_text()
    for answer in answers:
        assert answer["evidence"]
        assert all(e["text"] == text[e["start"] : e["end"]] for e in answer["evidence"])
    assert any(answer["answer"] for answer in answers)  # a random model may give empty answers
    assert server.http.get("/v1/sessions").json()["data"] == []
    assert len(server.http.get("/v1/documents").json()["data"]) == 1


@pytest.mark.long
def test_characters_are_of_the_schema(server: Server, story: Path) -> None:
    found = json.loads(run_example(server, sys.executable, EXAMPLES / "characters.py", story))
    assert 1 <= len(found["characters"]) <= 3
    for one in found["characters"]:
        assert one.keys() == {"name", "animal"}
        assert isinstance(one["animal"], bool)


@pytest.mark.long
def test_a_conversation_in_node(server: Server, story: Path, tmp_path: Path, npm: Path) -> None:  # noqa: F811
    client = tmp_path / "clients" / "js"
    run(npm / "js", "npx", "tsc", "--project", "tsconfig.build.json", "--outDir", str(client / "dist"))
    shutil.copy(npm / "js" / "package.json", client)
    (tmp_path / "examples").mkdir()
    program = shutil.copy(EXAMPLES / "conversation.mjs", tmp_path / "examples")
    questions = [QUESTION, "Who is the White Queen?"]
    said = run_example(server, "node", program, story, given="\n".join(questions))
    assert re.match(r"\d+ tokens read\n", said)
    (session,) = server.http.get("/v1/sessions").json()["data"]
    messages = server.http.get(f"/v1/sessions/{session['id']}/messages").json()["data"]
    assert [m["content"] for m in messages if m["role"] == "user"] == questions
    assert any(message["content"] for message in messages[1::2])
    assert all(message["content"] in said for message in messages[1::2])
