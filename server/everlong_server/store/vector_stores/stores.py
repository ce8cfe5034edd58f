"""`VectorStores`: the vector stores of one tenant, in Redis."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from everlong_server.errors import InvalidRequest, NotFound
from everlong_server.store.records import Hash, is_id
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.hashes import owned_hash
from everlong_server.store.redis.index import REMOVE_FROM_INDEX, page
from everlong_server.store.redis.scripts import STORE, flat
from everlong_server.store.tenants.quota import OVER_BYTES, Quota, limit_argument
from everlong_server.store.vault import Vault
from everlong_server.store.vector_stores.records import FileBatch, StoredFile, VectorStore

MAX_FILES = 256
"""Maximum number of documents in one vector store: as many as one search takes."""
_BATCH_MS = 24 * 3600 * 1000
_GONE, _ADDED, _NO_DOCUMENT, _FULL, _CHANGED = 0, 2, -1, -2, -3

# Defines `detach(stores, store, document)`, which removes a document from a vector store, except for the document's own list of them.
# `stores`: prefix of the keys of vector stores. Returns the bytes that the reference counted; nothing if there was none.
DETACH = """
local function detach(stores, store, document)
  local entry = stores .. store .. ':file:' .. document
  local counted, bytes = unpack(redis.call('HMGET', entry, 'counted', 'bytes'))
  if not counted then return nil end
  redis.call('DEL', entry)
  redis.call('ZREM', stores .. store .. ':files', document)
  redis.call('HINCRBY', stores .. store, 'bytes', -bytes)
  return counted
end
"""

# KEYS: set, sets, stored. ARGV: id, creation time, bytes to count, limit of bytes or '', fields and values
# Returns 1 (also if it exists), or -1001 (too many bytes)
_CREATE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 1 end
if ARGV[4] ~= '' and tonumber(redis.call('GET', KEYS[3]) or 0) + tonumber(ARGV[3]) > tonumber(ARGV[4]) then return -1001 end
redis.call('HSET', KEYS[1], unpack(ARGV, 5))
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
redis.call('INCRBY', KEYS[3], ARGV[3])
return 1
"""

# Changes a field of a set or a reference. KEYS: it, stored.
# ARGV: bytes to count, limit of bytes or '', expected value of the field or '' for any, field, value
# Returns 1, 0 (it is gone), -3 (the field has another value), or -1001 (too many bytes)
_UPDATE = """
local counted = redis.call('HGET', KEYS[1], 'counted')
if not counted then return 0 end
if ARGV[3] ~= '' and redis.call('HGET', KEYS[1], ARGV[4]) ~= ARGV[3] then return -3 end
local more = ARGV[1] - counted
if ARGV[2] ~= '' and more > 0 and tonumber(redis.call('GET', KEYS[2]) or 0) + more > tonumber(ARGV[2]) then return -1001 end
redis.call('HSET', KEYS[1], 'counted', ARGV[1], ARGV[4], ARGV[5])
redis.call('INCRBY', KEYS[2], more)
return 1
"""

# KEYS: set, its files, reference, stored, document, sets of the document
# ARGV: set, document, time, bytes to count, limit of bytes or '', limit of files, bytes of the document, fields and values
# Returns 2, or 1 (the document is in it already), 0 (no such set), -1 (no such document), -2 (too many files), -1001 (too many bytes)
_ATTACH = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
if redis.call('EXISTS', KEYS[5]) == 0 then return -1 end
if redis.call('EXISTS', KEYS[3]) == 1 then return 1 end
if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[6]) then return -2 end
if ARGV[5] ~= '' and tonumber(redis.call('GET', KEYS[4]) or 0) + tonumber(ARGV[4]) > tonumber(ARGV[5]) then return -1001 end
redis.call('HSET', KEYS[3], unpack(ARGV, 8))
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2])
redis.call('SADD', KEYS[6], ARGV[1])
redis.call('HINCRBY', KEYS[1], 'bytes', ARGV[7])
redis.call('HSET', KEYS[1], 'active_at', ARGV[3])
redis.call('INCRBY', KEYS[4], ARGV[4])
return 2
"""

# KEYS: sets of the document, stored, the set's files, mark of the removed document. ARGV: set, document, prefix of sets
# Returns 1, or 0 (it was not in the set)
_DETACH = (
    REMOVE_FROM_INDEX
    + DETACH
    + """
take_out(KEYS[3], ARGV[2], KEYS[4])
local counted = detach(ARGV[3], ARGV[1], ARGV[2])
redis.call('SREM', KEYS[1], ARGV[1])
if not counted then return 0 end
redis.call('DECRBY', KEYS[2], counted)
return 1
"""
)

# KEYS: set, sets, its files, stored, mark of the deleted set. ARGV: set, prefix of sets, prefix of documents
_DELETE = (
    REMOVE_FROM_INDEX
    + DETACH
    + """
local own = redis.call('HGET', KEYS[1], 'counted')
if not own then return end
for _, document in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
  own = own + (detach(ARGV[2], ARGV[1], document) or 0)
  redis.call('SREM', ARGV[3] .. document .. ':sets', ARGV[1])
end
redis.call('DEL', KEYS[1], KEYS[3])
redis.call('DECRBY', KEYS[4], own)
take_out(KEYS[2], ARGV[1], KEYS[5])
"""
)


@dataclass(eq=False)
class VectorStores:
    """One tenant's vector stores. Those of other tenants are not found."""

    redis: Client
    tenant: str
    quota: Quota
    vault: Vault

    def of(self, tenant: str) -> VectorStores:
        """Return the vector stores of another tenant."""
        return replace(self, tenant=tenant, quota=self.quota.of(tenant))

    async def create(self, store: VectorStore) -> None:
        """Store a new vector store, without its files. Does nothing if it exists. Raises `RateLimited`."""
        counted = store.counted
        fields = store.changeable() | {
            "id": store.id, "tenant": self.tenant, "created_at": str(store.created_at), "active_at": str(store.created_at),
            "bytes": "0", "counted": str(counted),
        }  # fmt: skip
        done = await self.redis.run_script(
            _CREATE,
            [keys.vector_store(store.id), keys.vector_stores(self.tenant), keys.stored(self.tenant)],
            [store.id, store.created_at, counted, self._limit, *flat(self.vault.sealed(fields))],
        )
        self._require_room(done)

    async def get(self, store_id: str) -> VectorStore:
        """Return the vector store. Raises `NotFound`."""
        stored = await self._stored(store_id)
        files = await self.redis.zcard(keys.vector_store_files(store_id))
        return VectorStore.of(self.vault.opened(stored), int(files))

    async def newest(self, limit: int, after: str | None) -> tuple[list[VectorStore], bool]:
        """Return a page of vector stores, newest first, and whether more follow. Reads none of their files."""
        ids, more = await page(self.redis, keys.vector_stores(self.tenant), limit, after)
        async with self.redis.pipeline(transaction=False) as pipe:
            for store_id in ids:
                pipe.hgetall(keys.vector_store(store_id))
                pipe.zcard(keys.vector_store_files(store_id))
            found = await pipe.execute()
        pairs = zip(found[::2], found[1::2], strict=True)
        return [VectorStore.of(self.vault.opened(stored), int(files)) for stored, files in pairs if stored], more

    async def update(self, store_id: str, changes: Mapping[str, Any]) -> VectorStore:
        """Change name, description or metadata. Keeps what others change at the same time. Raises `NotFound` and `RateLimited`."""
        updated = False
        while not updated:
            stored = await self._stored(store_id)  # checks the tenant, which never changes
            store = replace(VectorStore.of(self.vault.opened(stored), 0), **changes)
            name, missing = keys.vector_store(store_id), _no_store(store_id)
            updated = await self._update(name, store.counted, store.changeable(), missing, stored[b"label"])
        return await self.get(store_id)

    async def delete(self, store_id: str) -> None:
        """Delete the vector store. Its documents stay. Raises `NotFound`."""
        await self.get(store_id)
        index = keys.vector_stores(self.tenant)
        await self.redis.run_script(
            _DELETE,
            [
                keys.vector_store(store_id), index, keys.vector_store_files(store_id), keys.stored(self.tenant),
                keys.deleted(index, store_id),
            ],
            [store_id, keys.vector_store(""), keys.document("")],
        )  # fmt: skip

    # Files

    async def attach(self, file: StoredFile) -> StoredFile:
        """Add a document, which belongs to the same tenant, to a vector store. If it is in there already, set its attributes.

        Raises `NotFound`, `InvalidRequest` if the vector store is full, and `RateLimited`.
        """
        await self.get(file.store)
        counted = file.counted
        fields = file.changeable() | {
            "created_at": str(file.created_at), "bytes": str(file.bytes), "counted": str(counted),
        }  # fmt: skip
        done = await self.redis.run_script(
            _ATTACH,
            [
                keys.vector_store(file.store), keys.vector_store_files(file.store),
                keys.vector_store_file(file.store, file.document), keys.stored(self.tenant),
                keys.document(file.document), keys.document_sets(file.document),
            ],
            [
                file.store, file.document, file.created_at, counted, self._limit, MAX_FILES, file.bytes,
                *flat(self.vault.sealed(fields)),
            ],
        )  # fmt: skip
        self._require_room(done)
        if done == _GONE:
            raise _no_store(file.store)
        if done == _NO_DOCUMENT:
            raise _no_file(file.document)
        if done == _FULL:
            raise InvalidRequest(
                f"file_id: the vector store has {MAX_FILES} files, which is the limit", param="file_id"
            )
        return file if done == _ADDED else await self.set_attributes(file)

    async def set_attributes(self, file: StoredFile) -> StoredFile:
        """Set the attributes of a file. Raises `NotFound` and `RateLimited`."""
        found = replace(await self.file(file.store, file.document), attributes=file.attributes)
        name = keys.vector_store_file(file.store, file.document)
        await self._update(name, found.counted, found.changeable(), _no_file(file.document))
        return found

    async def file(self, store_id: str, document: str) -> StoredFile:
        """Return a file of a vector store. Raises `NotFound`."""
        await self.get(store_id)
        name = keys.vector_store_file(store_id, document)
        stored = await self.redis.hgetall(name) if is_id("doc", document) else None
        if not stored:
            raise _no_file(document)
        return StoredFile.of(document, store_id, self.vault.opened(stored))

    async def files(self, store_id: str, limit: int, after: str | None = None) -> tuple[list[StoredFile], bool]:
        """Return a page of a vector store's files, newest first, and whether more follow. Raises `NotFound`."""
        await self.get(store_id)
        ids, more = await page(self.redis, keys.vector_store_files(store_id), limit, after)
        async with self.redis.pipeline(transaction=False) as pipe:
            for document in ids:
                pipe.hgetall(keys.vector_store_file(store_id, document))
            found = zip(ids, await pipe.execute(), strict=True)
        return [
            StoredFile.of(document, store_id, self.vault.opened(stored)) for document, stored in found if stored
        ], more

    async def detach(self, store_id: str, document: str) -> None:
        """Remove a document from a vector store. The document stays. Raises `NotFound`."""
        await self.file(store_id, document)
        files = keys.vector_store_files(store_id)
        await self.redis.run_script(
            _DETACH,
            [keys.document_sets(document), keys.stored(self.tenant), files, keys.deleted(files, document)],
            [store_id, document, keys.vector_store("")],
        )

    # Batches

    async def keep_batch(self, batch: FileBatch) -> None:
        """Store a batch for a day. A retry only starts the day again."""
        name = keys.vector_store_batch(batch.store, batch.id)
        fields = {"created_at": batch.created_at, "documents": json.dumps(batch.documents)}
        await self.redis.run_script(STORE, [name], [_BATCH_MS, "", "", *flat(fields)])

    async def batch(self, store_id: str, batch_id: str) -> FileBatch:
        """Return a batch. Raises `NotFound`, also a day after its creation."""
        await self.get(store_id)
        stored = (
            await self.redis.hgetall(keys.vector_store_batch(store_id, batch_id)) if is_id("vsfb", batch_id) else None
        )
        if not stored:
            raise NotFound(
                f"no file batch {batch_id[:64]!r} in this vector store: a batch is kept for a day", param="file_batch_id",
                code="file_batch_not_found",
            )  # fmt: skip
        documents = tuple(json.loads(stored[b"documents"]))
        return FileBatch(batch_id, store_id, float(stored[b"created_at"]), documents)

    @property
    def _limit(self) -> int | str:
        return limit_argument(self.quota.limits.bytes)

    def _require_room(self, done: int) -> None:
        if done == OVER_BYTES:
            raise self.quota.no_room()

    async def _stored(self, store_id: str) -> Hash:
        """Return the hash of a vector store, as it is stored. Raises `NotFound`."""
        stored = await owned_hash(self.redis, self.tenant, keys.vector_store, "vs", store_id)
        if not stored:
            raise _no_store(store_id)
        return stored

    async def _update(
        self, key: str, counted: int, field: dict[str, str], missing: NotFound, expected: bytes = b""
    ) -> bool:
        """Set a field. Returns False if it does not have the `expected` value, as it is stored."""
        args: list[Any] = [counted, self._limit, expected, *flat(self.vault.sealed(field))]
        done = await self.redis.run_script(_UPDATE, [key, keys.stored(self.tenant)], args)
        self._require_room(done)
        if done == _GONE:
            raise missing
        return bool(done != _CHANGED)


def _no_store(store_id: str) -> NotFound:
    return NotFound(f"no vector store {store_id[:64]!r}", param="vector_store_id", code="vector_store_not_found")


def _no_file(document: str) -> NotFound:
    return NotFound(f"no file {document[:64]!r} in this vector store", param="file_id", code="file_not_found")
