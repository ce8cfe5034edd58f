"""`IdempotencyRecords`: requests with an `Idempotency-Key`, so that one that is sent again is not done again.

A record is made before anything is done, with the id that the document, session or message is going to have. Whoever
takes a request up again, after its server was killed, finds by this id what was done: there is no step between an
effect and its record that a kill could hit.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import uuid
from types import TracebackType
from typing import Any, Self

from redis.exceptions import RedisError

from everlong_server.errors import Conflict, InvalidRequest, ServerError
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.scripts import Scripts
from everlong_server.store.vault import Vault

# KEYS: attempt. ARGV: owner `replica|nonce`, id, milliseconds, prefix of replica keys
# Returns nothing (its owner lives and is at it), or {first, again or done; id; fingerprint; answer}
_BEGIN = """
local owner, id, fingerprint, answer = unpack(redis.call('HMGET', KEYS[1], 'owner', 'id', 'fingerprint', 'answer'))
if not id then
  redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'id', ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return {'first', ARGV[2], '', ''}
end
if answer then return {'done', id, fingerprint or '', answer} end
if owner ~= '' and owner ~= ARGV[1] then
  if redis.call('EXISTS', ARGV[4] .. string.match(owner, '^([^|]*)|')) == 1 then return nil end
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1])
return {'again', id, fingerprint or '', ''}
"""

# KEYS: attempt. ARGV: owner, field or 'forget', value, milliseconds. Returns 1, or 0 if it is no longer the owner's.
_END = """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
if ARGV[2] == 'forget' then return redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
"""


class IdempotencyRecords:
    """Of one tenant. `replica`: this process's id; `seconds`: how long an answer is kept."""

    def __init__(
        self,
        redis: Client,
        tenant: str,
        replica: str,
        seconds: float,
        left: list[IdempotencyRecord],
        vault: Vault | None = None,
    ) -> None:
        self._vault = vault or Vault()
        self._scripts = Scripts(redis)
        self._redis = redis
        self._tenant = tenant
        self._replica = replica
        self._seconds = seconds
        self._left = left

    def of(self, tenant: str) -> IdempotencyRecords:
        """The same for another tenant."""
        return IdempotencyRecords(self._redis, tenant, self._replica, self._seconds, self._left, self._vault)

    async def begin(self, key: str | None) -> IdempotencyRecord:
        """An attempt at what the caller names `key`; None is a request that is made once. Raises `Conflict`: it is under way."""
        if key is None:
            return IdempotencyRecord(self, None, "", uuid.uuid4().hex, "", None, first=True)
        record = keys.attempt(self._tenant, hashlib.sha256(key.encode()).hexdigest())
        owner = f"{self._replica}|{uuid.uuid4().hex}"
        try:
            found = await self._scripts.run(
                _BEGIN, [record], [owner, uuid.uuid4().hex, int(self._seconds * 1000), keys.REPLICA]
            )
        except (RedisError, asyncio.CancelledError):  # Redis may have it down all the same
            await self.free(IdempotencyRecord(self, record, owner, "", "", None, first=True))
            raise
        if not found:
            raise Conflict(
                "a request with this Idempotency-Key is still running", param="Idempotency-Key",
                code="idempotency_in_progress", retry_after=1,
            )  # fmt: skip
        kind, made, fingerprint = (part.decode() for part in found[:3])
        answer = self._vault.unseal(found[3], "answer") if found[3] else b""
        return IdempotencyRecord(
            self, record, owner, made, fingerprint, json.loads(answer or b"null"), first=kind == "first"
        )

    async def write(self, attempt: IdempotencyRecord, what: str, value: str) -> bool:
        """Changes the record, if it is still the attempt's."""
        args = [attempt.owner, what, self._vault.sealed({what: value})[what], int(self._seconds * 1000)]
        return bool(await self._scripts.run(_END, [attempt.record or ""], args))

    async def has(self, attempt: IdempotencyRecord) -> bool:
        """Whether the record is still the attempt's."""
        return bool(await self._redis.hget(attempt.record, "owner") == attempt.owner.encode())

    async def free(self, attempt: IdempotencyRecord) -> None:
        """Leaves the attempt to whoever tries next; if Redis is away, as soon as it is back."""
        self._left.append(attempt)
        with contextlib.suppress(RedisError):
            await self.release_pending()

    async def release_pending(self) -> None:
        """Frees what could not be freed before."""
        while self._left:
            attempt = self._left[-1]
            await self.write(attempt, "owner", "")
            with contextlib.suppress(ValueError):  # another task has
                self._left.remove(attempt)


class IdempotencyRecord:
    """One request. As a context it gives up what was not finished in it.

    `id`: of what is made, behind its prefix. `first`: nobody has tried before. `answer`: it is done, with this.
    """

    def __init__(
        self,
        attempts: IdempotencyRecords,
        record: str | None,
        owner: str,
        id: str,
        fingerprint: str,
        answer: Any,
        *,
        first: bool,
    ) -> None:
        self._attempts = attempts
        self.record = record
        self.owner = owner
        self.id = id
        self._fingerprint = fingerprint
        self.answer = answer
        self.first = first
        self._over = record is None or answer is not None

    async def check_same_request(self, *parts: str) -> None:
        """Says what is asked for, before it is done. Raises `InvalidRequest` if it was something else before."""
        if self.record is None:
            return
        fingerprint = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        if self._fingerprint not in ("", fingerprint):
            raise InvalidRequest(
                "this Idempotency-Key was used for another request; each request needs a key of its own",
                param="Idempotency-Key", code="idempotency_key_reused",
            )  # fmt: skip
        if not self._over and not await self._attempts.write(self, "fingerprint", fingerprint):
            raise Conflict("another server has taken this request over", param="Idempotency-Key")

    async def is_owner(self) -> bool:
        """Whether no other server has taken the request over, whose id is this one's too."""
        return self.record is None or await self._attempts.has(self)

    async def finish(self, answer: Any) -> None:
        """It is done: from now on this is the answer."""
        if not self._over:
            await self._attempts.write(self, "answer", json.dumps(answer))
            self._over = True

    async def give_up(self, error: BaseException | None) -> None:
        """It was not done. A request that was refused can be mended under the same key; else the id stays."""
        if self._over:
            return
        self._over = True
        mine = not isinstance(error, InvalidRequest) or error.code != "idempotency_key_reused"
        if mine and isinstance(error, ServerError) and error.status < 500:
            with contextlib.suppress(RedisError):
                await self._attempts.write(self, "forget", "")
                return
        await self._attempts.free(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.give_up(error)
