"""`Response`: what was asked and answered under an id; and `Responses`, which keeps them in Redis.

One that has its answer is never changed: any number of others may go on from it. One that is answered in the
background is written by whoever claimed it last, until it is over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from everlong_server.errors import NotFound
from everlong_server.store.records import DEFAULT_TENANT, Hash, Message, Session, belongs, is_id, now
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.scripts import CLAIMING, STORE, Scripts, flat
from everlong_server.store.vault import Vault

OPEN = ("queued", "in_progress")
"""The statuses of one that is still to be answered."""

# KEYS: response, jobs. ARGV: response id, milliseconds, fields and values. Stores it and queues it at once.
_QUEUE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end -- sent again: its answer was lost
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('XADD', KEYS[2], '*', 'response', ARGV[1], 'tenant', redis.call('HGET', KEYS[1], 'tenant'))
return 1
"""

# KEYS: response, fence. ARGV: by what it is claimed
# Returns {token, attempts} of the one who may write now, or nothing if it is over or gone.
_CLAIM = (
    CLAIMING
    + """
local status = redis.call('HGET', KEYS[1], 'status')
if status ~= 'queued' and status ~= 'in_progress' then return nil end
return claim(KEYS[1], KEYS[2], ARGV[1])
"""
)

# KEYS: response. ARGV: token, fields and values
# Returns 1, or 0: it was cancelled, deleted, or somebody else has it
_WRITE = """
local now = redis.call('HMGET', KEYS[1], 'status', 'fence')
if now[2] ~= ARGV[1] then return 0 end
if now[1] ~= 'queued' and now[1] ~= 'in_progress' then return 1 end -- sent again: its answer was lost
if #ARGV > 1 then redis.call('HSET', KEYS[1], unpack(ARGV, 2)) end
return 1
"""

# KEYS: response. ARGV: fields and values. Ends one that is still to be answered; nobody has it from then on.
_END = """
local status = redis.call('HGET', KEYS[1], 'status')
if status ~= 'queued' and status ~= 'in_progress' then return end
redis.call('HDEL', KEYS[1], 'fence')
redis.call('HSET', KEYS[1], unpack(ARGV))
"""


@dataclass(frozen=True, slots=True)
class Response:
    """`status`: queued, in_progress; completed, incomplete, failed, cancelled.

    `previous`: the response that it goes on from. `documents`: all that the dialogue is about. `said`: what was said to
    it, `instructions` among it unless they were in force before. `request`: how it is to be answered, and whatever the
    API wants to see again. `message`: the answer. `session`: where the dialogue stands behind it, under its digest.
    `tenant`: whose it is.
    """

    id: str
    model: str
    created_at: float
    background: bool
    previous: str | None
    documents: tuple[str, ...]
    said: tuple[Message, ...]
    instructions: str | None
    request: dict[str, Any]
    status: str = "in_progress"
    completed_at: float | None = None
    message: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    session: Session | None = None
    tenant: str = DEFAULT_TENANT
    trace: str = ""
    """The `traceparent` of what asked for it, if it is answered in the background."""

    @property
    def question(self) -> str:
        """What is answered."""
        return self.said[-1].content

    def answered(self, message: dict[str, Any], session: Session) -> Response:
        """With its answer."""
        status = "incomplete" if message["finish_reason"] == "length" else "completed"
        return replace(self, status=status, completed_at=now(), message=message, session=session)

    def request_fields(self) -> dict[str, str | float]:
        """What never changes of it, as it is stored."""
        facts = ("id", "model", "created_at", "background", "previous", "documents", "instructions", "request")
        response = {name: getattr(self, name) for name in facts} | {"said": [asdict(said) for said in self.said]}
        return {"response": json.dumps(response), "status": self.status, "tenant": self.tenant, "trace": self.trace}

    def result_fields(self) -> dict[str, Any]:
        """What came of it, as it is stored."""
        given = {"status": self.status, "completed_at": json.dumps(self.completed_at)}
        given |= {
            name: json.dumps(value) for name in ("message", "error") if (value := getattr(self, name)) is not None
        }
        return given | (self.session.all_fields() if self.session is not None else {})

    @property
    def stored_bytes(self) -> int:
        """What it takes in Redis, about."""
        return sum(
            len(value)
            for value in (self.request_fields() | self.result_fields()).values()
            if isinstance(value, bytes | str)
        )

    @staticmethod
    def of(stored: Hash) -> Response:
        """From a hash, with or without its state."""
        facts = json.loads(stored[b"response"])
        facts |= {"documents": tuple(facts["documents"]), "said": tuple(Message(**said) for said in facts["said"])}

        def given(field: bytes) -> Any:
            return json.loads(stored[field]) if field in stored else None

        return Response(
            **facts,
            status=stored[b"status"].decode(),
            completed_at=given(b"completed_at"),
            message=given(b"message"),
            error=given(b"error"),
            session=Session.of(stored) if b"state_bytes" in stored else None,
            tenant=belongs(stored.get(b"tenant")),
            trace=stored.get(b"trace", b"").decode(),
        )


@dataclass(frozen=True, slots=True)
class ResponseClaim:
    """The right to write a response. `attempts`: how often it was claimed."""

    token: int
    attempts: int


class Responses:
    """A tenant's responses on all replicas. `seconds`: how long one is kept after its last use.

    `tenant` None: everybody's, for those who answer in the background.
    """

    def __init__(self, redis: Client, tenant: str | None, seconds: float, vault: Vault | None = None) -> None:
        self._redis = redis
        self._vault = vault or Vault()
        self._scripts = Scripts(redis)
        self._tenant = tenant
        self._seconds = seconds
        self._ms = int(seconds * 1000)

    @property
    def tenant(self) -> str:
        """Whose responses are made here."""
        assert self._tenant is not None, "a response belongs to somebody"
        return self._tenant

    @property
    def seconds(self) -> float:
        """How long one is kept after its last use."""
        return self._seconds

    def of(self, tenant: str) -> Responses:
        """The same for another tenant."""
        return Responses(self._redis, tenant, self._seconds, self._vault)

    async def get(self, response_id: str, *, with_state: bool = False, param: str = "response_id") -> Response:
        """Raises `NotFound`. With its state it is about to be gone on from: it is kept for longer then."""
        if not is_id("resp", response_id):
            raise no_response(response_id, param)
        key, fields = keys.response(response_id), (*_FACTS, b"state") if with_state else _FACTS
        values = await self._redis.hmget(key, fields)
        stored = {field: value for field, value in zip(fields, values, strict=True) if value is not None}
        if not stored or self._tenant not in (None, belongs(stored.get(b"tenant"))):
            raise no_response(response_id, param)
        if with_state:
            await self._redis.pexpire(key, self._ms)
        return Response.of(self._vault.opened(stored))

    async def keep(self, response: Response) -> None:
        """Stores one that has its answer."""
        fields = self._vault.sealed(response.request_fields() | response.result_fields())
        await self._scripts.run(STORE, [keys.response(response.id)], [self._ms, "", "", *flat(fields)])

    async def delete(self, response_id: str) -> None:
        """Raises `NotFound`. Whoever is answering it finds it gone and writes nothing."""
        await self.get(response_id)
        await self._redis.delete(keys.response(response_id))

    # In the background

    async def queue(self, response: Response) -> None:
        """Stores it and queues its answering, at once."""
        await self._scripts.run(
            _QUEUE,
            [keys.response(response.id), keys.responses(response.model)],
            [response.id, self._ms, *flat(self._vault.sealed(response.request_fields()))],
        )

    async def claim(self, response_id: str, by: str) -> ResponseClaim | None:
        """The right to write it from now on, taken from whoever had it; None if it is over or gone. The same `by` again
        has the same right, as long as nobody else has claimed it."""
        result = await self._scripts.run(_CLAIM, [keys.response(response_id), keys.FENCE], [by])
        return ResponseClaim(int(result[0]), int(result[1])) if result else None

    async def write(self, response_id: str, claim: ResponseClaim, fields: Mapping[str, Any] | None = None) -> bool:
        """Writes `fields` of it; False, and nothing is written, if it was cancelled, deleted or claimed by another."""
        args = [claim.token, *flat(self._vault.sealed(fields or {}))]
        return bool(await self._scripts.run(_WRITE, [keys.response(response_id)], args))

    async def end(self, response_id: str, status: str, error: dict[str, Any] | None = None) -> None:
        """Ends one that is still to be answered, whoever has it; if there is none, or it is over, all is as it was."""
        fields = {"status": status} | ({} if error is None else {"error": json.dumps(error)})
        await self._scripts.run(_END, [keys.response(response_id)], flat(self._vault.sealed(fields)))


_FACTS = (
    b"response", b"status", b"tenant", b"trace", b"completed_at", b"message", b"error",
    b"id", b"model", b"model_name", b"documents", b"created_at", b"version", b"messages", b"position", b"open",
    b"state_bytes", b"state_digest",
)  # fmt: skip


def no_response(response_id: str, param: str) -> NotFound:
    """The error for a response that is not there."""
    code = "previous_response_not_found" if param == "previous_response_id" else "response_not_found"
    return NotFound(f"no response {response_id[:64]!r}", param=param, code=code)
