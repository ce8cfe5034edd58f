"""`Credentials`: API keys, and the tickets that stand for one once. Secrets are shown when they are made and never again.

A key reads `evl_ID_SECRET`. The ID is public: it finds the record, and names the key in lists and in the audit log. Of
the whole only its SHA-256 is stored. A slow hash would protect what can be guessed, a password; nobody guesses 256
random bits however quick the hash is, and a slow one would have to be paid for with every request.
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
from everlong_server.store.redis.scripts import STORE, Scripts, flat

SCOPES = ("read", "write", "admin")
"""read: to look. write: to make, to ask and to delete. admin: the keys of one's own tenant. None implies another."""

TICKET_SECONDS = 30
MAX_NAME = 100

_KEY = re.compile(r"evl_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")
_TICKET = re.compile(r"tkt_[A-Za-z0-9_-]{43}")
_TENANT = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_NOBODY = "0" * 64

# KEYS: ticket. ARGV: nonce. Returns whom the ticket stands for, or nothing. It is used up: only the same nonce,
# sent again, still gets what it got.
_REDEEM = """
local held = redis.call('GET', KEYS[1])
if not held then return nil end
if string.sub(held, 1, 1) ~= '{' then return string.sub(held, 1, 32) == ARGV[1] and string.sub(held, 33) or nil end
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1] .. held, 'PX', 120000)
return held
"""

# KEYS: API key. ARGV: time. Returns the time at which it was revoked.
_REVOKE = """
redis.call('HSETNX', KEYS[1], 'revoked_at', ARGV[1])
return redis.call('HGET', KEYS[1], 'revoked_at')
"""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: for which tenant, and what they may do. `key`: the id of their API key; None where none is asked for."""

    tenant: str
    scopes: frozenset[str]
    key: str | None = None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key; its secret is not. Times are Unix times in seconds; None: never."""

    id: str
    tenant: str
    name: str
    scopes: tuple[str, ...]
    created_at: float
    expires_at: float | None
    revoked_at: float | None

    @property
    def caller(self) -> Caller:
        """Whoever has the key."""
        return Caller(self.tenant, frozenset(self.scopes), self.id)

    def state(self, moment: float) -> str:
        """`active`, `expired` or `revoked`."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= moment else "active"


class Credentials:
    """The keys of all tenants."""

    def __init__(self, redis: Client) -> None:
        self._redis = redis
        self._scripts = Scripts(redis)

    async def create(
        self, tenant: str, *, name: str = "", scopes: Collection[str] = ("read", "write"), seconds: float | None = None,
        by: str | None = None,
    ) -> tuple[ApiKey, str]:  # fmt: skip
        """A new key and its secret, which is nowhere afterwards. `seconds`: its life; None has no end. `by`: None is who has
        typed a command.

        Raises `InvalidRequest`.
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
        """The key of that secret: made for the default tenant, with all scopes, unless it is there. One that was revoked
        stays so.

        Raises `KeyTaken` if there is another key with its id.
        """
        form = _KEY.fullmatch(secret)
        assert form is not None, "a secret is checked before it comes here"
        stored = await self._redis.hgetall(keys.api_key(form[1]))
        if not stored:
            key = ApiKey(form[1], DEFAULT_TENANT, by, SCOPES, now(), None, None)
            await self._store(key, secret)
            _log("key.created", key, by)
            return key
        if not hmac.compare_digest(stored[b"digest"].decode(), _digest(secret)):
            raise KeyTaken(f"the key {form[1]} has another secret")
        return _key(stored)

    async def _store(self, key: ApiKey, secret: str) -> None:
        fields = {
            "id": key.id, "tenant": key.tenant, "name": key.name, "scopes": " ".join(key.scopes), "digest": _digest(secret),
            "created_at": key.created_at, "expires_at": "" if key.expires_at is None else key.expires_at,
        }  # fmt: skip
        await self._scripts.run(
            STORE, [keys.api_key(key.id), keys.API_KEYS], ["", key.id, key.created_at, *flat(fields)]
        )

    async def all(self, tenant: str | None = None) -> list[ApiKey]:
        """Every key, or those of one tenant, the newest first; also those that are no longer good."""
        found = []
        for member in await self._redis.zrevrange(keys.API_KEYS, 0, -1):
            stored = await self._redis.hgetall(keys.api_key(member.decode()))
            if stored and (key := _key(stored)).tenant == (tenant or key.tenant):
                found.append(key)
        return found

    async def usable(self) -> bool:
        """Whether there is a key that opens anything."""
        return any(key.state(now()) == "active" for key in await self.all())

    async def revoke(self, key_id: str, *, tenant: str | None = None, by: str | None = None) -> ApiKey:
        """Ends the key, on every replica from the next request on. Raises `NotFound`, for another tenant's key too."""
        stored = await self._redis.hgetall(keys.api_key(key_id)) if re.fullmatch(r"[0-9a-f]{16}", key_id) else None
        if not stored or (tenant is not None and _key(stored).tenant != tenant):
            raise NotFound(f"no key {key_id[:64]!r}", param="key_id", code="key_not_found")
        moment = now()
        if float(await self._scripts.run(_REVOKE, [keys.api_key(key_id)], [moment])) == moment:
            _log("key.revoked", _key(stored), by or command_line_user())
        return _key(await self._redis.hgetall(keys.api_key(key_id)))

    async def authenticate(self, secret: str | None) -> Caller:
        """Whose secret that is. Raises `Unauthenticated`: none, or a key that is unknown, wrong, expired or revoked."""
        if secret is None:
            raise Unauthenticated(
                "no API key was given: send it as `Authorization: Bearer evl_…`", code="missing_api_key"
            )
        form = _KEY.fullmatch(secret)
        stored = await self._redis.hgetall(keys.api_key(form[1])) if form else {}
        expected = stored.get(b"digest", b"").decode() or _NOBODY
        # Compared in constant time, also where there is no such key: how long it takes says nothing of what is stored.
        if not hmac.compare_digest(expected, _digest(secret)):
            raise _incorrect()
        return self._good(stored).caller

    async def check(self, caller: Caller) -> None:
        """Raises `Unauthenticated` if the caller's key is no longer good. For connections that outlive a request."""
        if caller.key is not None:
            self._good(await self._redis.hgetall(keys.api_key(caller.key)))

    def _good(self, stored: Hash) -> ApiKey:
        if not stored:
            raise _incorrect()
        key = _key(stored)
        if (state := key.state(now())) != "active":
            raise Unauthenticated(f"this API key is {state}", code=f"api_key_{state}")
        return key

    # Tickets

    async def ticket(self, caller: Caller) -> tuple[str, float]:
        """A secret that stands for the caller, once and within `TICKET_SECONDS`; and when it ends."""
        secret = f"tkt_{secrets.token_urlsafe(32)}"
        value = json.dumps({"tenant": caller.tenant, "scopes": sorted(caller.scopes), "key": caller.key})
        ends = now() + TICKET_SECONDS
        await self._redis.set(keys.ticket(_digest(secret)), value, ex=TICKET_SECONDS)
        return secret, ends

    async def redeem(self, ticket: str) -> Caller:
        """Whom the ticket stands for; it is used up. Raises `Unauthenticated`."""
        value = None
        if _TICKET.fullmatch(ticket):
            value = await self._scripts.run(_REDEEM, [keys.ticket(_digest(ticket))], [uuid.uuid4().hex])
        if value is None:
            raise Unauthenticated("this ticket is unknown, used or too old", code="invalid_ticket")
        stored = json.loads(value)
        caller = Caller(stored["tenant"], frozenset(stored["scopes"]), stored["key"])
        await self.check(caller)
        return caller


class KeyTaken(Exception):
    """There is another key with that id."""


def new_secret() -> str:
    """A key that is stored nowhere."""
    return f"evl_{secrets.token_hex(8)}_{secrets.token_urlsafe(32)}"


def is_secret(text: str) -> bool:
    """Whether that can be a key."""
    return _KEY.fullmatch(text) is not None


def is_tenant(name: str) -> bool:
    """Whether a tenant can be called that. Only such names become part of a Redis key."""
    return _TENANT.fullmatch(name) is not None


def _check(tenant: str, name: str, scopes: Collection[str], seconds: float | None) -> None:
    if not is_tenant(tenant):
        raise InvalidRequest(
            f"tenant: {tenant[:80]!r}; it is at most 64 of a-z 0-9 _ . - and begins with a letter or a digit",
            param="tenant",
        )
    if len(name) > MAX_NAME or not name.isprintable():
        raise InvalidRequest(f"name: at most {MAX_NAME} printable characters", param="name")
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise InvalidRequest(f"scopes: {', '.join(unknown) or 'none'}; there are {', '.join(SCOPES)}", param="scopes")
    if seconds is not None and not 1 <= seconds <= 1e10:
        raise InvalidRequest(f"expires: {seconds} s; at least 1", param="expires")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _incorrect() -> Unauthenticated:
    return Unauthenticated("this API key is not known here", code="invalid_api_key")


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
    """For each change of who gets in."""
    audit(event, by, **asdict(key))
