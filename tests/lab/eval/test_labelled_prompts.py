"""Prompts of labelled questions: as the server would build them, only where the evidence tells the answer."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everlong_lab.eval.grounded.labelled_prompts import LabelledPromptsPlan, write_labelled
from everlong_lab.tasks.reading import REFUSAL
from everlong_models.errors import DataError
from everlong_models.text.embedder import Embedder
from everlong_server.engine.answering.evidence.templates import INSTRUCT
from tests.tinymodel import STORY

ROWS = [
    {
        "text": "town.md", "q": "Who owns the pub by the harbour?", "a": "quill", "answer": "Mrs Quill owns it.",
        "quote": "The inn by the harbour belonged to Mrs Quill",
    },
    {
        "text": "tale.md", "q": "Which kitten was innocent?", "a": "white", "answer": "The white kitten was innocent.",
        "quote": "the white kitten had had nothing to do with it",
    },
]  # fmt: skip
TOWN = "The inn by the harbour belonged to Mrs. Quill. The harbour was full of boats, and of the boats none was hers."


@pytest.fixture
def plan(tmp_path: Path) -> LabelledPromptsPlan:
    (tmp_path / "town.md").write_text(TOWN)
    (tmp_path / "tale.md").write_text(STORY.read_text()[:12_000])
    return LabelledPromptsPlan(store(tmp_path, ROWS), [tmp_path], (200,), 16, "instruct")


def store(folder: Path, rows: list[dict[str, str]]) -> Path:
    file = folder / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def written(plan: LabelledPromptsPlan) -> list[dict[str, Any]]:
    to = io.StringIO()
    embedder = Embedder.packaged()
    assert embedder is not None
    number = asyncio.run(write_labelled(plan, lambda text: len(text.split()), to, lambda what, done: None, embedder))
    lines = [json.loads(line) for line in to.getvalue().splitlines()]
    assert len(lines) == number
    return lines


@pytest.mark.long
def test_a_prompt_is_the_servers_and_tells_the_answer(plan: LabelledPromptsPlan) -> None:
    town, tale = written(plan)
    assert town["source"] == "town.md"
    (turn,) = town["turns"]
    assert turn["answers"] == ["Mrs Quill owns it."] != [REFUSAL]
    assert turn["prompt"].startswith(INSTRUCT.opening)
    assert "belonged to Mrs. Quill" in turn["prompt"]
    assert turn["prompt"].endswith("Question: Who owns the pub by the harbour?")
    (turn,) = tale["turns"]
    assert "white kitten" in turn["prompt"]
    assert len(turn["prompt"].split()) < 200 + 10


@pytest.mark.long
def test_a_question_whose_answer_is_not_shown_is_left_out(plan: LabelledPromptsPlan) -> None:
    (line,) = written(replace(plan, room=(45,)))
    assert line["source"] == "town.md"


@pytest.mark.long
def test_a_question_about_the_whole_text_becomes_the_servers_prompt_for_it(plan: LabelledPromptsPlan) -> None:
    gist = "Alice talks to a kitten and wonders about the room behind the looking-glass."
    rows = [
        {"text": "tale.md", "q": question, "answer": gist}
        for question in ("Summarise the text.", "What does the black kitten play with?")
    ]
    (line,) = written(replace(plan, file=store(plan.folders[0], rows)))
    # The other question is about a place in the text.
    (turn,) = line["turns"]
    assert turn["answers"] == [gist]
    assert turn["prompt"].startswith("These passages are from all parts of the text “tale”.")
    assert "The names mentioned most often: Alice" in turn["prompt"]
    assert turn["prompt"].endswith("in one to three sentences.\n\nQuestion: Summarise the text.")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({name: value for name, value in ROWS[0].items() if name != "answer"}, "has no answer"),
        (ROWS[0] | {"quote": "the inn by the lake"}, "is not in town.md"),
        (ROWS[0] | {"a": "("}, "is no regular expression"),
        ({"text": "town.md", "q": "What is it about?"}, "answer"),
        (ROWS[0] | {"text": "city.md"}, "no text 'city.md'"),
    ],
)
def test_bad_questions_are_named(plan: LabelledPromptsPlan, row: dict[str, str], why: str) -> None:
    store(plan.folders[0], [row])
    with pytest.raises(DataError, match=why.replace("(", r"\(")):
        written(plan)
