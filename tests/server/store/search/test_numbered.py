"""Questions that name a part of a text by its number."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from everlong_lab.harness.search_corpus import SearchCorpus
from everlong_models.text.embedder import Embedder
from everlong_server.engine.answering.search.question import search_query
from everlong_server.store.search.numbered import _names
from everlong_server.store.search.passages import Found
from everlong_server.store.texts import outline
from everlong_server.store.texts.blobs import Blobs
from tests.tinymodel import STORY

STORY_TEXT = STORY.read_text()


class Book:
    """A text with its index."""

    def __init__(self, folder: Path, text: str, embedder: Embedder | None) -> None:
        self._loop = asyncio.Runner()
        self._corpus = SearchCorpus(Blobs(f"file://{folder}"), embedder)
        self._document = self._loop.run(self._corpus.add(text, "book.md"))

    def asked(self, questions: Sequence[str], *, sentences: bool) -> list[Found]:
        return [self._loop.run(self._found(question, sentences)) for question in questions]

    async def _found(self, question: str, sentences: bool) -> Found:
        query = search_query(question, None)
        assert query is not None
        return await self._corpus.passages.find([self._document.id], query, 32, by_sentences=sentences)

    def close(self) -> None:
        self._loop.close()


@pytest.fixture(scope="module")
def by_words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Book]:
    """The story without vectors, indexed once for all tests."""
    with closing(Book(tmp_path_factory.mktemp("words"), STORY_TEXT, None)) as book:
        yield book


@pytest.fixture(scope="module")
def by_meaning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Book]:
    """The story with vectors, indexed once for all tests."""
    with closing(Book(tmp_path_factory.mktemp("meaning"), STORY_TEXT, Embedder.packaged())) as book:
        yield book


def asked(
    folder: Path, text: str, questions: Sequence[str], embedder: Embedder | None, *, sentences: bool
) -> list[Found]:
    with closing(Book(folder, text, embedder)) as book:
        return book.asked(questions, sentences=sentences)


def part_of(text: str, start: str, end: str | None) -> range:
    return range(text.index(start), len(text) if end is None else text.index(end))


def test_of_several_parts_all_are_searched(by_words: Book) -> None:
    second, fourth = (
        part_of(STORY_TEXT, f"##  CHAPTER {n}.", f"##  CHAPTER {after}.") for n, after in (("II", "III"), ("IV", "V"))
    )
    question = "Who speaks: the Red Queen in chapter 2, or Tweedledum in chapter four?"
    (found,) = by_words.asked([question], sentences=False)
    places = [p.start for p in found.passages]
    inside = [any(part.start - 1 <= place < part.stop for part in (second, fourth)) for place in places]
    assert inside.count(True) >= 2 * inside.count(False)
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
    assert "egg" in found.passages[0].text


@pytest.mark.parametrize("searched", ["by_words", pytest.param("by_meaning", marks=pytest.mark.long)])
@pytest.mark.parametrize("sentences", [False, True], ids=["passages", "sentences"])
@pytest.mark.long
def test_it_finds_mostly_passages_of_this_part(request: pytest.FixtureRequest, searched: str, sentences: bool) -> None:
    sixth = part_of(STORY_TEXT, "##  CHAPTER VI.", "##  CHAPTER VII.")
    questions = [
        "What happens in chapter 6?",
        "What is Chapter VI called?",
        "how does the sixth chapter end",
        "Who talks to Alice in chapter six?",
    ]
    meaning, book = searched == "by_meaning", request.getfixturevalue(searched)
    for question, found in zip(questions, book.asked(questions, sentences=sentences), strict=True):
        assert len(found.passages) > 5, question
        inside = [sixth.start - 1 <= p.start < sixth.stop for p in found.passages]
        assert inside.count(True) >= 2 * inside.count(False), question
        assert inside[0] or not meaning, question
        if sentences:
            assert any("Humpty Dumpty" in p.text and "CHAPTER VI" in p.text for p in found.passages), question


@pytest.mark.long
def test_a_question_about_a_whole_part_gets_all_of_its_parts(by_meaning: Book) -> None:
    ninth = part_of(STORY_TEXT, "##  CHAPTER IX.", "##  CHAPTER X.")
    questions = ["What is chapter 9 about?", "Summarise chapter nine.", "What happens in the ninth chapter?"]
    for found in by_meaning.asked(questions, sentences=True):
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


CONTRACT = {
    "1.1": "This contract begins on the first of May, at noon.",
    "3.4.2": "The landlord paints the fence every second year.",
    "4.1": "Rent is paid on the third day of each month, by transfer.",
    "4.2": "Who pays late owes a fee of nine euros for each reminder that is sent.",
    "4.2.1": "The first reminder is free, and so is one about a wrong amount.",
    "4.3": "The rent rises by two percent each year, unless prices fall.",
    "5.1": "The tenant sweeps the stairs on Saturdays, and clears the snow.",
}


@pytest.mark.parametrize(
    "mark", ["## ", "", "# Section ", "# Chapter 9 of 4\n\n## "], ids=["markdown", "plain", "with a word", "below one"]
)
@pytest.mark.parametrize(
    ("question", "sections"),
    [
        ("What does section 4.2 say?", ("4.2", "4.2.1")),
        ("What is in § 4.2?", ("4.2", "4.2.1")),
        ("Explain the clause 4.2.1 to me", ("4.2.1",)),
        ("What does section 3.4.2 say?", ("3.4.2",)),
        ("Compare sections 3.4.2 and 5.1.", ("3.4.2", "5.1")),
        ("What is in section 4?", ("4.1", "4.2", "4.2.1", "4.3")),
    ],
)
def test_a_section_with_a_dotted_number_needs_no_word_in_its_heading(
    tmp_path: Path, mark: str, question: str, sections: tuple[str, ...]
) -> None:
    text = "The Contract\n\n" + "".join(
        f"{mark}{number} About it\n\n{body * 12}\n\nNotes\n\n{body * 6}\n\n" for number, body in CONTRACT.items()
    )
    (found,) = asked(tmp_path, text, [question], None, sentences=False)
    inside = [any(CONTRACT[section] in p.text for section in sections) for p in found.passages]
    assert inside.count(True) >= 2 * inside.count(False), [p.text[:80] for p in found.passages]
    for section in sections:
        assert any(CONTRACT[section] in p.text for p in found.passages)


@pytest.mark.parametrize(
    "question",
    [
        "Did the fee rise by 4.2 percent?",
        "What is in table 4.2?",
        "Which fee is in version 4.2?",
        "Is section 4.02 about a fee?",
    ],
)
def test_other_dotted_numbers_name_no_section(question: str) -> None:
    assert not any(name.sections for name in _names(question))


def test_a_section_ends_where_the_next_chapter_begins(tmp_path: Path) -> None:
    introduction = "Damage is paid by whoever did it, fee or no fee. "
    text = "\n\n".join(f"## {number} About\n\n{body * 12}" for number, body in CONTRACT.items() if number != "4.3")
    text = text.replace("## 5.1", f"## 5 Damage\n\n{introduction * 30}\n\n## 5.1")
    (found,) = asked(tmp_path, text, ["What is in section 4.2?"], None, sentences=False)
    assert found.passages
    assert not any(introduction in p.text for p in found.passages)


def test_a_dotted_number_that_no_heading_has_names_no_part(tmp_path: Path) -> None:
    (found,) = asked(
        tmp_path,
        STORY_TEXT,
        ["What do the Red Queen, the White King and Humpty Dumpty do in version 3.11?"],
        None,
        sentences=False,
    )
    assert len({p.start * 5 // len(STORY_TEXT) for p in found.passages}) > 1


def test_a_number_that_no_heading_has_names_no_part(by_words: Book) -> None:
    numbers = ["What is apollo 11?", "How many are 6 of the chapters?", "What does chapter 40 say?", "Who is one?"]
    questions = [f"{number} Who is Humpty Dumpty?" for number in numbers]
    for found in by_words.asked(questions, sentences=False):
        assert len({p.start * 5 // len(STORY_TEXT) for p in found.passages}) > 1


@pytest.mark.parametrize(
    ("question", "word", "numbers", "name"),
    [
        ("What happens in chapter 6?", "chapter", (6,), "chapter 6"),
        ("How does the second chapter start?", "chapter", (2,), "the second chapter"),
        ("What is Chapter XLIV about?", "chapter", (44,), "Chapter XLIV"),
        ("Summarise part twelve", "part", (12,), "part twelve"),
        ("Was steht in Kapitel 103?", "kapitel", (103,), "Kapitel 103"),
        ("What do chapters 2, 3 and 4 say?", "chapters", (2, 3, 4), "chapters 2, 3 and 4"),
        ("What is in “Chapter 5” (book 2)?", "chapter", (5,), "Chapter 5"),
        ("What is in “Chapter 5” (book 2)?", "book", (2,), "book 2"),
        ("How does the last chapter end?", "chapter", (-1,), "the last chapter"),
    ],
)
def test_names_of_parts(question: str, word: str, numbers: tuple[int, ...], name: str) -> None:
    found = [(each.word, each.numbers, question[each.start : each.end]) for each in _names(question)]
    assert (word, numbers, name) in found


@pytest.mark.parametrize("question", ["Who wrote it?", "Is 1,871.5 more?", "It was 1871"])
def test_no_names_of_parts(question: str) -> None:
    assert list(_names(question)) == []


def plain_book(chapters: int, subtitle: str = "") -> str:
    """A plain text: each chapter is about an animal of its own, and ends with a short line that looks like a heading."""
    animals = ["cat", "dog", "owl", "fox", "pig"][:chapters]
    return "".join(
        f"Chapter {n}\n\n{subtitle.format(n)}"
        + f"The {animal} lived in a house on the hill. " * 30
        + f"\n\nThe evening\n\nThen the {animal} sang a song to Mr. Smith. " * 12
        + "\n\n"
        for n, animal in enumerate(animals, 1)
    )


@pytest.mark.long
@pytest.mark.parametrize("subtitle", ["", "The {}. house\n\n"], ids=["", "with subtitles"])
@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_chapter_goes_on_behind_short_lines(tmp_path: Path, subtitle: str, number: int) -> None:
    text = plain_book(5, subtitle)
    (found,) = asked(tmp_path, text, [f"What happens in chapter {number}?"], Embedder.packaged(), sentences=False)
    animal = ["cat", "dog", "owl", "fox", "pig"][number - 1]
    assert all(animal in p.text for p in found.passages)
    assert any("sang" in p.text for p in found.passages)
    assert any("lived" in p.text for p in found.passages)
    assert found.overview is not None
    assert found.overview.titles == (f"book, chapter {number}",)
    assert "Smith" in found.overview.names[0]


def test_two_chapters_with_one_word_are_one_part(tmp_path: Path) -> None:
    (found,) = asked(tmp_path, plain_book(5), ["Summarise chapters 2 and 3."], Embedder.packaged(), sentences=False)
    assert {animal for p in found.passages for animal in ("cat", "dog", "owl", "fox", "pig") if animal in p.text} == {
        "dog",
        "owl",
    }


def test_a_chapter_of_a_book_is_what_both_have_in_common(tmp_path: Path) -> None:
    text = "".join(
        f"# Book {book}\n\n"
        + "".join(
            f"## Chapter {n}\n\n" + f"In {book}-{n} it rained on the river all day. " * 30 + "\n\n" for n in (1, 2, 3)
        )
        for book in (1, 2, 3)
    )
    (found,) = asked(tmp_path, text, ["What is book 2, chapter 3 about?"], Embedder.packaged(), sentences=False)
    assert found.passages
    assert all("2-3" in p.text for p in found.passages)


def test_a_question_with_a_name_can_be_answered_elsewhere(tmp_path: Path) -> None:
    """ "Type 2" names a section, yet the answer stands in another one."""
    filler = "The doctor spoke about the illness for a long time and nobody knew why. " * 20
    text = f"# Type 1\n\n{filler}\n\n# Type 2\n\n{filler}\n\n# Treatment\n\nType 2 diabetes is treated with metformin tablets. {filler}"
    (found,) = asked(
        tmp_path, text, ["How is type 2 diabetes treated, with which tablets?"], Embedder.packaged(), sentences=True
    )
    assert any("metformin" in p.text for p in found.passages[:5])


def test_a_question_that_only_the_name_of_a_part_matches_finds_nothing(tmp_path: Path) -> None:
    questions = [
        "Which Icelandic volcano erupted violently in chapter 2?",
        "Where did Mr. Smith hear a song in chapter 2?",
    ]
    nothing, found = asked(tmp_path, plain_book(5), questions, None, sentences=False)
    assert nothing.passages == []
    assert "dog" in found.passages[0].text


@pytest.mark.parametrize(
    ("previous", "message", "animal"),
    [
        ("What happens in chapter 2?", "Who is in it?", "dog"),
        ("What happens in chapter 2?", "And in chapter 4?", "fox"),
    ],
)
def test_a_following_question_keeps_the_part_unless_it_names_one(
    tmp_path: Path, previous: str, message: str, animal: str
) -> None:
    query = search_query(message, previous)
    assert query is not None

    async def run() -> Found:
        corpus = SearchCorpus(Blobs(f"file://{tmp_path}"), None)
        document = await corpus.put(plain_book(5), "book.md")
        await corpus.passages.ensure(document)
        return await corpus.passages.find([document.id], query, 8)

    found = asyncio.run(run()).passages
    assert found
    assert all(animal in p.text for p in found[:3])


def test_the_last_chapter_is_the_one_with_the_highest_number(tmp_path: Path) -> None:
    questions = ["What happens in the last chapter?", "When was the last time that a fox sang?"]
    last, other = asked(tmp_path, plain_book(5), questions, Embedder.packaged(), sentences=False)
    assert last.overview is not None
    assert last.overview.titles == ("book, last chapter",)
    assert all("pig" in p.text for p in last.passages)
    assert "fox" in other.passages[0].text


@pytest.mark.parametrize(
    ("question", "animal"),
    [
        ("What is on page 2?", "dog"),
        ("Summarise the third page.", "owl"),
        ("What is on the last page?", "pig"),
        ("Summarise pages 2 and 3", "dog"),
    ],
)
def test_pages_of_a_document_are_parts(tmp_path: Path, question: str, animal: str) -> None:
    """The text has no headings: its outline has the pages."""
    pages = [f"The {animal} lived in a house on the hill. " * 30 for animal in ("cat", "dog", "owl", "fox", "pig")]
    starts = [sum(map(len, pages[:n])) for n in range(len(pages))]

    async def run() -> Found:
        blobs = Blobs(f"file://{tmp_path}")
        corpus = SearchCorpus(blobs, Embedder.packaged())
        document = await corpus.put("".join(pages), "book.pdf", "pdf")
        outline.save(blobs, document.id, [outline.OutlineEntry(start, n) for n, start in enumerate(starts, 1)])
        await corpus.index(document)
        query = search_query(question, None)
        assert query is not None
        return await corpus.passages.find([document.id], query, 8)

    found = asyncio.run(run()).passages
    assert sum(animal in p.text for p in found) > len(found) / 3
    asked_for = {"dog", "owl"} if "pages" in question else {animal}
    assert all(any(each in p.text for each in asked_for) for p in found)


@pytest.mark.parametrize("question", ["What is in chapter 3?", "And what about chapters 3 and 4?"])
def test_a_question_that_asks_for_nothing_but_a_part_is_about_all_of_it(tmp_path: Path, question: str) -> None:
    (found,) = asked(tmp_path, plain_book(5), [question], None, sentences=True)
    assert found.overview is not None
    assert any("owl" in p.text for p in found.passages)
    assert all("owl" in p.text or ("4" in question and "fox" in p.text) for p in found.passages)


def test_only_documents_with_the_part_are_named(tmp_path: Path) -> None:
    async def run() -> Found:
        corpus = SearchCorpus(Blobs(f"file://{tmp_path}"), None)
        documents = [
            await corpus.put(plain_book(5), "animals.md"),
            await corpus.put("It rained on the river all day. " * 60, "rain.md"),
        ]
        for document in documents:
            await corpus.passages.ensure(document)
        query = search_query("What is in chapter 2?", None)
        assert query is not None
        return await corpus.passages.find([document.id for document in documents], query, 8)

    found = asyncio.run(run()).overview
    assert found is not None
    assert found.titles == ("animals, chapter 2",)
