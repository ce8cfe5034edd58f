"""Passages: cutting a text, and searching it."""

from __future__ import annotations

import asyncio
import io
import threading
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlong_server.engine.answering.search.question import search_query
from everlong_server.store.records import Document
from everlong_server.store.search.passages import Passages
from everlong_server.store.search.query import Query
from everlong_server.store.search.splitting import split
from everlong_server.store.texts import outline
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.passage import Passage
from everlong_server.store.texts.piece import Piece
from tests.server.store.search.shelf import ALICE, Shelf
from tests.tinymodel import NOVEL

# How a text is cut


def check(text: str) -> list[Piece]:
    """The passages of `text`, which are the text, in order and without gaps."""
    raw = text.encode()
    found = list(split(io.BytesIO(raw)))
    at = at_byte = 0
    for passage in found:
        assert (passage.start, passage.start_byte) == (at, at_byte)
        assert text[passage.start : passage.end] == passage.text
        assert raw[passage.start_byte : passage.end_byte].decode() == passage.text
        assert 0 < passage.end_byte - passage.start_byte <= 460
        at, at_byte = passage.end, passage.end_byte
    assert (at, at_byte) == (len(text), len(raw))
    return found


def test_passages_of_a_novel_are_about_seventy_words_and_end_with_sentences() -> None:
    found = check(ALICE)[:-1]
    words = sorted(len(passage.text.split()) for passage in found)
    assert 52 <= words[len(words) // 10] <= words[len(words) * 9 // 10] <= 85
    ended = [passage for passage in found if passage.text.rstrip()[-1] in ".!?”’'\")_" or passage.text.endswith("\n\n")]
    assert len(ended) > 0.97 * len(found)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["a", " ", ".", "\n", "é", "字", "。", "😀", "word ", "End. "]), max_size=900))
def test_any_text_is_cut_without_gaps(parts: list[str]) -> None:
    check("".join(parts))


def test_only_documents_up_to_the_first_long_one_are_looked_up(tmp_path: Path) -> None:
    shelf = Shelf(f"file://{tmp_path}")
    short, long = shelf.add("A boat."), shelf.add("A boat. " * 1000)
    assert asyncio.run(shelf.passages.shown_whole([short, "doc_deleted"]))
    looked_up = []

    async def get(id: str) -> Document:
        looked_up.append(id)
        return shelf.documents[id]

    shelf.get = get  # type: ignore[method-assign]
    assert not asyncio.run(shelf.passages.shown_whole([short, long, *[short] * 200]))
    assert looked_up == [short, long]


def test_a_line_without_spaces_is_cut_at_the_greatest_length_between_characters() -> None:
    found = check("字" * 100_000)
    assert {len(passage.text) for passage in found[:-1]} == {153}


# How passages are found


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    shelf = Shelf(f"file://{tmp_path_factory.mktemp('shelf')}")
    shelf.add(NOVEL.read_text())
    shelf.add(ALICE)
    return shelf


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("What does the Red Queen say about running to stay in the same place?", "all the running _you_ can do"),
        ("Why is the sea boiling hot?", "sea is boiling hot"),
        ("What did the Walrus and the Carpenter eat?", "oysters"),
        ("How old is Humpty Dumpty's un-birthday arithmetic: 365 minus one?", "three hundred and sixty-four"),
        ("Which invention does the White Knight carry mice in?", "mouse-trap"),
        ("What is the cipher message from Porlock about?", "slip of paper"),
        ("Which gang rules Vermissa Valley?", "Vermissa"),
    ],
)
def test_what_is_asked_for_is_found(shelf: Shelf, question: str, words: str) -> None:
    found = shelf.ask(question)
    assert any(words in " ".join(passage.text.split()) for passage in found), found


def test_a_passage_beside_one_that_matches_comes_before_one_that_matches_as_little(tmp_path: Path) -> None:
    """Who "he" is and what he did are often in different passages."""
    shelf = Shelf(f"file://{tmp_path}")
    told = ["It rained on the roofs of the town that day and for as long as anybody there could tell. " * 4] * 40
    told[20] = "The old fisherman lived by the river and mended his nets. " * 6
    told[21] = "He sold the golden lantern for nine pennies, and that was all. " * 6
    told[35] = "A lantern was mentioned here once, and that was all. " * 7
    shelf.add("".join(told))
    query = Query("", {"fisherman": 1.0, "golden": 1.0, "lantern": 1.0, "pennies": 1.0})
    found = asyncio.run(shelf.passages.find(tuple(shelf.documents), query, 16)).passages
    assert "fisherman lived" in found[0].text + found[1].text
    assert "nine pennies" in found[0].text + found[1].text
    starts = [passage.start for passage in found]
    assert len(set(starts)) == len(starts) <= 16


def test_equal_passages_keep_the_order_of_the_documents(tmp_path: Path) -> None:
    shelf = Shelf(f"file://{tmp_path}")
    ids = [shelf.add(f"Dinah is cat number {number}. " * 30) for number in range(6)]
    found = asyncio.run(shelf.passages.find(ids, Query("", {"dinah": 1.0}), 16)).passages
    assert list(dict.fromkeys(passage.document for passage in found)) == ids
    assert asyncio.run(shelf.passages.find(ids, Query("", {"walrus": 1.0}), 16)).passages == []


@pytest.mark.parametrize(
    "question",
    [
        "Hello!", "ok", "hi", "Thank you!", "the of and", "?!…", "lol", "Yes, please.", "   \n",
        "Which submarine torpedoed Zanzibar's aquarium off Reykjavik?", "谢谢你",
    ],
)  # fmt: skip
def test_what_no_passage_is_about_draws_none(shelf: Shelf, question: str) -> None:
    assert shelf.ask(question) == []


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is the wait time?", "35 weeks"), ("When is the next meeting?", "14 March"), ("Who owns the plot?", "Miriam"),
        ("What should I do?", "bell"), ("Where is it?", "Mill Lane"),
    ],
)  # fmt: skip
def test_a_question_of_everyday_words_is_searched_for(tmp_path: Path, question: str, answer: str) -> None:
    shelf = Shelf(f"file://{tmp_path}")
    shelf.add(
        ALICE[:8000]
        + "\n\nThe next meeting is on 14 March; the wait time is 35 weeks. The plot is owned by Miriam. It is at 12 Mill "
        "Lane. You should ring the bell, whatever you do.\n\n" + ALICE[8000:16_000]
    )
    assert any(answer in passage.text for passage in shelf.ask(question))


@pytest.mark.parametrize("question", ["Red Queen", "I like the Red Queen!", "Tell me more of Tweedledum", "Oysters."])
def test_names_and_rare_words_are_searched_for(shelf: Shelf, question: str) -> None:
    assert shelf.ask(question)


def test_a_question_takes_the_one_before_along_only_where_it_points_there(shelf: Shelf) -> None:
    before = "Who is Humpty Dumpty?"
    assert any("Humpty" in passage.text for passage in shelf.ask("What did he sit on, a wall?", before=before))
    assert any("Humpty" in passage.text for passage in shelf.ask("Why?", before=before))
    assert shelf.ask("Thanks!", before=before) == []
    for question in ("Was he happy?", "What happened next?", "Tell me about his best friends."):
        assert any("Humpty" in passage.text for passage in shelf.ask(question, before=before))
    alone = search_query("Which gang rules Vermissa Valley in America?", before)
    assert alone is not None
    assert "Humpty" not in alone.words


def test_a_long_question_is_found_by_its_ends(shelf: Shelf) -> None:
    question = "Humpty Dumpty! " + "lorem ipsum dolor " * 6000 + "boiling sea?"
    query = search_query(question, None)
    assert query is not None
    assert {"Humpty", "boiling", "sea"} <= query.words.keys()
    assert len(query.words) <= 16
    many = [" ".join(f"{letter}{n}" for n in range(100)) for letter in "ab"]
    for own, before in (
        (many[0], many[1]),
        ("it " + many[0][:30], many[1]),
    ):
        query = search_query(own, before)
        assert query is not None
        assert 8 < len(query.words) <= 16


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("นครวัดเป็นปราสาทหิน", "ปราสาทหิน?"), ("ວັດພູເປັນປາສາດ", "ປາສາດ?"), ("အင်းလေးကန်သည်ကန်", "အင်းလေး?"),
        ("អង្គរវត្តជាប្រាសាទ", "ប្រាសាទ?"), ("Her re\u0301sume\u0301 was long.", "Whose r\u00e9sum\u00e9?"),
        ("Her r\u00e9sum\u00e9 was long.", "Whose re\u0301sume\u0301?"),
        (unicodedata.normalize("NFD", "Старый чайник стоял там."), "Где чайник?"),
        (unicodedata.normalize("NFD", "Chiếc ấm nước cũ."), "ấm nước?"), (unicodedata.normalize("NFD", "주전자는 거기 있었다."), "주전자?"),
    ],
)  # fmt: skip
def test_words_of_other_scripts_and_decomposed_letters(tmp_path: Path, text: str, question: str) -> None:
    shelf = Shelf(f"file://{tmp_path}")
    shelf.add(ALICE[:20_000] + text + ALICE[20_000:40_000])
    assert text in shelf.ask(question)[0].text


def test_scripts_without_spaces_and_short_documents(tmp_path: Path) -> None:
    shelf = Shelf(f"file://{tmp_path}")
    chinese = "天地玄黄。" * 200 + "孔子住在鲁国的曲阜。" + "宇宙洪荒。" * 200
    shelf.add(chinese)
    short = shelf.add("The password is swordfish.")
    (found,) = shelf.ask("孔子住在哪里？")[:1]
    assert "孔子" in found.text
    assert chinese[found.start : found.end] == found.text
    assert [passage.document for passage in shelf.ask("What is the password?")] == [short]


def test_a_passage_stands_on_the_page_that_it_begins_on(tmp_path: Path) -> None:
    """Also one whose beginning was cut off."""
    shelf = Shelf(f"file://{tmp_path}")
    document = shelf.add(ALICE[:3000])
    shelf.documents[document] = replace(shelf.documents[document], format="pdf")
    outline.save(shelf.blobs, document, [outline.OutlineEntry(0, page=1), outline.OutlineEntry(120, page=2)])
    first = Passage(document, 0, 10, 0, 10, ALICE[:10])
    pieces = [first, replace(first, start=119), replace(first, start=120), replace(first, document="doc_gone")]
    placed = asyncio.run(shelf.passages.located(pieces))
    assert [passage.page for passage in placed] == [1, 1, 2, None]


async def test_abandoned_searches_keep_no_thread_that_answers_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that runs cannot be stopped when its client goes."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    begun, going_on = threading.Event(), threading.Event()

    def endless(*_: Any) -> list[Passage]:
        begun.set()
        going_on.wait()
        return []

    monkeypatch.setattr(Passages, "_rank", endless)
    documents: Any = None
    search = asyncio.create_task(Passages(Blobs(f"file://{tmp_path}"), documents).rank([], Query("", {}), 1))
    try:
        while not begun.is_set():
            await asyncio.sleep(0.01)
        search.cancel()
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(int) == 0
    finally:
        going_on.set()
