"""`BatchFile`: a file of requests or of their results, which is never read into a memory; and `BatchFiles`, one tenant's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from everlong_server.errors import NotFound
from everlong_server.store.backup.running import is_running
from everlong_server.store.records import Hash, now
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.hashes import owned_hash
from everlong_server.store.redis.index import REMOVE_FROM_INDEX, merged_page
from everlong_server.store.redis.scripts import STORE, flat
from everlong_server.store.tenants.quota import Quota
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.vault import Vault

Purpose = Literal["batch", "batch_output"]
_RECORD_BYTES = 512
"""What a record counts towards the tenant's bytes, in addition to the file."""

# Removes members of an index whose objects have expired: at most some of the oldest. KEYS: index. ARGV: prefix of the objects' keys
REMOVE_EXPIRED = """
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, 9)) do
  if redis.call('EXISTS', ARGV[1] .. id) == 0 then redis.call('ZREM', KEYS[1], id) end
end
"""

# KEYS: file, files, mark of the deleted file. ARGV: id
_DELETE = (
    REMOVE_FROM_INDEX
    + """
redis.call('DEL', KEYS[1])
take_out(KEYS[2], ARGV[1], KEYS[3])
"""
)

# Makes a file live longer, never shorter. KEYS: file. ARGV: time until which it lives, in seconds
_EXTEND = """
local until_now = redis.call('HGET', KEYS[1], 'expires_at')
if until_now and tonumber(until_now) < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'expires_at', ARGV[1])
  redis.call('PEXPIREAT', KEYS[1], math.floor(ARGV[1] * 1000))
end
"""


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A stored file. Its blob has its id as name. `created_at`, `expires_at`: Unix times in seconds."""

    id: str
    purpose: Purpose
    filename: str
    bytes: int
    created_at: float
    expires_at: float

    @property
    def counted(self) -> int:
        """The bytes that it counts towards its tenant's quota."""
        return self.bytes + _RECORD_BYTES

    def fields(self, tenant: str) -> dict[str, Any]:
        """Return the fields of the hash that stores it."""
        return {
            "id": self.id, "tenant": tenant, "purpose": self.purpose, "filename": self.filename, "bytes": self.bytes,
            "created_at": self.created_at, "expires_at": self.expires_at,
        }  # fmt: skip

    @staticmethod
    def of(stored: Hash) -> BatchFile:
        """Decode a hash."""
        return BatchFile(
            stored[b"id"].decode(),
            cast(Purpose, stored[b"purpose"].decode()),
            stored[b"filename"].decode(),
            int(stored[b"bytes"]),
            float(stored[b"created_at"]),
            float(stored[b"expires_at"]),
        )


@dataclass(eq=False)
class BatchFiles:
    """One tenant's files, shared by all replicas. Those of other tenants are not found.

    Redis removes the record of an expired file, and a sweep of the blob store its content.
    """

    redis: Client
    blobs: Blobs
    tenant: str
    quota: Quota
    vault: Vault

    def of(self, tenant: str) -> BatchFiles:
        """Return the files of another tenant."""
        return replace(self, tenant=tenant, quota=self.quota.of(tenant))

    async def create(self, file: BatchFile) -> None:
        """Store the record of a file whose blob is stored. Raises `RateLimited` if the tenant has no room."""
        await self.reserve(file, limited=True)
        index = keys.batch_files(self.tenant)
        await self.redis.run_script(REMOVE_EXPIRED, [index], [keys.batch_file("")])
        await self.redis.run_script(STORE, [keys.batch_file(file.id), index], self.creation(file))

    async def reserve(self, file: BatchFile, *, limited: bool) -> None:
        """Count the bytes of a file until it expires. Raises `RateLimited` if `limited` and the tenant has no room."""
        await self.quota.reserve(file.id, file.counted, file.expires_at - file.created_at, limited=limited)

    async def release(self, file_id: str) -> None:
        """Stop counting the bytes of a file that was not stored."""
        await self.quota.release(file_id)

    def creation(self, file: BatchFile) -> list[Any]:
        """Return the arguments of the script `STORE` that stores the record."""
        lifetime = int((file.expires_at - file.created_at) * 1000)
        return [lifetime, file.id, file.created_at, *flat(self.vault.sealed(file.fields(self.tenant)))]

    async def get(self, file_id: str, param: str = "file_id") -> BatchFile:
        """Return the file. Raises `NotFound`, naming `param`."""
        stored = await owned_hash(self.redis, self.tenant, keys.batch_file, "file", file_id)
        if not stored:
            raise NotFound(f"no file {file_id[:64]!r}", param=param, code="file_not_found")
        return BatchFile.of(self.vault.opened(stored))

    async def extend(self, file: BatchFile, until: float) -> None:
        """Keep the file at least until that Unix time."""
        if until > file.expires_at:
            await self.quota.extend_reservation(file.id, until - now())
            await self.redis.run_script(_EXTEND, [keys.batch_file(file.id)], [until])

    async def newest(
        self, limit: int, after: str | None, kinds: Sequence[Literal["document", "batch"]]
    ) -> tuple[list[str], bool]:
        """Return a page of ids of files and documents, newest first, and whether more follow."""
        indexes = {"document": keys.documents(self.tenant), "batch": keys.batch_files(self.tenant)}
        return await merged_page(self.redis, [indexes[kind] for kind in kinds], limit, after)

    async def delete(self, file_id: str) -> None:
        """Delete the file and its content. Raises `NotFound`."""
        await self.get(file_id)
        await self.quota.release(file_id)
        index = keys.batch_files(self.tenant)
        await self.redis.run_script(_DELETE, [keys.batch_file(file_id), index, keys.deleted(index, file_id)], [file_id])
        if not await is_running(self.redis):  # a backup may still copy the content; a later sweep deletes it
            await self.blobs.delete(file_id)

    async def exists(self, file_id: str) -> bool:
        """Whether any tenant has the file."""
        return bool(await self.redis.exists(keys.batch_file(file_id)))
