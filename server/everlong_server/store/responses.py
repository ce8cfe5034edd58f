"""`Response`: a stored answer under an id that others continue from; and `Responses`, which keeps them in Redis.

A response that has its answer never changes, so any number of others can continue from it. A background response is written
by whoever claimed it last, until it ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from everlong_models import ToolCall
from everlong_server.errors import NotFound
from everlong_server.store import snapshot
from everlong_server.store.jobs import Claim, claim_work
from everlong_server.store.messages import AnswerMessage
from everlong_server.store.records import DEFAULT_TENANT, Hash, Message, Session, now
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.hashes import owned_hash
from everlong_server.store.redis.scripts import CLAIMING, STORE, flat
from everlong_server.store.vault import Vault
from everlong_server.store.vector_stores.file_search import SearchCall

OPEN = ("queued", "in_progress")
"""The statuses of a response that has no answer yet."""

# Stores a response and queues it, in one step.
# KEYS: response, jobs. ARGV: response id, milliseconds to live, fields and values
_QUEUE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end -- a retry: the reply was lost
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('XADD', KEYS[2], '*', 'response', ARGV[1], 'tenant', redis.call('HGET', KEYS[1], 'tenant'))
return 1
"""

# KEYS: response, fence. ARGV: claimant
# Returns {token, attempts} for the claimant, who alone may write from now on; or nothing if the response has ended or is gone.
_CLAIM = (
    CLAIMING
    + """
local status = redis.call('HGET', KEYS[1], 'status')
if status ~= 'queued' and status ~= 'in_progress' then return nil end
return claim(KEYS[1], KEYS[2], ARGV[1])
"""
)

# KEYS: response. ARGV: token, fields and values
# Returns 1, or 0 if the response was cancelled, deleted or claimed by another.
_WRITE = """
local now = redis.call('HMGET', KEYS[1], 'status', 'fence')
if now[2] ~= ARGV[1] then return 0 end
if now[1] ~= 'queued' and now[1] ~= 'in_progress' then return 1 end -- a retry: the reply was lost
if #ARGV > 1 then redis.call('HSET', KEYS[1], unpack(ARGV, 2)) end
return 1
"""

# Ends a response that has no answer yet. Its claim ends with it. KEYS: response. ARGV: fields and values
_END = """
local status = redis.call('HGET', KEYS[1], 'status')
if status ~= 'queued' and status ~= 'in_progress' then return end
redis.call('HDEL', KEYS[1], 'fence')
redis.call('HSET', KEYS[1], unpack(ARGV))
"""


@dataclass(frozen=True, slots=True)
class Response:
    """A request for an answer, and the answer once there is one.

    `status`: queued, in_progress, completed, incomplete, failed or cancelled. `previous`: the id of the response that it
    continues from. `documents`: all documents that the conversation is about. `said`: the new messages of the request; they
    include `instructions` unless these were in force before. `request`: sampling parameters, and fields that the API shows
    again. `message`: the answer. `session`: the memory after the answer, under the chat's digest. `tenant`: its owner.
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
    message: AnswerMessage | None = None
    error: dict[str, Any] | None = None
    session: Session | None = None
    searched: SearchCall | None = None
    """The search in vector stores that the answer rests on."""
    tenant: str = DEFAULT_TENANT
    trace: str = ""
    """The `traceparent` of the request, if it is answered in the background."""

    @property
    def question(self) -> str:
        """What the user asked: the last message that is not the result of a tool."""
        return str(self.request.get("asked") or self.said[-1].content)

    @property
    def system(self) -> str | None:
        """The instructions and system messages that hold for it."""
        if "system" in self.request:
            return str(self.request["system"])
        # The release before stored nothing else.
        told = [message.content for message in self.said if message.role == "system"]
        if self.instructions and not (told and told[0].startswith(self.instructions)):
            told.insert(0, self.instructions)
        return "\n\n".join(told) or None

    def answered(self, message: AnswerMessage, session: Session) -> Response:
        """Return the response with its answer: completed, or incomplete if it reached the token limit or was cut in a loop."""
        status = "incomplete" if message.finish_reason in ("length", "repetition") else "completed"
        return replace(self, status=status, completed_at=now(), message=message, session=session)

    def request_fields(self) -> dict[str, str | float]:
        """Return the fields of its hash that never change."""
        facts = ("id", "model", "created_at", "background", "previous", "documents", "instructions", "request")
        response = {name: getattr(self, name) for name in facts} | {"said": [asdict(message) for message in self.said]}
        return {"response": json.dumps(response), "status": self.status, "tenant": self.tenant, "trace": self.trace}

    def result_fields(self) -> dict[str, Any]:
        """Return the fields of its hash that the answer, or an error, sets."""
        fields = {"status": self.status, "completed_at": json.dumps(self.completed_at)}
        if self.message is not None:
            fields["message"] = json.dumps(self.message.json())
            if self.message.tool_calls:  # in a field of their own, which the release before ignores
                fields["tool_calls"] = json.dumps([asdict(call) for call in self.message.tool_calls])
        if self.searched is not None:
            fields["searched"] = json.dumps(self.searched.json())
        if self.error is not None:
            fields["error"] = json.dumps(self.error)
        return fields | (self.session.fields() if self.session is not None else {})

    @property
    def stored_bytes(self) -> int:
        """The bytes that it takes in Redis, approximately."""
        return sum(
            len(value)
            for value in (self.request_fields() | self.result_fields()).values()
            if isinstance(value, bytes | str)
        )

    @staticmethod
    def of(stored: Hash) -> Response:
        """Decode a hash, with or without its state."""
        facts = json.loads(stored[b"response"])
        messages = tuple(Message(**message) for message in facts["said"])
        facts |= {"documents": tuple(facts["documents"]), "said": messages}

        def decoded(field: bytes) -> Any:
            return json.loads(stored[field]) if field in stored else None

        message = AnswerMessage.of(decoded(b"message")) if b"message" in stored else None
        if message is not None and b"tool_calls" in stored:
            message = replace(message, tool_calls=tuple(ToolCall(**call) for call in decoded(b"tool_calls")))
        return Response(
            **facts,
            status=stored[b"status"].decode(),
            completed_at=decoded(b"completed_at"),
            message=message,
            error=decoded(b"error"),
            session=Session.of(stored) if b"state_bytes" in stored else None,
            searched=SearchCall.of(decoded(b"searched")) if b"searched" in stored else None,
            tenant=stored[b"tenant"].decode(),
            trace=stored[b"trace"].decode(),
        )


@dataclass(eq=False)
class Responses:
    """One tenant's responses, shared by all replicas. `seconds`: how long a response is kept after its last use.

    `tenant` None: the responses of all tenants, for the workers that answer in the background.
    """

    redis: Client
    tenant: str | None
    seconds: float
    vault: Vault

    def of(self, tenant: str) -> Responses:
        """Return the responses of another tenant."""
        return replace(self, tenant=tenant)

    @property
    def _ms(self) -> int:
        return int(self.seconds * 1000)

    async def get(self, response_id: str, *, with_state: bool = False, param: str = "response_id") -> Response:
        """Return the response. Raises `NotFound`, naming `param`.

        `with_state`: also fetch its state, to continue from it; this counts as a use and extends its life.
        """
        fields = (*_FACTS, b"state") if with_state else _FACTS
        stored = await owned_hash(self.redis, self.tenant, keys.response, "resp", response_id, fields)
        if not stored:
            raise no_response(response_id, param)
        if with_state:
            await self.redis.pexpire(keys.response(response_id), self._ms)
        return Response.of(self.vault.opened(stored))

    async def keep(self, response: Response) -> None:
        """Store a response that has its answer."""
        fields = self.vault.sealed(response.request_fields() | response.result_fields())
        await self.redis.run_script(STORE, [keys.response(response.id)], [self._ms, "", "", *flat(fields)])

    async def delete(self, response_id: str) -> None:
        """Delete the response. Raises `NotFound`. A worker that is still answering it finds it gone and writes nothing."""
        await self.get(response_id)
        await self.redis.delete(keys.response(response_id))

    # In the background

    async def queue(self, response: Response) -> None:
        """Store the response and queue it for a background worker, in one step."""
        await self.redis.run_script(
            _QUEUE,
            [keys.response(response.id), keys.responses(response.model)],
            [response.id, self._ms, *flat(self.vault.sealed(response.request_fields()))],
        )

    async def claim(self, response_id: str, by: str) -> Claim | None:
        """Claim the response for the claimant `by`: see `claim_work`."""
        return await claim_work(self.redis, _CLAIM, keys.response(response_id), by)

    async def write(self, response_id: str, claim: Claim, fields: Mapping[str, Any] | None = None) -> bool:
        """Write fields of its hash. Returns False, having written nothing, if it was cancelled, deleted or claimed by another.

        Without `fields`, only checks the claim.
        """
        args = [claim.token, *flat(self.vault.sealed(fields or {}))]
        return bool(await self.redis.run_script(_WRITE, [keys.response(response_id)], args))

    async def end(self, response_id: str, status: str, error: dict[str, Any] | None = None) -> None:
        """End a response that has no answer yet, whoever has claimed it. Does nothing if it has ended or is gone."""
        fields = {"status": status} | ({} if error is None else {"error": json.dumps(error)})
        await self.redis.run_script(_END, [keys.response(response_id)], flat(self.vault.sealed(fields)))


_FACTS = (
    b"response", b"status", b"tenant", b"trace", b"completed_at", b"message", b"error", b"tool_calls", b"searched",
    b"id", b"model", b"model_name", b"documents", b"created_at", b"version", b"messages", *snapshot.FACTS,
)  # fmt: skip


def no_response(response_id: str, param: str) -> NotFound:
    """Return the error for a response that does not exist."""
    code = "previous_response_not_found" if param == "previous_response_id" else "response_not_found"
    return NotFound(f"no response {response_id[:64]!r}", param=param, code=code)
