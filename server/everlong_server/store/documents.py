"""`Documents`: uploaded documents, in Redis."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace

from everlong_server.errors import NotFound
from everlong_server.observability.tracing import current_span
from everlong_server.store.readings import Readings, no_document
from everlong_server.store.records import Document, Reading, is_id
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.hashes import owned_hash
from everlong_server.store.redis.index import REMOVE_FROM_INDEX, stored_page
from everlong_server.store.redis.scripts import flat
from everlong_server.store.tenants.quota import OVER_BYTES, OVER_QUEUED, Quota, limit_argument
from everlong_server.store.vault import Vault
from everlong_server.store.vector_stores.stores import DETACH

_COMPLETE = """
local function complete(upload, parts, document)
  if redis.call('HGET', upload, 'file') == document then return true end  -- completed before, but the reply was lost
  if redis.call('HGET', upload, 'status') ~= 'pending' then return false end
  redis.call('HSET', upload, 'status', 'completed', 'file', document)
  redis.call('DEL', parts)
  return true
end
"""

# Completes an upload with a document that exists. KEYS: document, upload, its parts. ARGV: document id. Returns 1, 0 (either is gone)
_COMPLETE_WITH = (
    _COMPLETE
    + """
if redis.call('EXISTS', KEYS[1]) == 1 and complete(KEYS[2], KEYS[3], ARGV[1]) then return 1 end
return 0
"""
)

# Creates a document and queues its reading, and completes the upload that it is made of.
# KEYS: document, documents, document_readings, reading, jobs, stored, queued, contents; for a document made of an upload also
# the upload and its parts
# ARGV: document id, creation time, reading id, number of document fields n, bytes, limit of bytes or '', limit of queued
# readings or '', content or '', '1' to reuse a document of that content, id of one that is not reused or '', prefix of document keys,
# n fields and values of the document, fields and values of the reading
# Returns 1, 0 (exists already), the id of the document to reuse, -1 (the upload is not pending), -1001 (too many bytes), -1002
# (too many queued)
_CREATE = (
    _COMPLETE
    + """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local known = ARGV[8] ~= '' and redis.call('HGET', KEYS[8], ARGV[8])
if known and (known == ARGV[10] or redis.call('EXISTS', ARGV[11] .. known) == 0) then known = false end
if known and ARGV[9] == '1' then
  if KEYS[9] and not complete(KEYS[9], KEYS[10], known) then return -1 end
  return known
end
if ARGV[6] ~= '' and tonumber(redis.call('GET', KEYS[6]) or 0) + tonumber(ARGV[5]) > tonumber(ARGV[6]) then return -1001 end
if ARGV[7] ~= '' and redis.call('SCARD', KEYS[7]) >= tonumber(ARGV[7]) then return -1002 end
if KEYS[9] and not complete(KEYS[9], KEYS[10], ARGV[1]) then return -1 end
if ARGV[8] ~= '' and not known then redis.call('HSET', KEYS[8], ARGV[8], ARGV[1]) end
redis.call('INCRBY', KEYS[6], ARGV[5])
redis.call('SADD', KEYS[7], ARGV[3])
local n = tonumber(ARGV[4])
redis.call('HSET', KEYS[1], unpack(ARGV, 12, 11 + n))
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
redis.call('SADD', KEYS[3], ARGV[3])
redis.call('HSET', KEYS[4], unpack(ARGV, 12 + n))
redis.call('XADD', KEYS[5], '*', 'reading', ARGV[3], 'tenant', redis.call('HGET', KEYS[4], 'tenant'))
return 1
"""
)

# Deletes a document with every reading that involves it, since their states hold what it said, and takes it out of vector stores.
# KEYS: document, documents, document_readings, stored, deleted, document_sets, contents
# ARGV: document id, prefix of reading keys, prefix of document keys, prefix of the tenant's queues, prefix of vector stores
_DELETE = (
    REMOVE_FROM_INDEX
    + DETACH
    + """
local size = redis.call('HMGET', KEYS[1], 'bytes', 'text_offset', 'original_bytes')
local content = redis.call('HGET', KEYS[1], 'content')
if redis.call('DEL', KEYS[1]) == 0 then return end
redis.call('DECRBY', KEYS[4], size[1] + size[2] + (size[3] or 0))
take_out(KEYS[2], ARGV[1], KEYS[5])
if content and redis.call('HGET', KEYS[7], content) == ARGV[1] then redis.call('HDEL', KEYS[7], content) end
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


@dataclass(eq=False)
class Documents:
    """One tenant's documents, and the `readings` of them. Documents of other tenants are not found.

    `tenant` None: the documents of all tenants, for the server's own background work.
    """

    redis: Client
    tenant: str | None
    quota: Quota
    vault: Vault
    readings: Readings = field(init=False)

    def __post_init__(self) -> None:
        self.readings = Readings(self.redis, self.tenant, self.quota, self.vault)

    def of(self, tenant: str) -> Documents:
        """Return the documents of another tenant."""
        return replace(self, tenant=tenant, quota=self.quota.of(tenant))

    async def create(
        self,
        document: Document,
        model: str,
        *,
        upload: str | None = None,
        reserved: int = 0,
        reuse: bool = False,
        instead_of: str = "",
    ) -> str | None:
        """Store the document and queue its reading by `model`, in one step. A document that exists already is left as it is.

        `upload`: the upload whose parts it is made of; it is completed in the same step. `reserved`: the bytes that the quota
        already counts for that upload. `reuse`: store nothing if there is a document of the same content, unless it is `instead_of`.
        Returns the id of the document; None, and stores nothing, if the upload is no longer pending. Raises `RateLimited`.
        """
        assert self.tenant is not None, "creating a document takes a tenant"
        fields = flat(self.vault.sealed(document.fields()) | {"tenant": self.tenant})
        reading, limits = (
            Reading.fields(model, [document.id], self.tenant, current_span().traceparent),
            self.quota.limits,
        )
        await self.quota.require_tokens()
        done = await self.redis.run_script(
            _CREATE,
            [
                keys.document(document.id), keys.documents(self.tenant), keys.document_readings(document.id),
                keys.reading(str(reading["id"])), keys.jobs(model), keys.stored(self.tenant),
                keys.queued(self.tenant, model), keys.contents(self.tenant),
                *([] if upload is None else [keys.upload(upload), keys.upload_parts(upload)]),
            ],
            [
                document.id, document.created_at, reading["id"], len(fields), document.stored_bytes,
                limit_argument(None if limits.bytes is None else limits.bytes + reserved), limit_argument(limits.queued), document.content,
                "1" if reuse else "", instead_of, keys.document(""), *fields, *flat(reading),
            ],
        )  # fmt: skip
        if done == OVER_BYTES:
            raise self.quota.no_room()
        if done == OVER_QUEUED:
            raise await self.quota.queue_full(model)
        if isinstance(done, bytes):
            return done.decode()
        return document.id if done >= 0 else None

    async def of_content(self, content: str) -> Document | None:
        """Return the document that was made of the same uploaded file, if there is one."""
        assert self.tenant is not None, "contents belong to a tenant"
        id = await self.redis.hget(keys.contents(self.tenant), content) if content else None
        with contextlib.suppress(NotFound):
            return None if id is None else await self.get(id.decode())
        return None

    async def complete_with(self, upload: str, document_id: str) -> bool:
        """Complete an upload with a document that exists. Returns False if either is gone."""
        names = [keys.document(document_id), keys.upload(upload), keys.upload_parts(upload)]
        return bool(await self.redis.run_script(_COMPLETE_WITH, names, [document_id]))

    async def get(self, document_id: str) -> Document:
        """Return the document. Raises `NotFound`."""
        stored = await owned_hash(self.redis, self.tenant, keys.document, "doc", document_id)
        if not stored:
            raise no_document(document_id, "document_id")
        return Document.of(self.vault.opened(stored))

    async def exists(self, document_id: str) -> bool:
        """Whether the document exists for any tenant. The answer must not reach a client of another tenant."""
        return is_id("doc", document_id) and bool(await self.redis.exists(keys.document(document_id)))

    async def was_deleted(self, document_id: str) -> bool:
        """Whether the document was deleted within the last hour."""
        assert self.tenant is not None, "only a tenant has a list"
        return bool(await self.redis.exists(keys.deleted(keys.documents(self.tenant), document_id)))

    async def newest(self, limit: int, after: str | None) -> tuple[list[Document], bool]:
        """Return a page of documents, newest first, and whether more follow. `after`: the last id of the page before."""
        assert self.tenant is not None, "only a tenant has a list"
        found, more = await stored_page(self.redis, keys.documents(self.tenant), keys.document, limit, after)
        return [Document.of(self.vault.opened(stored)) for stored in found], more

    async def delete(self, document_id: str) -> None:
        """Delete the document and all readings that involve it. Raises `NotFound`."""
        await self.get(document_id)  # checks the tenant, which never changes: it need not be in the same step
        tenant = self.tenant
        assert tenant is not None, "deleting a document takes a tenant"
        await self.redis.run_script(
            _DELETE,
            [
                keys.document(document_id), keys.documents(tenant), keys.document_readings(document_id),
                keys.stored(tenant), keys.deleted(keys.documents(tenant), document_id),
                keys.document_sets(document_id), keys.contents(tenant),
            ],
            [
                document_id, keys.reading(""), keys.document(""), keys.queued(tenant, ""),
                keys.vector_store(""),
            ],
        )  # fmt: skip
