"""`Upload`: a text that a client sends in parts, each stored as a blob; and `Uploads`, which keeps uploads until they expire."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from everlong_server.errors import NotFound, TooLarge
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.hashes import owned_hash
from everlong_server.store.redis.scripts import flat
from everlong_server.store.vault import Vault

# KEYS: any key of everlong, so that a cluster knows which node to ask. Returns Redis's Unix time, seconds and microseconds.
_MOMENT = "return redis.call('TIME')"

# KEYS: upload, index of uploads. ARGV: id, time at which it expires, fields and values
# Changes nothing if it exists: the first server of a request may be late, and parts may have arrived through another one.
_CREATE_UPLOAD = """
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], unpack(ARGV, 3))
  redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
end
return 1
"""

# KEYS: upload, its parts. ARGV: part id, part, bytes of the part, limit of bytes of all parts, limit of parts
# Returns 1, 0 (the upload is not pending), -1 (over a limit)
_ADD_PART = """
if redis.call('HGET', KEYS[1], 'status') ~= 'pending' then return 0 end
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then return 1 end -- a retry: the reply was lost
if redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[5]) then return -1 end
if tonumber(redis.call('HGET', KEYS[1], 'received') or 0) + tonumber(ARGV[3]) > tonumber(ARGV[4]) then return -1 end
redis.call('HINCRBY', KEYS[1], 'received', ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return 1
"""

# KEYS: upload, its parts. Returns 1, or 0: the upload is not pending.
_CANCEL_UPLOAD = """
if redis.call('HGET', KEYS[1], 'status') ~= 'pending' then return 0 end
redis.call('HSET', KEYS[1], 'status', 'cancelled')
redis.call('DEL', KEYS[2])
return 1
"""


@dataclass(frozen=True, slots=True)
class Upload:
    """A text that is sent in parts. `bytes`: the size of the whole text, as announced. `status`: pending, completed or
    cancelled. `file`: the id of the document made of it."""

    id: str
    bytes: int
    filename: str
    purpose: str
    created_at: float
    expires_at: float
    status: str = "pending"
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the text, stored in the blob `name`."""

    id: str
    upload: str
    bytes: int
    created_at: float

    @property
    def name(self) -> str:
        """The name of its blob."""
        return f"{self.upload}.{self.id}"


@dataclass(eq=False)
class Uploads:
    """One tenant's uploads, shared by all replicas.

    `tenant` None: the uploads of all tenants, for the task that deletes expired ones.
    """

    redis: Client
    tenant: str | None
    vault: Vault

    def of(self, tenant: str) -> Uploads:
        """Return the uploads of another tenant."""
        return replace(self, tenant=tenant)

    async def moment(self) -> float:
        """Return the Unix time by Redis's clock, so that a server with a wrong clock does not end an upload early."""
        seconds, micros = await self.redis.run_script(_MOMENT, [keys.UPLOADS], [])
        return int(seconds) + int(micros) / 1e6

    async def create(self, upload: Upload) -> None:
        """Store a new upload. Does nothing if it exists."""
        assert self.tenant is not None, "creating an upload takes a tenant"
        fields = {name: value for name, value in asdict(upload).items() if value is not None} | {"tenant": self.tenant}
        await self.redis.run_script(
            _CREATE_UPLOAD,
            [keys.upload(upload.id), keys.UPLOADS],
            [upload.id, upload.expires_at, *flat(self.vault.sealed(fields))],
        )

    async def get(self, upload_id: str) -> Upload:
        """Return the upload. Raises `NotFound`, also if it has expired."""
        stored = await owned_hash(self.redis, self.tenant, keys.upload, "upload", upload_id)
        if not stored or float(stored[b"expires_at"]) <= await self.moment():
            raise NotFound(
                f"no upload {upload_id[:64]!r}: it was never created, or it has expired",
                param="upload_id",
                code="upload_not_found",
            )
        fields: dict[str, Any] = {name.decode(): value.decode() for name, value in self.vault.opened(stored).items()}
        del fields["tenant"]
        fields.pop("received", None)  # only `add` uses it
        numbers = {"bytes": int(fields["bytes"])} | {name: float(fields[name]) for name in ("created_at", "expires_at")}
        return Upload(**(fields | numbers))

    async def parts(self, upload_id: str) -> Mapping[str, Part]:
        """Return the parts of a pending upload by their ids."""
        stored = await self.redis.hgetall(keys.upload_parts(upload_id))
        return {id.decode(): Part(**json.loads(part)) for id, part in stored.items()}

    async def add(self, part: Part, most_bytes: int, most_parts: int) -> bool:
        """Add a part to its upload. Returns False if the upload is no longer pending.

        Raises `TooLarge` if the upload would have more than `most_bytes` bytes or more than `most_parts` parts.
        """
        done = await self.redis.run_script(
            _ADD_PART,
            [keys.upload(part.upload), keys.upload_parts(part.upload)],
            [part.id, json.dumps(asdict(part)), part.bytes, most_bytes, most_parts],
        )
        if done < 0:
            raise TooLarge(
                f"`data`: with this part of {part.bytes} bytes the upload would exceed its limit of {most_bytes} bytes in "
                f"{most_parts} parts",
                param="data",
            )
        return bool(done)

    async def cancel(self, upload_id: str) -> bool:
        """Cancel the upload. Returns False if it is no longer pending."""
        names = [keys.upload(upload_id), keys.upload_parts(upload_id)]
        return bool(await self.redis.run_script(_CANCEL_UPLOAD, names, []))

    async def expired(self) -> list[str]:
        """Return the ids of the uploads that have expired."""
        late = await self.redis.zrangebyscore(keys.UPLOADS, "-inf", await self.moment())
        return [member.decode() for member in late]

    async def remove(self, upload_id: str) -> None:
        """Remove the upload from Redis. Delete the blobs of its parts first."""
        async with self.redis.pipeline(transaction=True) as pipe:
            pipe.delete(keys.upload(upload_id), keys.upload_parts(upload_id))
            pipe.zrem(keys.UPLOADS, upload_id)
            await pipe.execute()
