"""`IdempotencyRecords`: requests with an `Idempotency-Key`, so that a retry returns the first result.

A record is written before any work starts, with the id that the new document, session or message will get. If the server is
killed, the retry looks for an object with this id, and so finds what was done already. There is no moment between an effect
and its record at which a kill could lose either.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import uuid
from dataclasses import dataclass, replace
from typing import Any, Self

from redis.exceptions import RedisError

from everlong_server.errors import Conflict, InvalidRequest, NotFound, ServerError
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.vault import Vault

# KEYS: attempt. ARGV: owner `replica|nonce`, id, milliseconds to live, prefix of replica keys
# Returns nothing (the owner is alive and working on it), or {'first', 'again' or 'done'; id; digest of the content; answer}
_BEGIN = """
local owner, id, content, answer = unpack(redis.call('HMGET', KEYS[1], 'owner', 'id', 'content', 'answer'))
if not id then
  redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'id', ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return {'first', ARGV[2], '', ''}
end
if answer then return {'done', id, content or '', answer} end
if owner ~= '' and owner ~= ARGV[1] then
  if redis.call('EXISTS', ARGV[4] .. string.match(owner, '^([^|]*)|')) == 1 then return nil end
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1])
return {'again', id, content or '', ''}
"""

# KEYS: attempt. ARGV: owner, field or 'forget', value, milliseconds to live
# Returns 1, or 0 if the record has another owner.
_END = """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
if ARGV[2] == 'forget' then return redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
"""


@dataclass(eq=False)
class IdempotencyRecords:
    """One tenant's records. `replica`: this process's id. `seconds`: how long an answer is kept.

    `unreleased`: records that could not be released because Redis was away; shared by all tenants of this process.
    """

    redis: Client
    tenant: str
    replica: str
    seconds: float
    unreleased: list[IdempotencyRecord]
    vault: Vault

    def of(self, tenant: str) -> IdempotencyRecords:
        """Return the records of another tenant."""
        return replace(self, tenant=tenant)

    def _record(self, key: str) -> str:
        """Return the Redis key of the record of the request that the client calls `key`."""
        return keys.attempt(self.tenant, hashlib.sha256(key.encode()).hexdigest())

    async def begin(self, key: str | None, id: str | None = None) -> IdempotencyRecord:
        """Return the record of the request that the client calls `key`; without a key, a record that is not stored.

        `id`: of the object to make, if it is the first attempt; None: a random one.
        Raises `Conflict` if a living replica is working on the same request.
        """
        if key is None:
            return IdempotencyRecord(self, None, "", uuid.uuid4().hex, "", None, first=True)
        record = self._record(key)
        owner = f"{self.replica}|{uuid.uuid4().hex}"
        try:
            found = await self.redis.run_script(
                _BEGIN, [record], [owner, id or uuid.uuid4().hex, int(self.seconds * 1000), keys.REPLICA]
            )
        except (RedisError, asyncio.CancelledError):  # Redis may have written the record all the same
            await self.release(IdempotencyRecord(self, record, owner, "", "", None, first=True))
            raise
        if not found:
            raise Conflict(
                "a request with this Idempotency-Key is still running: retry in a second", param="Idempotency-Key",
                code="idempotency_in_progress", retry_after=1,
            )  # fmt: skip
        kind, made, content = (part.decode() for part in found[:3])
        answer = self.vault.unseal(found[3], "answer") if found[3] else b""
        return IdempotencyRecord(
            self, record, owner, made, content, json.loads(answer or b"null"), first=kind == "first"
        )

    async def page(self, key: str) -> tuple[int, int] | None:
        """Return the page at which the conversion of the running request `key` is, counted from 1, and the number of pages.

        None if its file has no pages, or they are not known yet. Raises `NotFound` if no such request is running.
        """
        record = self._record(key)
        owner, page, answer = await self.redis.hmget(record, "owner", "page", "answer")
        replica = (owner or b"").partition(b"|")[0].decode()
        if answer is not None or not replica or not await self.redis.exists(keys.replica(replica)):
            raise NotFound(
                "no request with this Idempotency-Key is running", param="Idempotency-Key", code="request_not_running"
            )
        numbers = (page or b"").split()
        return (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 else None

    async def write(self, record: IdempotencyRecord, field: str, value: str) -> bool:
        """Write a field (or "forget" the record); False if another replica has taken the record over."""
        args = [record.owner, field, self.vault.sealed({field: value})[field], int(self.seconds * 1000)]
        return bool(await self.redis.run_script(_END, [record.key or ""], args))

    async def owns(self, record: IdempotencyRecord) -> bool:
        """Whether `record.owner` still owns the stored record."""
        return bool(await self.redis.hget(record.key, "owner") == record.owner.encode())

    async def release(self, record: IdempotencyRecord) -> None:
        """Give the record up, so that a retry can take it over at once. If Redis is away, this happens when it is back."""
        self.unreleased.append(record)
        with contextlib.suppress(RedisError):
            await self.release_pending()

    async def release_pending(self) -> None:
        """Release the records that could not be released before. Raises `RedisError`."""
        while self.unreleased:
            record = self.unreleased[-1]
            await self.write(record, "owner", "")
            with contextlib.suppress(ValueError):  # another task has removed it
                self.unreleased.remove(record)


class IdempotencyRecord:
    """One request. Used as a context, it gives the request up unless `finish` was called.

    `id`: the id of the object to make, without its prefix. `first`: no earlier attempt was made. `answer`: the stored answer
    if the request is done already. `key`: the Redis key; None for a request without an `Idempotency-Key`.
    """

    def __init__(
        self,
        records: IdempotencyRecords,
        key: str | None,
        owner: str,
        id: str,
        content: str,
        answer: Any,
        *,
        first: bool,
    ) -> None:
        self._records = records
        self.key = key
        self.owner = owner
        self.id = id
        self._content = content
        self.answer = answer
        self.first = first
        self._ended = key is None or answer is not None

    async def check_same_request(self, *parts: str) -> None:
        """Record what the request asks for, before any work. Raises `InvalidRequest` if the key was used for another request."""
        if self.key is None:
            return
        content = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        if self._content not in ("", content):
            raise InvalidRequest(
                "this Idempotency-Key was used for another request: send a new key with each new request",
                param="Idempotency-Key", code="idempotency_key_reused",
            )  # fmt: skip
        if not self._ended and not await self._records.write(self, "content", content):
            raise Conflict("another server has taken this request over: retry it", param="Idempotency-Key")

    async def is_owner(self) -> bool:
        """Whether this server still owns the request. Another server that took it over makes an object with the same id."""
        return self.key is None or await self._records.owns(self)

    async def finish(self, answer: Any) -> None:
        """Store the answer, which every retry returns from now on."""
        if not self._ended:
            await self._records.write(self, "answer", json.dumps(answer))
            self._ended = True

    async def report_page(self, page: int, pages: int) -> None:
        """Store how far the conversion of the request's file is, until the request ends. Does nothing if Redis is away."""
        if not self._ended:
            with contextlib.suppress(RedisError):
                await self._records.write(self, "page", f"{page} {pages}")

    async def give_up(self, error: BaseException | None) -> None:
        """End the request without an answer. After a client's error the record is deleted, so that a corrected request may use
        the same key; after any other error the record keeps its id for a retry."""
        if self._ended:
            return
        self._ended = True
        key_reused = isinstance(error, InvalidRequest) and error.code == "idempotency_key_reused"
        if not key_reused and isinstance(error, ServerError) and error.status < 500:
            with contextlib.suppress(RedisError):
                await self._records.write(self, "forget", "")
                return
        await self._records.release(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self.give_up(error)
