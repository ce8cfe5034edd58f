"""Passages: cutting a text, indexing and searching it."""

from __future__ import annotations

import asyncio
import io
import os
import threading
import time
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlong_server.api.errors import as_server_error
from everlong_server.engine.answering.grounding import search_query, select_passages
from everlong_server.errors import NotFound
from everlong_server.store.records import Document, new_id
from everlong_server.store.search import word_index
from everlong_server.store.search.passages import Passage, Passages
from everlong_server.store.search.query import Query
from everlong_server.store.search.splitting import Piece, split
from everlong_server.store.search.word_index import opened
from everlong_server.store.texts import outline
from everlong_server.store.texts.blobs import Blobs
from tests.lab.train.conftest import full_disk
from tests.tinymodel import NOVEL, STORY

ALICE = STORY.read_text()


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


def test_a_line_without_spaces_is_cut_at_the_greatest_length_between_characters() -> None:
    found = check("字" * 100_000)
    assert {len(passage.text) for passage in found[:-1]} == {153}


# How passages are found


class Shelf:
    """Documents in a folder, or anywhere that fsspec knows."""

    def __init__(self, url: str) -> None:
        self.blobs = Blobs(url)
        self.documents: dict[str, Document] = {}
        self.passages = Passages(self.blobs, self)

    async def get(self, id: str) -> Document:
        if id not in self.documents:
            raise NotFound(id)
        return self.documents[id]

    def add(self, text: str) -> str:
        async def write() -> Document:
            document = Document(new_id("doc"), None, len(text.encode()), 0, 0.0)
            writer = await self.blobs.create(document.id)
            await writer.write(text.encode())
            await writer.commit()
            return document

        document = asyncio.run(write())
        self.documents[document.id] = document
        return document.id

    def ask(self, question: str, *documents: str, before: str | None = None, limit: int = 8) -> list[Passage]:
        """Return the passages that a question is answered with, without a limit of tokens."""
        query = search_query(question, before)
        found = asyncio.run(self.passages.search(documents or tuple(self.documents), query, limit)) if query else []
        return select_passages(found, "", 10_000, len)[0]


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
    found = asyncio.run(shelf.passages.search(tuple(shelf.documents), query, 16))
    assert "fisherman lived" in found[0].text + found[1].text
    assert "nine pennies" in found[0].text + found[1].text
    starts = [passage.start for passage in found]
    assert len(set(starts)) == len(starts) <= 16


def test_equal_passages_keep_the_order_of_the_documents(tmp_path: Path) -> None:
    shelf = Shelf(f"file://{tmp_path}")
    ids = [shelf.add(f"Dinah is cat number {number}. ") for number in range(6)]
    found = asyncio.run(shelf.passages.search(ids, Query("", {"dinah": 1.0}), 16))
    assert [passage.document for passage in found] == ids
    assert asyncio.run(shelf.passages.search(ids, Query("", {"walrus": 1.0}), 16)) == []


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


def test_a_store_that_is_no_folder_and_a_deleted_document() -> None:
    shelf = Shelf(f"memory://{new_id('doc')}")
    document = shelf.add(ALICE[:20_000])
    shelf.add("Nothing to be found here.")
    assert shelf.ask("Who is Dinah?")[0].document == document
    assert len(shelf.blobs._fs.ls(shelf.blobs._root)) == 4
    asyncio.run(shelf.passages.delete(document))
    del shelf.documents[document]
    assert shelf.ask("Who is Dinah?", document) == []


def test_an_index_whose_document_is_deleted_meanwhile_is_gone(tmp_path: Path) -> None:
    shelf = Shelf(f"file://{tmp_path}")
    document = shelf.documents.pop(shelf.add(ALICE))
    asyncio.run(shelf.passages.ensure(document))
    assert [path.name for path in tmp_path.iterdir()] == [document.id]


def test_a_damaged_index_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf(f"file://{tmp_path}")
    document, other = shelf.add(ALICE), shelf.add(NOVEL.read_text())
    found = shelf.ask("Who is Dinah?")
    index = tmp_path / f"{document}.passages"
    whole, second = index.read_bytes(), (tmp_path / f"{other}.passages").read_bytes()
    middle = len(whole) // 2 // 4096 * 4096
    damaged = [b"", b"x" * 5000, whole[:4096], whole[:middle], whole[:4096] + bytes(len(whole) - 4096)]
    for n, content in enumerate(damaged):
        index.write_bytes(content)
        assert shelf.ask("Who is Dinah?") == found, n
        assert index.stat().st_size == len(whole)
    assert (tmp_path / f"{other}.passages").read_bytes() == second
    assert len(caplog.records) == len(damaged)


def test_whoever_searches_a_damaged_index_with_others_misses_no_document(tmp_path: Path) -> None:
    shelf = Shelf(f"file://{tmp_path}")
    documents = [shelf.add(f"Dinah, kitten number {n}. " + ALICE[: 40_000 + n]) for n in range(4)]
    search = partial(shelf.passages.search, documents, Query("", {"number": 1.0, "dinah": 1.0}), 4)
    expected = asyncio.run(search())
    assert {passage.document for passage in expected} == set(documents)

    async def several() -> list[list[Passage]]:
        return await asyncio.gather(*(search() for _ in range(3)))

    for _ in range(5):
        for document in documents:
            (tmp_path / f"{document}.passages").write_bytes(b"x" * 5000)
        assert asyncio.run(several()) == [expected] * 3


def test_a_short_text_does_not_wait_for_the_index_of_a_long_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf, build, let = Shelf(f"file://{tmp_path}"), word_index.build, threading.Event()
    long = [shelf.add(ALICE * 12) for _ in range(2 * (os.cpu_count() or 1))]
    short = shelf.add(ALICE[:1000])

    def slow(blobs: Blobs, document: Document, *args: Any) -> None:
        if document.id in long:
            assert let.wait(60)
        build(blobs, document, *args)

    monkeypatch.setattr(word_index, "build", slow)

    async def all_of_them() -> None:
        waiting = [asyncio.create_task(shelf.passages.ensure(shelf.documents[id])) for id in long]
        await asyncio.sleep(0)
        await shelf.passages.ensure(shelf.documents[short])
        assert not any(task.done() for task in waiting)
        let.set()
        await asyncio.gather(*waiting)

    asyncio.run(all_of_them())
    assert len(list(tmp_path.glob("*.passages"))) == len(long) + 1


def test_an_index_that_has_no_room_says_that_the_store_is_full(tmp_path: Path) -> None:
    shelf = Shelf(f"file://{tmp_path}")
    shelf.add(ALICE)
    with full_disk(8192), pytest.raises(OSError, match=r"index of document .* cannot be written") as raised:
        shelf.ask("Who is Dinah?")
    assert as_server_error(raised.value).code == "store_full"
    assert not list(tmp_path.glob("*.passages"))


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


def test_an_index_is_made_once_for_all_who_find_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf, made = Shelf(f"file://{tmp_path}"), []
    document, build = shelf.add(ALICE), word_index.build

    def counted(*args: Any) -> None:
        made.append(args)
        build(*args)

    monkeypatch.setattr(word_index, "build", counted)

    async def several() -> list[list[Passage]]:
        each = (Passages(shelf.blobs, shelf) for _ in range(4))  # as each request has its own
        return await asyncio.gather(*(passages.search([document], Query("", {"dinah": 1.0}), 3) for passages in each))

    found = asyncio.run(several())
    assert found[0]
    assert found == [found[0]] * 4
    assert len(made) == 1


def test_an_index_is_mapped_and_not_copied(tmp_path: Path) -> None:
    shelf = Shelf(f"file://{tmp_path}")
    document = shelf.add(ALICE)
    asyncio.run(shelf.passages.ensure(shelf.documents[document]))
    with opened(tmp_path / f"{document}.passages") as index:
        assert index.execute("PRAGMA mmap_size").fetchone()[0] > 0


def cpu_seconds(work: Callable[[], object], times: int = 5) -> float:
    """The least CPU seconds of several runs in this process."""
    seconds = []
    for _ in range(times):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


@pytest.mark.long
def test_a_long_text_is_indexed_in_proportion_and_searched_in_less(tmp_path: Path) -> None:
    """Ten megabytes against one. If indexing took quadratic time, it would take a hundred times as long."""
    shelf, whole = Shelf(f"file://{tmp_path}"), ((NOVEL.read_text() + ALICE) * 30)[:10_000_000]
    usual = search_query("What did the Red Queen say to Alice about the white knight in the house at night?", None)
    endless = search_query("孔子住在哪里" * 3000 + "".join(map(chr, range(0x4E00, 0x9000))), NOVEL.read_text())
    indexed, searched = [], []
    for text in (whole[:1_000_000], whole):
        document = shelf.documents[shelf.add(text)]

        def index(document: Document = document) -> None:
            (tmp_path / f"{document.id}.passages").unlink(missing_ok=True)
            asyncio.run(shelf.passages.ensure(document))

        def search(query: Query, id: str = document.id) -> None:
            asyncio.run(shelf.passages.search([id], query, 3))

        indexed.append(cpu_seconds(index, 3))
        searched.append([cpu_seconds(partial(search, query)) for query in (usual, endless)])
    assert indexed[1] < 30 * indexed[0], indexed
    (few, _), (many, most) = searched
    assert many < 10 * few, searched
    assert most < 5 * many, searched  # a question's words are bounded


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
