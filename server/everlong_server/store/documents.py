"""`Documents` and `Readings` in Redis."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everlong_server.errors import NotFound
from everlong_server.store import keys, scripts
from everlong_server.store.connection import Client
from everlong_server.store.records import Cursor, Document, Reading, is_id, pack_tokens, reading_id
from everlong_server.store.scripts import Scripts, flat


class Fenced(Exception):
    """Somebody else has the reading now, or it is gone: nothing was written, and nothing may be."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to write a reading. `attempts`: how often it was claimed since it last made progress."""

    token: int
    attempts: int


class Documents:
    """Documents, and the readings that models make of them."""

    def __init__(self, redis: Client) -> None:
        self._redis = redis
        self._scripts = Scripts(redis)

    async def create(self, document: Document, model: str, *, upload: str | None = None) -> bool:
        """Stores the document and queues its reading by `model`, at once. Then it is acknowledged.

        `upload`: the one whose parts it is made of, which is completed with it; False, and nothing is stored, if that
        is not pending any more.
        """
        fields, reading = flat(document.fields()), Reading.fields(model, [document.id])
        done = await self._scripts.run(
            scripts.CREATE_DOCUMENT,
            [
                keys.document(document.id), keys.DOCUMENTS, keys.document_readings(document.id),
                keys.reading(str(reading["id"])), keys.jobs(model),
                *([] if upload is None else [keys.upload(upload), keys.upload_parts(upload)]),
            ],
            [document.id, document.created_at, reading["id"], len(fields), *fields, *flat(reading)],
        )  # fmt: skip
        return int(done) >= 0

    async def get(self, document_id: str) -> Document:
        """Raises `NotFound`."""
        stored = await self._redis.hgetall(keys.document(document_id)) if is_id("doc", document_id) else None
        if not stored:
            raise _no_document(document_id, "document_id")
        return Document.of(stored)

    async def newest(self, limit: int, after: str | None) -> tuple[list[Document], bool]:
        """Newest first, and whether there are more. `after`: the last id of the page before."""
        ids, more = await page(self._redis, keys.DOCUMENTS, limit, after)
        async with self._redis.pipeline(transaction=False) as pipe:
            for document_id in ids:
                pipe.hgetall(keys.document(document_id))
            return [Document.of(stored) for stored in await pipe.execute() if stored], more

    async def ids(self) -> set[str]:
        """Every document's id."""
        return {member.decode() for member in await self._redis.zrange(keys.DOCUMENTS, 0, -1)}

    async def delete(self, document_id: str) -> None:
        """Removes the document and all its readings. Raises `NotFound`."""
        done = is_id("doc", document_id) and await self._scripts.run(
            scripts.DELETE_DOCUMENT,
            [keys.document(document_id), keys.DOCUMENTS, keys.document_readings(document_id)],
            [document_id, keys.reading(""), keys.document("")],
        )
        if not done:
            raise _no_document(document_id, "document_id")

    # Readings

    async def ensure_reading(self, model: str, documents: Sequence[str]) -> str:
        """The id of the reading of `documents` by `model`, queued now if there was none, with those it starts from.

        Raises `NotFound` naming the document that is not there.
        """
        for document_id in documents:
            if not is_id("doc", document_id):
                raise _no_document(document_id, "documents")
        for n in range(1, len(documents) + 1):
            fields = Reading.fields(model, documents[:n])
            parent = reading_id(model, documents[: n - 1]) if n > 1 else ""
            pairs = [key for d in documents[:n] for key in (keys.document(d), keys.document_readings(d))]
            done = await self._scripts.run(
                scripts.ENSURE_READING,
                [
                    keys.reading(str(fields["id"])), keys.jobs(model),
                    keys.reading(parent) if parent else "", keys.reading_children(parent) if parent else "", *pairs,
                ],
                [fields["id"], *flat(fields)],
            )  # fmt: skip
            if done < 0:
                raise _no_document(documents[-int(done) - 1], "documents")
        return reading_id(model, documents)

    async def reading(self, id: str, *, with_state: bool = False) -> Reading | None:
        """The reading, or None; its state only if asked for."""
        if with_state:
            stored = await self._redis.hgetall(keys.reading(id))
            return Reading.of(stored) if stored else None
        values = await self._redis.hmget(keys.reading(id), _FACTS)
        stored = {field: value for field, value in zip(_FACTS, values, strict=True) if value is not None}
        return Reading.of(stored) if stored else None

    async def claim(self, id: str) -> Claim | None:
        """The right to write the reading from now on, taken from whoever had it; None if it is done or gone."""
        result = await self._scripts.run(scripts.CLAIM_READING, [keys.reading(id), keys.FENCE], [])
        return Claim(int(result[0]), int(result[1])) if result else None

    async def checkpoint(self, reading: Reading, claim: Claim, cursor: Cursor, state: bytes | None, **more: Any) -> int:
        """Writes state and cursor together; the new version. Raises `Fenced`, having written nothing.

        `more`: fields that end the reading (`status`, `error`, `state_digest`, …); then those that wait for it are queued.
        """
        fields: dict[str, Any] = {
            "offset": cursor.offset, "bytes": cursor.bytes, "skip": cursor.skip, "tokens": cursor.tokens, "position": cursor.position,
            "segments": cursor.segments, "seconds": cursor.seconds, "open": pack_tokens(cursor.open), **more,
        }  # fmt: skip
        if state is not None:
            fields["state"] = state
        if isinstance(fields.get("error"), dict):
            fields["error"] = json.dumps(fields["error"])
        version = await self._scripts.run(
            scripts.CHECKPOINT_READING,
            [keys.reading(reading.id), keys.reading_children(reading.id), keys.jobs(reading.model)],
            [claim.token, reading.version, int("status" in more), *flat(fields)],
        )
        if version <= 0:
            raise Fenced(f"reading {reading.id} is {'gone' if version == 0 else 'in other hands'}")
        return int(version)


_FACTS = [
    b"id", b"model", b"documents", b"status", b"version", b"offset", b"skip", b"tokens", b"position", b"segments", b"bytes",
    b"seconds", b"open", b"state_bytes", b"state_digest", b"error",
]  # fmt: skip


def _no_document(document_id: str, param: str) -> NotFound:
    return NotFound(f"no document {document_id[:64]!r}", param=param, code="document_not_found")


async def page(redis: Client, index: str, limit: int, after: str | None) -> tuple[list[str], bool]:
    """Ids of an index, newest first, and whether there are more. Raises `NotFound` for an unknown `after`."""
    start = 0
    if after is not None:
        rank = await redis.zrevrank(index, after)
        if rank is None:
            raise NotFound(f"no object {after!r} to continue after", param="after")
        start = int(rank) + 1
    members = await redis.zrevrange(index, start, start + limit)
    return [member.decode() for member in members[:limit]], len(members) > limit
