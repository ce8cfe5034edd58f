"""Documents that a request carries itself, instead of the id of an uploaded one.

The id of a document that Anthropic's API sends is a digest of its content. So it is stored and read once, however often a client
sends it. It is an ordinary document of its tenant: listed, counted and deleted as others are.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from everlong_server.engine.documents.ingest import Ingest
from everlong_server.errors import Conflict
from everlong_server.store.idempotency import IdempotencyRecord, IdempotencyRecords
from everlong_server.store.records import Document

_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class InlineFile:
    """A file inside a request: a `FileSource`. `plain`: see `TextChecker`."""

    content: bytes
    filename: str | None
    media_type: str | None
    plain: bool = False

    @property
    def announced_bytes(self) -> int:
        """Size of the content."""
        return len(self.content)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the content."""
        yield self.content

    def id(self, tenant: str, attempt: int) -> str:
        """Return the id, without its prefix, of the document with this content. `attempt`: see `store_once`."""
        kept = ["plain"] if self.plain else []  # another document than one that was converted
        named = json.dumps([tenant, self.filename, self.media_type, *kept, *([attempt] if attempt else [])]).encode()
        return hashlib.sha256(named + self.content).hexdigest()[:32]


async def add_inline(ingest: Ingest, records: IdempotencyRecords, file: InlineFile) -> Document:
    """Store the file unless it is stored already, queue its reading, and return its document. Raises `ServerError`."""
    tenant = ingest.quota.tenant

    async def add(record: IdempotencyRecord) -> None:
        await ingest.add(file, record, None, plain=file.plain)

    id = await store_once(ingest, records, "inline", add, lambda attempt: file.id(tenant, attempt))
    return await ingest.documents.get(id)


async def store_once(
    ingest: Ingest,
    records: IdempotencyRecords,
    what: str,
    add: Callable[[IdempotencyRecord], Awaitable[None]],
    id_of: Callable[[int], str] | None = None,
) -> str:
    """Return the id of the document of the file `what`; `add` it first unless it is stored. Raises `ServerError`.

    Waits while another request stores it. After a deletion, another attempt is made with another id: the deletion may still be
    running, and would delete the new text. `id_of`: returns the id of an attempt for this file, without its prefix; None: the ids
    are random, and the file is stored again when its record has expired.
    """
    for attempt in itertools.count():
        given = None
        if id_of is not None:
            given = await asyncio.to_thread(id_of, attempt)
            if await ingest.documents.exists(f"doc_{given}"):
                return f"doc_{given}"
            if await ingest.documents.was_deleted(f"doc_{given}"):
                continue
        # No header can have a zero byte, so no client's key can be equal.
        record = await _begin(ingest, records, f"\0{attempt} {what} {given or ''}", given)
        id = f"doc_{record.id}"
        if record.answer is not None:
            if await ingest.documents.exists(id):
                return id
            continue
        async with record:
            if not await ingest.documents.exists(id):
                await add(record)
            await record.finish(id)
        return id
    raise AssertionError("unreachable")


async def _begin(ingest: Ingest, records: IdempotencyRecords, key: str, id: str | None) -> IdempotencyRecord:
    """Begin the record as soon as no other request works on it."""
    while True:
        ingest.engine.require_running()
        try:
            return await records.begin(key, id)
        except Conflict:
            await asyncio.sleep(_POLL_SECONDS)


async def wait_until_read(ingest: Ingest, documents: Sequence[str]) -> None:
    """Return once the reading of `documents` has ended, in whatever way. Raises `ServerError` if it cannot begin, and
    `Unavailable` if the server shuts down meanwhile."""
    readings = ingest.documents.readings
    id = await readings.ensure(ingest.engine.model.fingerprint, documents)
    while (reading := await readings.get(id)) is not None and reading.status in ("queued", "reading"):
        ingest.engine.require_running()
        await asyncio.sleep(_POLL_SECONDS)
