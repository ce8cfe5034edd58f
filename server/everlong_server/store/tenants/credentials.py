"""`Credentials`: API keys, and single-use tickets in their place. A secret is shown once, when it is made.

A key has the form `evl_ID_SECRET`. The ID is public: it finds the stored key, and names it in lists and in the audit log. Of the
whole key only the SHA-256 is stored. A slow hash protects passwords, which can be guessed. It would not protect 256 random bits
any better, and every request would pay for it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import uuid
from collections.abc import Collection
from dataclasses import asdict, dataclass

from everlong_server.errors import InvalidRequest, NotFound, Unauthenticated
from everlong_server.observability.audit import audit, command_line_user
from everlong_server.store.records import DEFAULT_TENANT, Hash, now
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.scripts import STORE, flat

SCOPES = ("read", "write", "admin")
"""read: view objects. write: create and delete objects, and ask questions. admin: manage the tenant's API keys. No scope implies another."""

TICKET_SECONDS = 30
MAX_NAME = 100

_KEY = re.compile(r"evl_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")
_TICKET = re.compile(r"tkt_[A-Za-z0-9_-]{43}")
_TENANT = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_NO_DIGEST = "0" * 64

# Uses a ticket up. A retry with the same nonce returns the same caller again. KEYS: ticket. ARGV: nonce
# Returns the caller, or nothing if the ticket is unknown or used.
_REDEEM = """
local stored = redis.call('GET', KEYS[1])
if not stored then return nil end
if string.sub(stored, 1, 1) ~= '{' then return string.sub(stored, 1, 32) == ARGV[1] and string.sub(stored, 33) or nil end
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1] .. stored, 'PX', 120000)
return stored
"""

# Revokes a key, unless it was revoked before. KEYS: API key. ARGV: time. Returns the time at which it was revoked.
_REVOKE = """
redis.call('HSETNX', KEYS[1], 'revoked_at', ARGV[1])
return redis.call('HGET', KEYS[1], 'revoked_at')
"""


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated sender of a request. `key`: the id of the API key; None on a server that requires none."""

    tenant: str
    scopes: frozenset[str]
    key: str | None = None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key without its secret. Times are Unix times in seconds; None: never."""

    id: str
    tenant: str
    name: str
    scopes: tuple[str, ...]
    created_at: float
    expires_at: float | None
    revoked_at: float | None

    @property
    def caller(self) -> Caller:
        """The caller that the key authenticates."""
        return Caller(self.tenant, frozenset(self.scopes), self.id)

    def state(self, moment: float) -> str:
        """Return `active`, `expired` or `revoked`, at that Unix time."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= moment else "active"


class Credentials:
    """The API keys and tickets of all tenants."""

    def __init__(self, redis: Client) -> None:
        self._redis = redis

    async def create(
        self, tenant: str, *, name: str = "", scopes: Collection[str] = ("read", "write"), seconds: float | None = None,
        by: str | None = None,
    ) -> tuple[ApiKey, str]:  # fmt: skip
        """Create a key, and return it with its secret, which is stored nowhere. Raises `InvalidRequest`.

        `seconds`: how long it is valid; None: for ever. `by`: who creates it, for the audit log; None: the user of the command
        line.
        """
        _check(tenant, name, scopes, seconds)
        created, secret = now(), new_secret()
        key = ApiKey(
            id=secret.split("_")[1],
            tenant=tenant,
            name=name,
            scopes=tuple(scope for scope in SCOPES if scope in scopes),
            created_at=created,
            expires_at=None if seconds is None else created + seconds,
            revoked_at=None,
        )
        await self._store(key, secret)
        _log("key.created", key, by or command_line_user())
        return key, secret

    async def ensure(self, secret: str, *, by: str) -> ApiKey:
        """Return the key with that secret. If there is none, create it for the default tenant with all scopes.

        A revoked key stays revoked. Raises `ApiKeyConflict` if the secret's id belongs to a key with another secret.
        """
        form = _KEY.fullmatch(secret)
        assert form is not None, "callers check the secret with `is_secret` first"
        stored = await self._redis.hgetall(keys.api_key(form[1]))
        if not stored:
            key = ApiKey(form[1], DEFAULT_TENANT, by, SCOPES, now(), None, None)
            await self._store(key, secret)
            _log("key.created", key, by)
            return key
        if not hmac.compare_digest(stored[b"digest"].decode(), _digest(secret)):
            raise ApiKeyConflict(f"a key with the id {form[1]} and another secret exists")
        return _key(stored)

    async def _store(self, key: ApiKey, secret: str) -> None:
        fields = {
            "id": key.id, "tenant": key.tenant, "name": key.name, "scopes": " ".join(key.scopes), "digest": _digest(secret),
            "created_at": key.created_at, "expires_at": "" if key.expires_at is None else key.expires_at,
        }  # fmt: skip
        await self._redis.run_script(
            STORE, [keys.api_key(key.id), keys.API_KEYS], ["", key.id, key.created_at, *flat(fields)]
        )

    async def all(self, tenant: str | None = None) -> list[ApiKey]:
        """Return all keys, or those of one tenant, newest first, including expired and revoked ones."""
        matching = []
        for member in await self._redis.zrevrange(keys.API_KEYS, 0, -1):
            stored = await self._redis.hgetall(keys.api_key(member.decode()))
            if stored and (key := _key(stored)).tenant == (tenant or key.tenant):
                matching.append(key)
        return matching

    async def usable(self) -> bool:
        """Whether there is at least one active key."""
        return any(key.state(now()) == "active" for key in await self.all())

    async def revoke(self, key_id: str, *, tenant: str | None = None, by: str | None = None) -> ApiKey:
        """Revoke the key, effective on every replica from the next request on. Raises `NotFound`, also for a key of another
        tenant than `tenant`."""
        stored = await self._redis.hgetall(keys.api_key(key_id)) if re.fullmatch(r"[0-9a-f]{16}", key_id) else None
        if not stored or (tenant is not None and _key(stored).tenant != tenant):
            raise NotFound(f"no key {key_id[:64]!r}", param="key_id", code="key_not_found")
        moment = now()
        if float(await self._redis.run_script(_REVOKE, [keys.api_key(key_id)], [moment])) == moment:
            _log("key.revoked", _key(stored), by or command_line_user())
        return _key(await self._redis.hgetall(keys.api_key(key_id)))

    async def authenticate(self, secret: str | None) -> Caller:
        """Return the caller with that secret. Raises `Unauthenticated` if it is missing, unknown, wrong, expired or revoked."""
        if secret is None:
            raise Unauthenticated(
                "the request has no API key: send it as `Authorization: Bearer evl_…`", code="missing_api_key"
            )
        form = _KEY.fullmatch(secret)
        stored = await self._redis.hgetall(keys.api_key(form[1])) if form else {}
        expected = stored.get(b"digest", b"").decode() or _NO_DIGEST
        # Compared in constant time even if the key does not exist, so that the time reveals nothing about stored keys.
        if not hmac.compare_digest(expected, _digest(secret)):
            raise _incorrect()
        return self._active(stored).caller

    async def check(self, caller: Caller) -> None:
        """Raise `Unauthenticated` if the caller's key is no longer active. For connections that outlive a request."""
        if caller.key is not None:
            self._active(await self._redis.hgetall(keys.api_key(caller.key)))

    def _active(self, stored: Hash) -> ApiKey:
        if not stored:
            raise _incorrect()
        key = _key(stored)
        if (state := key.state(now())) != "active":
            raise Unauthenticated(f"this API key is {state}", code=f"api_key_{state}")
        return key

    # Tickets

    async def ticket(self, caller: Caller) -> tuple[str, float]:
        """Return a ticket, and the Unix time at which it expires. It authenticates the caller once, within `TICKET_SECONDS`."""
        secret = f"tkt_{secrets.token_urlsafe(32)}"
        value = json.dumps({"tenant": caller.tenant, "scopes": sorted(caller.scopes), "key": caller.key})
        ends = now() + TICKET_SECONDS
        await self._redis.set(keys.ticket(_digest(secret)), value, ex=TICKET_SECONDS)
        return secret, ends

    async def redeem(self, ticket: str) -> Caller:
        """Use the ticket up and return its caller. Raises `Unauthenticated`."""
        value = None
        if _TICKET.fullmatch(ticket):
            value = await self._redis.run_script(_REDEEM, [keys.ticket(_digest(ticket))], [uuid.uuid4().hex])
        if value is None:
            raise Unauthenticated("this ticket is unknown, used or expired: request a new one", code="invalid_ticket")
        stored = json.loads(value)
        caller = Caller(stored["tenant"], frozenset(stored["scopes"]), stored["key"])
        await self.check(caller)
        return caller


class ApiKeyConflict(Exception):
    """A key with that id and another secret exists."""


def new_secret() -> str:
    """Return a new secret. It belongs to no key yet."""
    return f"evl_{secrets.token_hex(8)}_{secrets.token_urlsafe(32)}"


def is_secret(text: str) -> bool:
    """Whether the text has the form of a secret."""
    return _KEY.fullmatch(text) is not None


def is_tenant(name: str) -> bool:
    """Whether a tenant may have that name. Only such names may become part of a Redis key."""
    return _TENANT.fullmatch(name) is not None


def _check(tenant: str, name: str, scopes: Collection[str], seconds: float | None) -> None:
    if not is_tenant(tenant):
        raise InvalidRequest(
            f"`tenant` must be 1 to 64 characters of a-z 0-9 _ . -, the first a letter or a digit; got {tenant[:80]!r}",
            param="tenant",
        )
    if len(name) > MAX_NAME or not name.isprintable():
        raise InvalidRequest(
            f"`name` must be at most {MAX_NAME} printable characters; got {len(name)} characters", param="name"
        )
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise InvalidRequest(
            f"`scopes` must be one or more of {', '.join(SCOPES)}; got {', '.join(unknown) or 'none'}", param="scopes"
        )
    if seconds is not None and not 1 <= seconds <= 1e10:
        raise InvalidRequest(f"`expires` must be 1 to 10,000,000,000 seconds; got {seconds:g}", param="expires")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _incorrect() -> Unauthenticated:
    return Unauthenticated("this server does not know this API key", code="invalid_api_key")


def _key(stored: Hash) -> ApiKey:
    expires, revoked = stored.get(b"expires_at"), stored.get(b"revoked_at")
    return ApiKey(
        id=stored[b"id"].decode(),
        tenant=stored[b"tenant"].decode(),
        name=stored[b"name"].decode(),
        scopes=tuple(stored[b"scopes"].decode().split()),
        created_at=float(stored[b"created_at"]),
        expires_at=float(expires) if expires else None,
        revoked_at=float(revoked) if revoked else None,
    )


def _log(event: str, key: ApiKey, by: str) -> None:
    """Write an audit event for a change of an API key."""
    audit(event, by, **asdict(key))
