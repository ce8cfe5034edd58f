"""Questions that name a part of a text by its number."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from everlong_models.text.embedder import Embedder
from everlong_server.engine.answering.grounding import search_query
from everlong_server.store.search.numbered import _names
from everlong_server.store.search.passages import Found
from everlong_server.store.search.search_corpus import SearchCorpus
from everlong_server.store.texts.blobs import Blobs
from tests.tinymodel import STORY

STORY_TEXT = STORY.read_text()


def asked(
    folder: Path, text: str, questions: Sequence[str], embedder: Embedder | None, *, sentences: bool
) -> list[Found]:
    async def run() -> list[Found]:
        corpus = SearchCorpus(Blobs(f"file://{folder}"), embedder)
        document = await corpus.put(text, "book.md")
        await corpus.passages.ensure(document)
        if embedder is not None:
            await corpus.passages.ensure_vectors(document)
        found = []
        for question in questions:
            query = search_query(question, None)
            assert query is not None
            found.append(await corpus.passages.find([document.id], query, 32, by_sentences=sentences))
        return found

    return asyncio.run(run())


def part_of(text: str, start: str, end: str | None) -> range:
    return range(text.index(start), len(text) if end is None else text.index(end))


def test_of_several_parts_all_are_searched(tmp_path: Path) -> None:
    second, fourth = (
        part_of(STORY_TEXT, f"##  CHAPTER {n}.", f"##  CHAPTER {after}.") for n, after in (("II", "III"), ("IV", "V"))
    )
    question = "Who speaks both in chapter 2 and in chapter four, Alice or Tweedledum?"
    (found,) = asked(tmp_path, STORY_TEXT, [question], None, sentences=False)
    places = [p.start for p in found.passages]
    assert all(any(part.start - 1 <= place < part.stop for part in (second, fourth)) for place in places)
    assert any(place in second for place in places)
    assert any(place in fourth for place in places)


def test_headings_with_the_word_i_and_single_numbers_name_no_part(tmp_path: Path) -> None:
    """Questions of an FAQ, and names with a number."""
    text = (
        "# Help\n\n## What can I bring?\n\n" + "You can bring towels and a lock for the boats. " * 12
        + "\n\n## How do members pay?\n\n" + "You can pay by card at the desk of the club. " * 12
        + "\n\n## Vitamin C\n\n" + "It is in the oranges that the kitchen sells. " * 12 + "\n\n"
    )  # fmt: skip
    questions = ["Can I pay by card?", "Who sells vitamin C, and can I pay by card?"]
    for found in asked(tmp_path, text, questions, None, sentences=False):
        assert any("by card" in p.text for p in found.passages)


@pytest.mark.parametrize("size", range(380, 440, 4))
def test_a_heading_at_the_end_of_a_passage_is_not_cut(tmp_path: Path, size: int) -> None:
    """A passage has at most 460 bytes. The full stop behind the number could end it."""
    before = f"## Chapter I. Rain\n\n{('It rained and ' * 40)[:size]}."
    text = f"{before}\n\n## Chapter V. Wool and Water\n\n{'Alice bought an egg. ' * 40}"
    (found,) = asked(tmp_path, text, ["What is chapter 5 called?"], None, sentences=False)
    assert found.passages
    assert all("egg" in p.text for p in found.passages)


@pytest.mark.parametrize("meaning", [False, True], ids=["words", "meaning"])
@pytest.mark.parametrize("sentences", [False, True], ids=["passages", "sentences"])
def test_it_finds_passages_of_this_part_alone(tmp_path: Path, meaning: bool, sentences: bool) -> None:
    sixth = part_of(STORY_TEXT, "##  CHAPTER VI.", "##  CHAPTER VII.")
    questions = [
        "What happens in chapter 6?",
        "What is Chapter VI called?",
        "how does the sixth chapter end",
        "Who talks to Alice in chapter six?",
    ]
    embedder = Embedder.packaged() if meaning else None
    for question, found in zip(
        questions, asked(tmp_path, STORY_TEXT, questions, embedder, sentences=sentences), strict=True
    ):
        assert len(found.passages) > 5, question
        assert all(sixth.start - 1 <= p.start < sixth.stop for p in found.passages), question
        if sentences:
            assert any("Humpty Dumpty" in p.text and "CHAPTER VI" in p.text for p in found.passages), question


def test_a_question_about_a_whole_part_gets_all_of_its_parts(tmp_path: Path) -> None:
    ninth = part_of(STORY_TEXT, "##  CHAPTER IX.", "##  CHAPTER X.")
    questions = ["What is chapter 9 about?", "Summarise chapter nine.", "What happens in the ninth chapter?"]
    for found in asked(tmp_path, STORY_TEXT, questions, Embedder.packaged(), sentences=True):
        assert found.overview is not None
        assert {4 * (p.start - ninth.start) // len(ninth) for p in found.passages} >= {0, 1, 2, 3}


def test_a_table_of_contents_is_no_chapter(tmp_path: Path) -> None:
    body = "\n\n".join(
        f"Chapter {n}\n\n" + f"The {word} lived in a house on the hill. " * 60
        for n, word in [(1, "cat"), (2, "dog"), (3, "owl")]
    )
    text = "A Book\n\nChapter 1\n\nChapter 2\n\nChapter 3\n\nPreface\n\nThis is a book.\n\n" + body
    (found,) = asked(tmp_path, text, ["What happens in chapter 2?"], Embedder.packaged(), sentences=False)
    assert found.passages
    assert all("dog" in p.text for p in found.passages)


def test_a_number_that_no_heading_has_names_no_part(tmp_path: Path) -> None:
    numbers = ["What is apollo 11?", "How many are 6 of the chapters?", "What does chapter 40 say?", "Who is one?"]
    questions = [f"{number} Who is Humpty Dumpty?" for number in numbers]
    for found in asked(tmp_path, STORY_TEXT, questions, None, sentences=False):
        assert len({p.start * 5 // len(STORY_TEXT) for p in found.passages}) > 1


@pytest.mark.parametrize(
    ("question", "word", "number", "replaced"),
    [
        ("What happens in chapter 6?", "chapter", 6, "What happens in the text?"),
        ("How does the second chapter start?", "chapter", 2, "How does the text start?"),
        ("What is Chapter XLIV about?", "Chapter", 44, "What is the text about?"),
        ("Summarise part twelve", "part", 12, "Summarise the text"),
        ("Was steht in Kapitel 103?", "Kapitel", 103, "Was steht in the text?"),
    ],
)
def test_names_of_parts(question: str, word: str, number: int, replaced: str) -> None:
    assert (word, number, replaced) in [(name.word, name.number, name.question) for name in _names(question)]


@pytest.mark.parametrize("question", ["Who wrote it?", "How much is 3.5 percent?", "Is it in 1871?"])
def test_no_names_of_parts(question: str) -> None:
    assert [name for name in _names(question) if name.word != "is"] == []
