"""If a document cannot be created, its text is deleted, unless another server has taken the request over."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from everlong_server.engine.documents.formats import conversion
from everlong_server.engine.documents.formats.conversion import Conversion
from everlong_server.engine.documents.ingest import Ingest, ReceivedFile
from everlong_server.errors import InvalidRequest, RateLimited, TooLarge
from everlong_server.store.documents import Documents
from everlong_server.store.idempotency import IdempotencyRecord, IdempotencyRecords
from everlong_server.store.records import new_id
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.tenants.quota import Limits, Quota, StreamSlots
from everlong_server.store.texts import outline
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.notes import Note
from everlong_server.store.vault import Vault

WORDS = b"the text of the book"


class Side:
    """One of several servers that share a Redis and a blob store."""

    def __init__(self, redis: Client, folder: Path, replica: str, tenant: str = "ann", **limits: int) -> None:
        self.blobs = Blobs(f"file://{folder}/blobs")
        quota = Quota(redis, tenant, Limits(**limits), StreamSlots(redis, replica))
        documents = Documents(redis, tenant, quota, Vault())
        self.attempts = IdempotencyRecords(redis, tenant, replica, 60.0, [], Vault())
        engine: Any = SimpleNamespace(require_running=lambda: None, model=SimpleNamespace(fingerprint="model"))
        unused: Any = None
        self.ingest = Ingest(engine, redis, self.blobs, documents, quota, unused, unused, unused, 1 << 20)

    async def receive(self, document_id: str, format: str | None) -> ReceivedFile:
        received = ReceivedFile(len(WORDS), 0, "", None, format)
        writer = await self.blobs.create(document_id)
        await writer.write(WORDS)
        await received.commit(writer)
        return received

    async def make(self, attempt: IdempotencyRecord | None, document_id: str, format: str | None = None) -> Any:
        return await self.ingest.create(document_id, await self.receive(document_id, format), attempt)

    def files(self) -> list[str]:
        return sorted(self.blobs.names())


async def test_what_a_stalled_server_could_not_convert_another_one_has(
    redis: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Side(redis, tmp_path, "r1"), Side(redis, tmp_path, "r2")
    stalled, going_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def convert(_: Path, kind: str, text: Path, __: int, *___: object) -> Conversion:
        if not stalled.is_set():
            loop.call_soon_threadsafe(stalled.set)
            going_on.wait()
            raise InvalidRequest("it took more than 600 s")
        text.write_bytes(WORDS)
        return Conversion(kind, [], [])

    monkeypatch.setattr(conversion, "convert", convert)
    slow = await first.attempts.begin("key")
    document_id = f"doc_{slow.id}"
    late = asyncio.create_task(first.make(slow, document_id, "pdf"))
    await stalled.wait()
    taken = await second.attempts.begin("key")  # the first one's key is not there: it is taken for dead
    assert taken.id == slow.id
    assert await second.make(taken, document_id, "pdf")
    going_on.set()
    with pytest.raises(InvalidRequest, match="600 s"):
        await late
    with second.blobs.open(document_id) as file:
        assert file.read() == WORDS
    assert not [name for name in first.files() if name.endswith(".upload")]


async def test_what_one_server_is_refused_another_may_be_about_to_make(redis: Client, tmp_path: Path) -> None:
    first, second = Side(redis, tmp_path, "r1", bytes=1), Side(redis, tmp_path, "r2")
    slow = await first.attempts.begin("key")
    taken = await second.attempts.begin("key")
    received = await second.receive(document_id := f"doc_{slow.id}", None)
    with pytest.raises(RateLimited):
        await first.make(slow, document_id)
    assert await second.ingest.create(document_id, received, taken)
    assert first.files() == [document_id]


async def test_a_document_that_is_refused_leaves_nothing(redis: Client, tmp_path: Path) -> None:
    side = Side(redis, tmp_path, "r1", bytes=1)
    for attempt in (None, await side.attempts.begin(None), await side.attempts.begin("key")):
        with pytest.raises(RateLimited):
            await side.make(attempt, new_id("doc"))
    side = Side(redis, tmp_path, "r1")
    received = await side.receive(document_id := new_id("doc"), None)
    made = await side.ingest.create(document_id, received, None, upload=new_id("upload"))
    assert made is None, "there is no such upload"
    assert side.files() == []


@pytest.mark.parametrize("how", ["away", "gone"])
async def test_a_document_that_redis_makes_late_has_its_text(
    redis: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Redis runs the script that was sent on a broken connection when nobody waits for it any more."""
    side, told = Side(redis, tmp_path, "r1"), asyncio.Event()
    late: list[Any] = []
    run = redis.run_script

    async def unheard(text: str, names: list[str], args: list[Any]) -> Any:
        late.append(lambda: run(text, names, args))
        told.set()
        if how == "away":
            raise RedisConnectionError("it broke")
        await asyncio.Event().wait()

    monkeypatch.setattr(redis, "run_script", unheard)
    making = asyncio.create_task(side.make(None, document_id := new_id("doc")))
    await told.wait()
    if how == "gone":
        making.cancel()
    with contextlib.suppress(RedisConnectionError, asyncio.CancelledError):
        await making
    await late[0]()
    assert await redis.exists(keys.document(document_id))
    assert side.files() == [document_id]


async def test_the_text_of_a_file_may_not_exceed_the_bytes_that_the_tenant_has_left(
    redis: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, limits = Side(redis, tmp_path, "r1", bytes=100), []

    def convert(_: Path, kind: str, text: Path, limit: int, *__: object) -> Conversion:
        limits.append(limit)
        if limit < 80:
            raise TooLarge("the text is larger than its limit")
        text.write_bytes(b"x" * 80)
        return Conversion(kind, [], [Note("a picture was left out", 2)])

    monkeypatch.setattr(conversion, "convert", convert)
    document = await side.make(None, new_id("doc"), "epub")
    assert (document.bytes, document.notes) == (80, (Note("a picture was left out", 2),))
    assert (await side.ingest.documents.get(document.id)).notes == document.notes
    with pytest.raises(RateLimited, match="its limit of 100 bytes"):
        await side.make(None, new_id("doc"), "epub")
    assert limits == [100, 20]
    assert side.files() == sorted([document.id, outline.name(document.id)])


async def test_one_tenant_cannot_occupy_all_converters(
    redis: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going_on, running = threading.Event(), list[str]()

    def convert(_: Path, kind: str, text: Path, __: int, *___: object) -> Conversion:
        running.append(kind)
        if kind == "slow":
            going_on.wait()
        text.write_bytes(WORDS)
        return Conversion(kind, [], [])

    monkeypatch.setattr(conversion, "convert", convert)
    ann, bob = Side(redis, tmp_path, "r1"), Side(redis, tmp_path, "r1", tenant="bob")
    slow = [asyncio.create_task(ann.make(None, new_id("doc"), "slow")) for _ in range(5)]
    try:
        assert (await bob.make(None, new_id("doc"), "fast")).format == "fast"
        assert running.count("slow") <= 2
    finally:
        going_on.set()
        await asyncio.gather(*slow)
    assert running.count("slow") == 5
