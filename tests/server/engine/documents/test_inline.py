"""Files inside requests: what is acknowledged keeps its text, whatever other requests with the same file do at the same time."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everlong_server.engine.documents.formats import conversion
from everlong_server.engine.documents.formats.conversion import Conversion
from everlong_server.engine.documents.inline import InlineFile, add_inline
from everlong_server.errors import Conflict
from everlong_server.store.chats import Chats
from everlong_server.store.idempotency import IdempotencyRecord, IdempotencyRecords
from everlong_server.store.records import Document
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.search.passages import Passages
from everlong_server.store.vault import Vault
from tests.server.store.search.test_dropped import WORDS, Side


def text_of(side: Side, document: Document) -> bytes:
    with side.blobs.open(document.id) as file:
        return file.read()


async def test_a_file_that_is_sent_while_it_is_being_deleted_keeps_its_text(
    redis: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, file = Side(redis, tmp_path, "r1"), InlineFile(WORDS, None, "text/plain")
    offsets: Any = SimpleNamespace(delete=side.blobs.delete)
    ingest = replace(
        side.ingest, chats=Chats(redis, "ann", 60, Vault()), passages=Passages(side.blobs, side.ingest.documents),
        token_offsets=offsets,
    )  # fmt: skip
    forget, again = Chats.forget, list[Document]()

    async def sent_meanwhile(self: Chats, document_id: str) -> None:
        again.append(await add_inline(ingest, side.attempts, file))
        await forget(self, document_id)

    first = await add_inline(ingest, side.attempts, file)
    assert (await add_inline(ingest, side.attempts, file)).id == first.id, "it is stored once"
    await redis.delete(*await redis.keys("{everlong}:attempt:*"))  # as a day later
    assert (await add_inline(ingest, side.attempts, file)).id == first.id
    with monkeypatch.context() as patch:
        patch.setattr(Chats, "forget", sent_meanwhile)
        await ingest.delete(first.id)
    assert text_of(side, again[0]) == WORDS
    assert (await add_inline(ingest, side.attempts, file)).id == again[0].id
    assert side.files() == [again[0].id]


async def test_a_request_waits_for_another_one_that_stores_the_same_file(
    redis: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An SDK retries while the server still converts the file of the first try, which the client has left."""
    side, file = Side(redis, tmp_path, "r1"), InlineFile(b"%PDF-1.7", None, "application/pdf")
    await redis.set(keys.replica("r1"), 1, px=60_000)
    converting, waiting, going_on = asyncio.Event(), asyncio.Event(), threading.Event()
    loop, begin = asyncio.get_running_loop(), IdempotencyRecords.begin

    def convert(_: Path, kind: str, text: Path, __: int, *___: object) -> Conversion:
        if not converting.is_set():
            loop.call_soon_threadsafe(converting.set)
            going_on.wait()
        text.write_bytes(WORDS)
        return Conversion(kind, [], [])

    async def seen(self: IdempotencyRecords, *arguments: Any) -> IdempotencyRecord:
        try:
            return await begin(self, *arguments)
        except Conflict:
            waiting.set()
            raise

    monkeypatch.setattr(conversion, "convert", convert)
    monkeypatch.setattr(IdempotencyRecords, "begin", seen)
    first = asyncio.create_task(add_inline(side.ingest, side.attempts, file))
    await converting.wait()
    retry, waits = (
        asyncio.create_task(add_inline(side.ingest, side.attempts, file)),
        asyncio.create_task(waiting.wait()),
    )
    try:
        await asyncio.wait([retry, waits], return_when=asyncio.FIRST_COMPLETED)
        assert not retry.done(), "the first try could still delete its text"
        first.cancel()
    finally:
        going_on.set()
        waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert text_of(side, await retry) == WORDS
