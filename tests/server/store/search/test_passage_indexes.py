"""The index of a document's passages: when it is made, damaged, deleted, or has no room."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from everlong_server.api.errors import as_server_error
from everlong_server.engine.answering.search.question import search_query
from everlong_server.store.records import Document, new_id
from everlong_server.store.search import word_index
from everlong_server.store.search.passages import Found, Passages
from everlong_server.store.search.query import Query
from everlong_server.store.search.word_index import opened
from everlong_server.store.texts.blobs import Blobs
from tests.lab.train.conftest import full_disk
from tests.server.store.search.shelf import ALICE, Shelf
from tests.tinymodel import NOVEL


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
    search = partial(shelf.passages.find, documents, Query("", {"number": 1.0, "dinah": 1.0}), 4)
    expected = asyncio.run(search())
    assert {passage.document for passage in expected.passages} == set(documents)

    async def several() -> list[Found]:
        return await asyncio.gather(*(search() for _ in range(3)))

    for _ in range(5):
        for document in documents:
            (tmp_path / f"{document}.passages").write_bytes(b"x" * 5000)
        assert asyncio.run(several()) == [expected] * 3


@pytest.mark.long
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


def test_an_index_is_made_once_for_all_who_find_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf, made = Shelf(f"file://{tmp_path}"), []
    document, build = shelf.add(ALICE), word_index.build

    def counted(*args: Any) -> None:
        made.append(args)
        build(*args)

    monkeypatch.setattr(word_index, "build", counted)

    async def several() -> list[Found]:
        each = (Passages(shelf.blobs, shelf) for _ in range(4))  # as each request has its own
        return await asyncio.gather(*(passages.find([document], Query("", {"dinah": 1.0}), 3) for passages in each))

    found = asyncio.run(several())
    assert found[0].passages
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
            asyncio.run(shelf.passages.find([id], query, 3))

        indexed.append(cpu_seconds(index, 3))
        searched.append([cpu_seconds(partial(search, query)) for query in (usual, endless)])
    assert indexed[1] < 30 * indexed[0], indexed
    (few, _), (many, most) = searched
    assert many < 10 * few, searched
    assert most < 5 * many, searched  # a question's words are bounded
