"""`Documents`: uploaded documents, in Redis."""

from __future__ import annotations

from everlong_server.observability.tracing import current_span
from everlong_server.store.readings import Readings, no_document
from everlong_server.store.records import Document, Reading, is_foreign, is_id
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.index import REMOVE_FROM_INDEX, page
from everlong_server.store.redis.scripts import Scripts, flat
from everlong_server.store.tenants.quota import OVER_BYTES, OVER_QUEUED, Quota, limit_argument
from everlong_server.store.vault import Vault
from everlong_server.store.vector_stores.stores import DETACH

# Creates a document and queues its reading, and completes the upload that it is made of.
# KEYS: document, documents, document_readings, reading, jobs, stored, queued; for a document made of an upload also the
# upload and its parts
# ARGV: document id, creation time, reading id, number of document fields n, bytes, limit of bytes or '', limit of queued
# readings or '', n fields and values of the document, fields and values of the reading
# Returns 1, 0 (exists already), -1 (the upload is not pending), -1001 (too many bytes), -1002 (too many queued)
_CREATE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
if ARGV[6] ~= '' and tonumber(redis.call('GET', KEYS[6]) or 0) + tonumber(ARGV[5]) > tonumber(ARGV[6]) then return -1001 end
if ARGV[7] ~= '' and redis.call('SCARD', KEYS[7]) >= tonumber(ARGV[7]) then return -1002 end
if KEYS[8] then
  if redis.call('HGET', KEYS[8], 'status') ~= 'pending' then return -1 end
  redis.call('HSET', KEYS[8], 'status', 'completed', 'file', ARGV[1])
  redis.call('DEL', KEYS[9])
end
redis.call('INCRBY', KEYS[6], ARGV[5])
redis.call('SADD', KEYS[7], ARGV[3])
local n = tonumber(ARGV[4])
redis.call('HSET', KEYS[1], unpack(ARGV, 8, 7 + n))
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
redis.call('SADD', KEYS[3], ARGV[3])
redis.call('HSET', KEYS[4], unpack(ARGV, 8 + n))
redis.call('XADD', KEYS[5], '*', 'reading', ARGV[3], 'tenant', redis.call('HGET', KEYS[4], 'tenant'))
return 1
"""

# Deletes a document with every reading that involves it, since their states hold what it said, and takes it out of vector stores.
# KEYS: document, documents, document_readings, stored, deleted, document_sets
# ARGV: document id, prefix of reading keys, prefix of document keys, prefix of the tenant's queues, prefix of vector stores
_DELETE = (
    REMOVE_FROM_INDEX
    + DETACH
    + """
local size = redis.call('HMGET', KEYS[1], 'bytes', 'text_offset', 'original_bytes')
if redis.call('DEL', KEYS[1]) == 0 then return end
redis.call('DECRBY', KEYS[4], size[1] + size[2] + (size[3] or 0))
take_out(KEYS[2], ARGV[1], KEYS[5])
for _, id in ipairs(redis.call('SMEMBERS', KEYS[3])) do
  local documents, model = unpack(redis.call('HMGET', ARGV[2] .. id, 'documents', 'model'))
  if documents then
    redis.call('SREM', ARGV[4] .. model, id)
    for _, other in ipairs(cjson.decode(documents)) do redis.call('SREM', ARGV[3] .. other .. ':readings', id) end
  end
  redis.call('DEL', ARGV[2] .. id, ARGV[2] .. id .. ':children')
end
for _, store in ipairs(redis.call('SMEMBERS', KEYS[6])) do
  redis.call('DECRBY', KEYS[4], detach(ARGV[5], store, ARGV[1]) or 0)
end
redis.call('DEL', KEYS[3], KEYS[6])
"""
)


class Documents:
    """One tenant's documents, and the `readings` of them. Documents of other tenants are not found.

    `tenant` None: the documents of all tenants, for the server's own background work.
    """

    def __init__(self, redis: Client, tenant: str | None, quota: Quota, vault: Vault | None = None) -> None:
        self._redis = redis
        self._vault = vault or Vault()
        self.readings = Readings(redis, tenant, quota, self._vault)
        self._scripts = Scripts(redis)
        self._tenant = tenant
        self._quota = quota

    def of(self, tenant: str) -> Documents:
        """Return the documents of another tenant."""
        return Documents(self._redis, tenant, self._quota.of(tenant), self._vault)

    async def create(self, document: Document, model: str, *, upload: str | None = None, reserved: int = 0) -> bool:
        """Store the document and queue its reading by `model`, in one step. A document that exists already is left as it is.

        `upload`: the upload whose parts it is made of; it is completed in the same step. `reserved`: the bytes that the quota
        already counts for that upload. Returns False, and stores nothing, if the upload is no longer pending. Raises
        `RateLimited`.
        """
        assert self._tenant is not None, "creating a document takes a tenant"
        fields = flat(self._vault.sealed(document.fields()) | {"tenant": self._tenant})
        reading, limits = (
            Reading.fields(model, [document.id], self._tenant, current_span().traceparent),
            self._quota.limits,
        )
        await self._quota.require_tokens()
        done = await self._scripts.run(
            _CREATE,
            [
                keys.document(document.id), keys.documents(self._tenant), keys.document_readings(document.id),
                keys.reading(str(reading["id"])), keys.jobs(model), keys.stored(self._tenant),
                keys.queued(self._tenant, model),
                *([] if upload is None else [keys.upload(upload), keys.upload_parts(upload)]),
            ],
            [
                document.id, document.created_at, reading["id"], len(fields), document.stored_bytes,
                limit_argument(None if limits.bytes is None else limits.bytes + reserved), limit_argument(limits.queued), *fields, *flat(reading),
            ],
        )  # fmt: skip
        if done == OVER_BYTES:
            raise self._quota.no_room()
        if done == OVER_QUEUED:
            raise await self._quota.queue_full(model)
        return int(done) >= 0

    async def get(self, document_id: str) -> Document:
        """Return the document. Raises `NotFound`."""
        stored = await self._redis.hgetall(keys.document(document_id)) if is_id("doc", document_id) else None
        if not stored or is_foreign(self._tenant, stored.get(b"tenant")):
            raise no_document(document_id, "document_id")
        return Document.of(self._vault.opened(stored))

    async def exists(self, document_id: str) -> bool:
        """Whether the document exists for any tenant. The answer must not reach a client of another tenant."""
        return is_id("doc", document_id) and bool(await self._redis.exists(keys.document(document_id)))

    async def was_deleted(self, document_id: str) -> bool:
        """Whether the document was deleted within the last hour."""
        assert self._tenant is not None, "only a tenant has a list"
        return bool(await self._redis.exists(keys.deleted(keys.documents(self._tenant), document_id)))

    async def newest(self, limit: int, after: str | None) -> tuple[list[Document], bool]:
        """Return a page of documents, newest first, and whether more follow. `after`: the last id of the page before."""
        assert self._tenant is not None, "only a tenant has a list"
        ids, more = await page(self._redis, keys.documents(self._tenant), limit, after)
        async with self._redis.pipeline(transaction=False) as pipe:
            for document_id in ids:
                pipe.hgetall(keys.document(document_id))
            return [Document.of(self._vault.opened(stored)) for stored in await pipe.execute() if stored], more

    async def delete(self, document_id: str) -> None:
        """Delete the document and all readings that involve it. Raises `NotFound`."""
        await self.get(document_id)  # checks the tenant, which never changes: it need not be in the same step
        tenant = self._tenant
        assert tenant is not None, "deleting a document takes a tenant"
        await self._scripts.run(
            _DELETE,
            [
                keys.document(document_id), keys.documents(tenant), keys.document_readings(document_id),
                keys.stored(tenant), keys.deleted(keys.documents(tenant), document_id),
                keys.document_sets(document_id),
            ],
            [
                document_id, keys.reading(""), keys.document(""), keys.queued(tenant, ""),
                keys.vector_store(""),
            ],
        )  # fmt: skip
