"""`Upload`: a text that comes in parts, each of them a blob; and `Uploads`, which keeps them in Redis until they expire."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from everlong_server.errors import NotFound, TooLarge
from everlong_server.store.records import belongs, is_id
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.scripts import STORE, Scripts, flat
from everlong_server.store.vault import Vault

# KEYS: any of ours. Returns Redis's time of day, seconds and microseconds.
_MOMENT = "return redis.call('TIME')"

# KEYS: upload, its parts. ARGV: part id, part, its bytes, most bytes of all, most parts.
# Returns 1, 0 (the upload is not pending), -1 (there is no room for it)
_ADD_PART = """
if redis.call('HGET', KEYS[1], 'status') ~= 'pending' then return 0 end
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then return 1 end -- sent again: its answer was lost
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
    """`bytes`: of the whole text. `status`: pending, completed, cancelled. `file`: the document that it has become."""

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
    """A piece of the text, in the blob `name`."""

    id: str
    upload: str
    bytes: int
    created_at: float

    @property
    def name(self) -> str:
        """Of its blob."""
        return f"{self.upload}.{self.id}"


class Uploads:
    """A tenant's uploads on all replicas. `tenant` None: everybody's, for those who throw away what has expired."""

    def __init__(self, redis: Client, tenant: str | None, vault: Vault | None = None) -> None:
        self._redis = redis
        self._vault = vault or Vault()
        self._scripts = Scripts(redis)
        self._tenant = tenant

    def of(self, tenant: str) -> Uploads:
        """The same for another tenant."""
        return Uploads(self._redis, tenant, self._vault)

    async def moment(self) -> float:
        """Now, by Redis's clock: an upload's time is the same for all servers, and none whose clock is wrong ends it."""
        seconds, micros = await self._scripts.run(_MOMENT, [keys.UPLOADS], [])
        return int(seconds) + int(micros) / 1e6

    async def create(self, upload: Upload) -> None:
        """Stores it."""
        assert self._tenant is not None, "an upload belongs to somebody"
        fields = {name: value for name, value in asdict(upload).items() if value is not None} | {"tenant": self._tenant}
        await self._scripts.run(
            STORE,
            [keys.upload(upload.id), keys.UPLOADS],
            ["", upload.id, upload.expires_at, *flat(self._vault.sealed(fields))],
        )

    async def get(self, upload_id: str) -> Upload:
        """Raises `NotFound`, also of one that has expired."""
        stored = await self._redis.hgetall(keys.upload(upload_id)) if is_id("upload", upload_id) else None
        if stored:
            stored.pop(b"received", None)  # counted for `add`
        foreign = stored and self._tenant not in (None, belongs(stored.pop(b"tenant", None)))
        if not stored or foreign or float(stored[b"expires_at"]) <= await self.moment():
            raise NotFound(
                f"no upload {upload_id[:64]!r}: it was never made, or it has expired",
                param="upload_id",
                code="upload_not_found",
            )
        fields: dict[str, Any] = {name.decode(): value.decode() for name, value in self._vault.opened(stored).items()}
        numbers = {"bytes": int(fields["bytes"])} | {name: float(fields[name]) for name in ("created_at", "expires_at")}
        return Upload(**(fields | numbers))

    async def parts(self, upload_id: str) -> Mapping[str, Part]:
        """The parts of a pending upload, by their ids."""
        stored = await self._redis.hgetall(keys.upload_parts(upload_id))
        return {id.decode(): Part(**json.loads(part)) for id, part in stored.items()}

    async def add(self, part: Part, most_bytes: int, most_parts: int) -> bool:
        """Makes the part the upload's; False if that is not pending any more. Raises `TooLarge` if the upload would have more
        bytes, or parts."""
        done = await self._scripts.run(
            _ADD_PART,
            [keys.upload(part.upload), keys.upload_parts(part.upload)],
            [part.id, json.dumps(asdict(part)), part.bytes, most_bytes, most_parts],
        )
        if done < 0:
            raise TooLarge(
                f"the upload has no room for the part: it holds {most_bytes} bytes in {most_parts} parts", param="data"
            )
        return bool(done)

    async def cancel(self, upload_id: str) -> bool:
        """Cancels it; False if it is not pending any more."""
        names = [keys.upload(upload_id), keys.upload_parts(upload_id)]
        return bool(await self._scripts.run(_CANCEL_UPLOAD, names, []))

    async def expired(self) -> list[str]:
        """The ids of those whose time is up."""
        late = await self._redis.zrangebyscore(keys.UPLOADS, "-inf", await self.moment())
        return [member.decode() for member in late]

    async def remove(self, upload_id: str) -> None:
        """Forgets it. Its parts' blobs are to be deleted before."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.delete(keys.upload(upload_id), keys.upload_parts(upload_id))
            pipe.zrem(keys.UPLOADS, upload_id)
            await pipe.execute()
