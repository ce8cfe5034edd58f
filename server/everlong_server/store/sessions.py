"""`Sessions`: sessions in Redis, and the lease that allows one writer at a time for each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from redis.exceptions import RedisError

from everlong_server.errors import Conflict, NotFound, SessionBusy
from everlong_server.store.messages import ADDED, AnswerMessage, open_added, open_message, question_json, seal_messages
from everlong_server.store.records import RecallChoice, Session, new_id, now, title_of
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.hashes import owned_hash
from everlong_server.store.redis.index import REMOVE_FROM_INDEX, page
from everlong_server.store.redis.scripts import flat
from everlong_server.store.snapshot import COPY_SNAPSHOT, FACTS, Snapshot
from everlong_server.store.tenants.quota import Quota, limit_argument
from everlong_server.store.turns import RunningTurns
from everlong_server.store.vault import Vault

_START = (
    COPY_SNAPSHOT
    + """
local function start(reading, session)
  if redis.call('HGET', reading, 'status') == 'ready' then copy_snapshot(reading, session) end
end
"""
)

# KEYS: session, sessions, its messages, and its reading if it has documents
# ARGV: session id, creation time, limit of sessions or '', number n of messages, n messages, fields and values
# Returns 1, 0 (exists already), -1001 (too many)
_CREATE = (
    _START
    + """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
if ARGV[3] ~= '' and redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[3]) then return -1001 end
local n = tonumber(ARGV[4])
redis.call('HSET', KEYS[1], unpack(ARGV, 5 + n))
if n > 0 then redis.call('RPUSH', KEYS[3], unpack(ARGV, 5, 4 + n)) end
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
if KEYS[4] then start(KEYS[4], KEYS[1]) end
return 1
"""
)

# Copies the state of a ready reading into a session that has no state. KEYS: session, reading
_START_SESSION = (
    _START
    + """
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], 'state') == 0 then start(KEYS[2], KEYS[1]) end
return 1
"""
)

# KEYS: session, its messages, new session, its messages, sessions
# ARGV: new id, creation time, limit of sessions or '', id of the session, client
# Returns 1, 0 (there is no such session), -1001 (too many)
_FORK_SESSION = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
if redis.call('EXISTS', KEYS[3]) == 1 then return 1 end
if ARGV[3] ~= '' and redis.call('ZCARD', KEYS[5]) >= tonumber(ARGV[3]) then return -1001 end
redis.call('COPY', KEYS[1], KEYS[3])
redis.call('COPY', KEYS[2], KEYS[4])
redis.call('HSET', KEYS[3], 'id', ARGV[1], 'created_at', ARGV[2], 'version', 0, 'parent', ARGV[4], 'client', ARGV[5])
redis.call('ZADD', KEYS[5], ARGV[2], ARGV[1])
return 1
"""

# KEYS: session. ARGV: number n of fields to remove, n fields, fields and values to set. Returns 1, or 0 (no such session)
_UPDATE = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local n = tonumber(ARGV[1])
if n > 0 then redis.call('HDEL', KEYS[1], unpack(ARGV, 2, 1 + n)) end
if #ARGV > 1 + n then redis.call('HSET', KEYS[1], unpack(ARGV, 2 + n)) end
return 1
"""

# KEYS: session, messages, lease, running turn, sessions, deleted, deletion. ARGV: session id, nonce
# Returns 1, or 0 if another request has deleted the session
_DELETE = (
    REMOVE_FROM_INDEX
    + """
if redis.call('DEL', KEYS[1]) == 0 then return redis.call('GET', KEYS[7]) == ARGV[2] and 1 or 0 end
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
take_out(KEYS[5], ARGV[1], KEYS[6])
redis.call('SET', KEYS[7], ARGV[2], 'EX', 60)
return 1
"""
)

# KEYS: session, lease, messages. ARGV: lease value, expected version, number n of messages, n messages, title to set if the
# session has none, field of the last message, which the messages replace, or '', fields and values
# Returns the new version, 0 (the session is gone), -1 (the lease is lost), -2 (another version)
_COMMIT = """
local now = redis.call('HMGET', KEYS[1], 'version', 'writer')
if not now[1] then return 0 end
if now[2] == ARGV[1] then return tonumber(now[1]) end -- a retry: the reply was lost
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return -1 end
if now[1] ~= ARGV[2] then return -2 end
local n = tonumber(ARGV[3])
local replaced = ARGV[5 + n]
if replaced ~= '' then
  redis.call('RPOP', KEYS[3])
  redis.call('HDEL', KEYS[1], replaced)
end
redis.call('RPUSH', KEYS[3], unpack(ARGV, 4, 3 + n))
if ARGV[4 + n] ~= '' then redis.call('HSETNX', KEYS[1], 'title', ARGV[4 + n]) end
redis.call('HSET', KEYS[1], 'writer', ARGV[1], unpack(ARGV, 6 + n))
redis.call('HINCRBY', KEYS[1], 'messages', replaced == '' and n or n - 1)
return redis.call('HINCRBY', KEYS[1], 'version', 1)
"""

# KEYS: lease, fence. ARGV: replica id, nonce, milliseconds, prefix of replica keys
# Returns the lease's value `replica|nonce|token`, or nothing if a living replica holds the lease.
_ACQUIRE_LEASE = """
local holder = redis.call('GET', KEYS[1])
if holder then
  local replica, nonce = string.match(holder, '^([^|]*)|([^|]*)|')
  if nonce == ARGV[2] then return holder end -- a retry: the reply was lost
  if redis.call('EXISTS', ARGV[4] .. replica) == 1 then return nil end
end
local value = ARGV[1] .. '|' .. ARGV[2] .. '|' .. redis.call('INCR', KEYS[2])
redis.call('SET', KEYS[1], value, 'PX', ARGV[3])
return value
"""

# Releases a lease by its nonce, if the reply with its value was lost. KEYS: lease. ARGV: nonce
_DROP_LEASE = """
local holder = redis.call('GET', KEYS[1])
if holder and string.match(holder, '^[^|]*|([^|]*)|') == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""

# KEYS: lease. ARGV: value, milliseconds to live (0: release it). Returns 1, or 0 if the lease has another value or expired.
_RENEW_LEASE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then redis.call('DEL', KEYS[1]) else redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
"""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write a session: `value` names the replica and the fencing token."""

    session: str
    value: str


@dataclass(eq=False)
class Sessions:
    """One tenant's sessions, shared by all replicas. Sessions of other tenants are not found.

    `replica`: this process's id. `lease_seconds`: how long a lease lasts without being renewed.
    """

    redis: Client
    tenant: str
    quota: Quota
    replica: str
    lease_seconds: float
    vault: Vault
    turns: RunningTurns = field(init=False)

    def __post_init__(self) -> None:
        self.turns = RunningTurns(self.redis, self._lease_ms, self.vault)

    def of(self, tenant: str) -> Sessions:
        """Return the sessions of another tenant."""
        return replace(self, tenant=tenant, quota=self.quota.of(tenant))

    @property
    def _lease_ms(self) -> int:
        return int(self.lease_seconds * 1000)

    async def create(
        self,
        model: str,
        model_name: str,
        documents: Sequence[str],
        *,
        remember: bool = True,
        recall: RecallChoice = None,
        messages: Sequence[dict[str, Any]] = (),
        title: str | None = None,
        parent: str | None = None,
        client: str | None = None,
        id: str | None = None,
    ) -> Session:
        """Create a session and return it. It gets its documents' state at once if their reading is ready. Raises `RateLimited`.

        `id`: the id to use; a session that has it already is returned unchanged. `remember`: False starts with an empty
        memory even if the documents were read, so that they are only searched. `messages`: earlier questions and answers, which
        the memory reads before the first answer. `parent`: the session that they come from. `client`: the program that asked for it.
        """
        # A size marks the session as started.
        snapshot = Snapshot() if remember else Snapshot(size=0)
        session = Session(
            id or new_id("ses"), model, model_name, tuple(documents), snapshot, len(messages), recall=recall,
            title=title, unread=len(messages), parent=parent, client=client,
        )  # fmt: skip
        sealed, added = seal_messages(messages, self.vault)
        reading = [keys.reading(session.reading)] if session.reading and remember else []
        fields = self.vault.sealed(session.fields()) | added | {"tenant": self.tenant}
        done = await self.redis.run_script(
            _CREATE,
            [keys.session(session.id), keys.sessions(self.tenant), keys.session_messages(session.id), *reading],
            [
                session.id, session.created_at, limit_argument(self.quota.limits.sessions), len(sealed), *sealed,
                *flat(fields),
            ],
        )  # fmt: skip
        if done < 0:
            raise self.quota.too_many_sessions()
        return await self.get(session.id)

    async def get(self, session_id: str, *, with_state: bool = False) -> Session:
        """Return the session. Raises `NotFound`. `with_state`: also fetch its state.

        If the session has no state and its documents' reading has become ready, it gets that state now.
        """
        session = await self._stored(session_id, with_state)
        if not session.started and session.reading is not None:
            await self.redis.run_script(_START_SESSION, [keys.session(session_id), keys.reading(session.reading)], [])
            session = await self._stored(session_id, with_state)
        return session

    async def _stored(self, session_id: str, with_state: bool) -> Session:
        fields = (*_FACTS, b"state") if with_state else _FACTS
        stored = await owned_hash(self.redis, self.tenant, keys.session, "ses", session_id, fields)
        if not stored:
            raise _no_session(session_id)
        return Session.of(self.vault.opened(stored))

    async def newest(self, limit: int, after: str | None) -> tuple[list[Session], bool]:
        """Return a page of sessions, newest first, and whether more follow. `after`: the last id of the page before."""
        ids, more = await page(self.redis, keys.sessions(self.tenant), limit, after)
        sessions = []
        for session_id in ids:
            try:
                sessions.append(await self.get(session_id))
            except NotFound:  # deleted since the page was read
                continue
        return sessions, more

    async def messages(self, session_id: str, *, last: int = 0) -> list[dict[str, Any]]:
        """Return the session's messages in order, or only the `last` ones. Raises `NotFound`."""
        # In this order, because a session that is deleted in between has no messages left; and without a transaction, which Redis
        # refuses while its disk is full.
        stored = await self.redis.lrange(keys.session_messages(session_id), -last, -1)
        messages = [open_message(item, self.vault) for item in stored]
        names = ["id", *(f"{ADDED}{message['id']}" for message in messages)]
        exists, *added = await self.redis.hmget(keys.session(session_id), names)
        if not exists:
            raise _no_session(session_id)
        return [message | open_added(field, self.vault) for message, field in zip(messages, added, strict=True)]

    async def message(self, session_id: str, message_id: str) -> dict[str, Any] | None:
        """Return one message of the session, or None. Fetches all of them, so call it rarely."""
        messages = await self.messages(session_id)
        return next((message for message in reversed(messages) if message["id"] == message_id), None)

    async def fork(self, session_id: str, *, id: str | None = None, client: str = "api") -> Session:
        """Copy the session as it was last committed, and return the copy. Raises `NotFound` and `RateLimited`.

        `id`: the id of the copy; a session that has it already is returned unchanged. `client`: the program that asked for it.
        """
        await self._stored(session_id, False)  # checks the tenant, which never changes: it need not be in the same step
        fork_id = id or new_id("ses")
        done = await self.redis.run_script(
            _FORK_SESSION,
            [
                keys.session(session_id), keys.session_messages(session_id),
                keys.session(fork_id), keys.session_messages(fork_id), keys.sessions(self.tenant),
            ],
            [fork_id, now(), limit_argument(self.quota.limits.sessions), session_id, client],
        )  # fmt: skip
        if done < 0:
            raise self.quota.too_many_sessions()
        if not done:
            raise _no_session(session_id)
        return await self.get(fork_id)

    async def update(self, session_id: str, changes: Mapping[str, str | RecallChoice]) -> Session:
        """Set the session's `title` or `recall`, or remove it with None, and return the session. Raises `NotFound`.

        Needs no lease: it changes nothing that an answer writes.
        """
        await self._stored(session_id, False)
        removed = [name for name, value in changes.items() if value is None]
        fields = {
            name: value if name == "title" else json.dumps(value)
            for name, value in changes.items()
            if name not in removed
        }
        args = [len(removed), *removed, *flat(self.vault.sealed(fields))]
        if not await self.redis.run_script(_UPDATE, [keys.session(session_id)], args):
            raise _no_session(session_id)
        return await self.get(session_id)

    async def delete(self, session_id: str) -> None:
        """Delete the session. Raises `NotFound`. An answer that is being generated finds it gone and writes nothing."""
        await self._stored(session_id, False)
        own = (keys.session, keys.session_messages, keys.session_lease, keys.session_turn)
        index = keys.sessions(self.tenant)
        others = (index, keys.deleted(index, session_id), keys.session_deletion(session_id))
        names = [*(key(session_id) for key in own), *others]
        if not await self.redis.run_script(_DELETE, names, [session_id, uuid.uuid4().hex]):
            raise _no_session(session_id)

    # One writer at a time

    async def acquire(self, session_id: str) -> Lease:
        """Acquire the session's lease. Raises `SessionBusy` if a living replica holds it."""
        lease, nonce = keys.session_lease(session_id), uuid.uuid4().hex
        try:
            value = await self.redis.run_script(
                _ACQUIRE_LEASE, [lease, keys.FENCE], [self.replica, nonce, self._lease_ms, keys.REPLICA]
            )
        except (RedisError, asyncio.CancelledError):  # Redis may have granted the lease all the same
            with contextlib.suppress(RedisError):  # the lease then expires by itself
                await asyncio.shield(self.redis.run_script(_DROP_LEASE, [lease], [nonce]))
            raise
        if not value:
            raise SessionBusy(f"session {session_id!r} is generating an answer", param="session_id")
        return Lease(session_id, value.decode())

    async def is_answering(self, session_id: str) -> bool:
        """Whether a living replica holds the session's lease."""
        holder = await self.redis.get(keys.session_lease(session_id))
        return bool(holder and await self.redis.exists(keys.replica(holder.decode().partition("|")[0])))

    async def renew(self, lease: Lease) -> bool:
        """Extend the lease to `lease_seconds` from now. Returns False if it was lost."""
        args = [lease.value, self._lease_ms]
        return bool(await self.redis.run_script(_RENEW_LEASE, [keys.session_lease(lease.session)], args))

    async def release(self, lease: Lease) -> None:
        """Release the lease. Does nothing if it was lost."""
        await self.redis.run_script(_RENEW_LEASE, [keys.session_lease(lease.session)], [lease.value, 0])

    async def commit(
        self, session: Session, lease: Lease, snapshot: Snapshot | None, question: str | None, answer: AnswerMessage,
        replaces: str | None = None,
    ) -> None:  # fmt: skip
        """Write the new snapshot, the question and its answer in one step. The first question becomes the session's title.

        `snapshot`: None leaves the memory as it is; the messages remain unread. `question`: None if the answer replaces the last one, whose
        id is `replaces`. `session`: as it was when the answer began. Raises `NotFound` if it was deleted, and `Conflict` if the lease was lost or
        the version has changed; nothing is written then.
        """
        title = title_of(question) if question else None
        sealed_title = self.vault.seal(title, "title") if title else ""
        asked = [] if question is None else [question_json(question, answer.created_at)]
        messages = [*asked, answer.session_json()]
        sealed, added = seal_messages(messages, self.vault)
        version = await self.redis.run_script(
            _COMMIT,
            [keys.session(session.id), keys.session_lease(session.id), keys.session_messages(session.id)],
            [
                lease.value, session.version, len(sealed), *sealed, sealed_title, f"{ADDED}{replaces}" if replaces else "",
                "unread", session.unread + 2 * len(asked) if snapshot is None else 0, *flat(added),
                *([] if snapshot is None else flat(self.vault.sealed(snapshot.fields()))),
            ],
        )  # fmt: skip
        if version == 0:
            raise NotFound(f"session {session.id!r} was deleted", param="session_id", code="session_not_found")
        if version < 0:
            reason = "the lease was lost" if version == -1 else "another writer came first"
            raise unchanged(session.id, reason)


_FACTS = (
    b"id", b"model", b"model_name", b"documents", b"created_at", b"version", b"messages", *FACTS, b"tenant", b"title",
    b"recall", b"unread", b"parent", b"client",
)  # fmt: skip


def unchanged(session_id: str, reason: str) -> Conflict:
    """Return the error for a message and answer that were not stored."""
    return Conflict(f"session {session_id[:64]!r} was not changed: {reason}", param="session_id")


def _no_session(session_id: str) -> NotFound:
    return NotFound(f"no session {session_id[:64]!r}", param="session_id", code="session_not_found")
