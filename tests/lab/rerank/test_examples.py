"""Tests for examples.py: which sentences tell an answer, what the search missed is added, and bad files are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everlong_lab.corpora.sources import SOURCES, Source, SourceQuestion
from everlong_lab.eval.labelled import questions
from everlong_lab.rerank.examples import DATA_SETS, Example, make_examples, of_sources
from everlong_models.errors import DataError
from everlong_models.text.embedder import Embedder
from tests.tinymodel import STORY

TOWN = (
    "The inn by the harbour belonged to Mrs. Quill. She had bought it from\nher brother, who went to sea. The harbour was full of "
    "boats. Mrs. Quill never rowed one.\n\n"
)
ROWS = [
    {"text": "town.md", "q": "Who owns the pub?", "a": "quill", "quote": "inn by the harbour belonged to Mrs Quill"},
    {"text": "town.md", "q": "Who sold it to her?", "a": "brother", "quote": "bought it from her brother"},
    {"text": "tale.md", "q": "Which cat was innocent?", "a": "white", "quote": "the white kitten had had nothing to do with it"},
]  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "town.md").write_text(TOWN)
    (tmp_path / "tale.md").write_text(STORY.read_text()[:12_000])
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return file


def made(file: Path, data: Path | None = None) -> list[Example]:
    embedder = Embedder.packaged()
    assert embedder is not None
    return make_examples(file, [file.parent], data, embedder, lambda what, share: None)


@pytest.mark.long
def test_sentences_tell_the_answer_may_tell_it_or_do_not(file: Path) -> None:
    first, second, third = made(file)
    assert (first.text, first.question) == ("town.md", "Who owns the pub?")
    (candidate,) = first.candidates
    sentences = [candidate.text[start:end].strip() for start, end in candidate.sentences]
    assert dict(zip(sentences, candidate.labels, strict=True)) == {
        "The inn by the harbour belonged to Mrs. Quill.": 1,
        "She had bought it from\nher brother, who went to sea.": 0,
        "The harbour was full of boats.": 0,
        "Mrs. Quill never rowed one.": -1,
    }
    assert second.candidates[0].labels == (0, 1, 0, 0)
    assert len(third.candidates) > 5
    assert sum(1 in candidate.labels for candidate in third.candidates) >= 1


@pytest.mark.long
def test_an_answer_that_the_search_missed_is_among_the_candidates(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlong_lab.rerank.examples.PASSAGES", 1)
    row = ROWS[2] | {"q": "Who plays chess with the queen?"}
    file.write_text("".join(json.dumps(line) + "\n" for line in (ROWS[0], row)))
    *_, example = made(file)
    assert len(example.candidates) == 2
    assert 1 not in example.candidates[0].labels
    assert "kitten had had nothing" in example.candidates[1].text
    assert 1 in example.candidates[1].labels


def test_the_data_sets_can_be_read() -> None:
    assert DATA_SETS.keys() <= SOURCES.keys()


def test_questions_of_data_sets_whose_answers_are_in_the_text() -> None:
    asked = (
        SourceQuestion("Who owns it?", ("mrs. quill",), (1,)), SourceQuestion("Why?", ("She liked it.",), (0,)),
        SourceQuestion("What is full?", ("The  Harbour",)),
    )  # fmt: skip
    ((name, text, found),) = of_sources([Source("town", ("The harbour.", "It belongs to Mrs. Quill."), " ", asked)])
    assert name == "town"
    assert [(one.question, [text[a:b] for a, b in one.spans]) for one in found] == [
        ("Who owns it?", ["Mrs. Quill"]),
        ("What is full?", ["The harbour"]),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quote": "belonged to nobody"}, r"line 2.*the quote 'belonged to nobody' is not in town\.md"),
        ({"a": "("}, "line 2"), ({"quote": "…"}, "line 2.*quote"), ({"q": None, "text": "other.md"}, "other"),
    ],
)  # fmt: skip
def test_a_bad_question_is_named(file: Path, change: dict, message: str) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in (ROWS[1], ROWS[0] | change)))
    with pytest.raises(DataError, match=message):
        made(file)
    with pytest.raises(DataError, match=message):
        questions(file, {"town.md": TOWN})


def test_questions_about_one_text_are_too_few(file: Path) -> None:
    file.write_text(json.dumps(ROWS[0]))
    with pytest.raises(DataError, match="at least two texts"):
        made(file)
