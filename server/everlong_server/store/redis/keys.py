"""Every Redis key of everlong: its name, what it holds, and when it is deleted. No other module builds a key."""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = "{everlong}:"
"""A cluster places a key by the part in braces. All keys share it, since one script uses many keys and they must be on one node."""

_PART = re.compile("[A-Z]+")


@dataclass(frozen=True, slots=True)
class Key:
    """A kind of key. Call it with the values of the words in capitals in its `pattern` to get a key of this kind.

    `type`: the Redis type. `holds`: what it holds. `ttl`: when it expires, or what deletes it. `expires`: whether it always
    has a Redis expiry. `sealed`: whether its values are encrypted where encryption at rest is on.
    """

    pattern: str
    type: str
    holds: str
    ttl: str
    expires: bool = False
    sealed: bool = False

    def __post_init__(self) -> None:
        KEYS.append(self)

    def __call__(self, *values: str) -> str:
        first, *rest = _PART.split(self.pattern)
        return first + "".join(value + text for value, text in zip(values, rest, strict=True))

    def matches(self, key: str) -> bool:
        """Whether `key` is of this kind."""
        return re.fullmatch(_PART.sub("[^:]+", re.escape(self.pattern)), key) is not None


KEYS: list[Key] = []
"""All kinds of keys."""

# fmt: off
documents = Key("{everlong}:documents:TENANT", "zset", "the ids of a tenant's documents, scored by creation time",
    "never")
document = Key("{everlong}:document:ID", "hash", "a document: its file name, size, format and checksum",
    "never; deleted with the document", sealed=True)
contents = Key("{everlong}:contents:TENANT", "hash",
    "for each uploaded file, by its SHA-256 with format and OCR language, the id of the document made of it",
    "never; a field is deleted with the document")
document_readings = Key("{everlong}:document:ID:readings", "set", "the ids of the readings that involve a document",
    "never; deleted with the document")
document_sets = Key("{everlong}:document:ID:sets", "set", "the ids of the vector stores that a document is in",
    "never; deleted with the document")
vector_stores = Key("{everlong}:vectorstores:TENANT", "zset", "the ids of a tenant's vector stores, scored by creation time",
    "never")
vector_store = Key("{everlong}:vectorstore:ID", "hash", "a vector store: its name, description, metadata and size",
    "never; deleted with the vector store", sealed=True)
vector_store_files = Key("{everlong}:vectorstore:ID:files", "zset",
    "the ids of the documents in a vector store, scored by the time at which they were added",
    "never; deleted with the vector store")
vector_store_file = Key("{everlong}:vectorstore:ID:file:DOCUMENT", "hash", "a document in a vector store: its size and attributes",
    "never; deleted with the document or the vector store", sealed=True)
vector_store_batch = Key("{everlong}:vectorstore:ID:batch:BATCH", "hash",
    "documents that were added to a vector store at once: their ids", "after 1 day", expires=True)
reading = Key("{everlong}:reading:ID", "hash",
    "a reading: the state, cursor and progress of one model in a sequence of documents",
    "never; deleted with any of its documents", sealed=True)
reading_children = Key("{everlong}:reading:ID:children", "set", "the ids of the readings that wait for this reading",
    "never; deleted when the reading ends")
jobs = Key("{everlong}:jobs:MODEL", "stream", "the queue of readings by one model; consumer group `readers`",
    "never; an entry is deleted when its reading ends")
_turns = Key("{everlong}:turns:STREAM:MODEL", "hash",
    "for each tenant, when it last had its turn in a model's stream of readings (`jobs`), background responses (`responses`) or batches (`batchjobs`)",
    "1 day after the last turn", expires=True)
_deleted = Key("{everlong}:deleted:INDEX:TENANT:ID", "string",
    "the score that a deleted document, file, session or vector store had in its index, so that a client can list what follows it",
    "1 hour after the deletion", expires=True)
sessions = Key("{everlong}:sessions:TENANT", "zset", "the ids of a tenant's sessions, scored by creation time", "never")
session = Key("{everlong}:session:ID", "hash", "a session: its state, open segment, position, title and recall setting",
    "never; deleted with the session", sealed=True)
session_messages = Key("{everlong}:session:ID:messages", "list", "the messages of a session, as JSON",
    "never; deleted with the session", sealed=True)
session_lease = Key("{everlong}:session:ID:lease", "string",
    "the replica that may write a session, and its fencing token",
    "after `lease_seconds`; renewed while an answer is generated", expires=True)
session_turn = Key("{everlong}:session:ID:turn", "hash",
    "a question that is being answered, and its answer so far, if a disconnect of its client does not cancel it",
    "after `lease_seconds`; renewed while the answer is generated", expires=True, sealed=True)
session_deletion = Key("{everlong}:session:ID:deletion", "string",
    "a nonce of the request that deleted a session: its retry succeeds, another deletion does not",
    "1 minute after the deletion", expires=True)
chat = Key("{everlong}:chat:TENANT:DIGEST", "hash",
    "a cached chat of a tenant, by the digest of its messages: the state, open segment and position after them",
    "`chat_seconds` after its last use", expires=True, sealed=True)
API_KEYS = Key("{everlong}:apikeys", "zset", "the ids of all API keys, scored by creation time", "never").pattern
api_key = Key("{everlong}:apikey:ID", "hash", "an API key: its tenant, scopes, expiry, and the SHA-256 of its secret",
    "never")
ticket = Key("{everlong}:ticket:DIGEST", "string",
    "the caller that a ticket authenticates, by the SHA-256 of the ticket",
    "after 30 seconds; 2 minutes after its use", expires=True)
requests = Key("{everlong}:requests:TENANT", "string",
    "a tenant's request rate: the time at which its full allowance is available again",
    "after at most 1 minute", expires=True)
counted = Key("{everlong}:counted:TENANT:NONCE", "string",
    "a mark that a request, or the tokens of an answer, was counted; a retry is not counted again",
    "after 2 minutes", expires=True)
streams = Key("{everlong}:streams:TENANT", "set", "a tenant's running answers, each with its replica",
    "never; an answer is removed when it ends")
queued = Key("{everlong}:queued:TENANT:MODEL", "set", "the ids of a tenant's readings by one model that have not ended",
    "never; a reading is removed when it ends")
stored = Key("{everlong}:stored:TENANT", "string", "the bytes that a tenant stores in documents, uploads, responses, vector stores, batches and their files",
    "never")
reservations = Key("{everlong}:held:TENANT", "zset",
    "the ids of a tenant's uploads, responses, batches and their files, scored by the time until which their bytes are counted",
    "never; an id is removed when its time is over")
reservation_sizes = Key("{everlong}:held:TENANT:sizes", "hash", "the bytes of each of these objects",
    "never; a field is removed with its id")
tokens = Key("{everlong}:tokens:TENANT:DAY", "string",
    "the tokens read and generated for a tenant on one day, if they are limited", "after 2 days", expires=True)
attempt = Key("{everlong}:attempt:TENANT:DIGEST", "hash",
    "a tenant's request with an Idempotency-Key, by the SHA-256 of the key: the id of its result, a digest of the request's content, and the answer",
    "after `idempotency_seconds`", expires=True, sealed=True)
UPLOADS = Key("{everlong}:uploads", "zset", "the ids of all uploads, scored by the time at which they expire",
    "never").pattern
upload = Key("{everlong}:upload:ID", "hash", "an upload in parts: its file name, size, purpose and status",
    "never; the server deletes it `upload_seconds` after its creation", sealed=True)
upload_parts = Key("{everlong}:upload:ID:parts", "hash", "the parts of an upload that have arrived, as JSON by id",
    "never; deleted when the upload is completed or cancelled, or expires")
response = Key("{everlong}:response:ID", "hash",
    "a response: its request, its answer, and the state, open segment and position after it",
    "`response_seconds` after its last use; deleted with the response", expires=True, sealed=True)
responses = Key("{everlong}:responses:MODEL", "stream",
    "the queue of background responses by one model; consumer group `readers`",
    "never; an entry is deleted when its response ends")
batch_files = Key("{everlong}:files:TENANT", "zset",
    "the ids of a tenant's files of batches, scored by creation time", "never; an expired id is removed with the next file")
batch_file = Key("{everlong}:file:ID", "hash", "a file of requests or results of a batch: its name, size, purpose and expiry",
    "`batch_seconds` after its creation or its last batch; deleted with the file", expires=True, sealed=True)
batches = Key("{everlong}:batches:TENANT", "zset", "the ids of a tenant's batches, scored by creation time",
    "never; an expired id is removed with the next batch")
batch = Key("{everlong}:batch:ID", "hash", "a batch: its request, status, counts, and how much of its input is answered",
    "`batch_seconds` after its creation", expires=True, sealed=True)
batch_results = Key("{everlong}:batch:ID:results", "list", "the newest results of a batch, which are not in the blob store yet",
    "with the batch; deleted once they are in the blob store", expires=True, sealed=True)
batch_done = Key("{everlong}:batch:ID:done", "set", "the numbers of the lines that these results answer",
    "with the batch; deleted with the results", expires=True)
batch_jobs = Key("{everlong}:batchjobs:MODEL", "stream", "the batches that one model has to answer; consumer group `readers`",
    "never; an entry is deleted when its batch ends")
replica = Key("{everlong}:replica:ID", "string", "a mark that a server process is alive, and the model that it serves",
    "after `lease_seconds`; renewed by the process", expires=True)
MODELS = Key("{everlong}:models", "hash",
    "the fingerprint that each model had when a server last loaded it on demand, by the model's name", "never").pattern
VAULT = Key("{everlong}:vault", "string",
    "an encrypted mark, by which a server checks at its start that it has the right keys", "never").pattern
STORE = Key("{everlong}:store", "string",
    "the store ID, which the blob store holds too; texts that Redis does not know are deleted only from a store with this ID",
    "never").pattern
SCHEMA = Key("{everlong}:schema", "string",
    "the version of the stored data's layout; an older server does not start on newer data", "never").pattern
BACKUP = Key("{everlong}:backup", "string",
    "the token of a running backup; while it exists, no file is deleted from the blob store",
    "1 minute after the backup has ended without removing it", expires=True).pattern
FENCE = Key("{everlong}:fence", "string", "the last fencing token that was issued; it only grows", "never").pattern
# fmt: on

REPLICA = replica("")
READERS = "readers"
"""The consumer group of `jobs`, `responses` and `batchjobs`."""


def sealed(key: bytes) -> bool:
    """Whether a vault seals values of the key."""
    return any(kind.matches(key.decode()) for kind in KEYS if kind.sealed)


def deleted(index: str, id: str) -> str:
    """The score that a deleted id had in the index of a tenant's documents, sessions or vector stores, or of a vector store's files."""
    kind, owner, *_ = index.removeprefix(PREFIX).split(":")
    return _deleted(kind, owner, id)


def turns(stream: str) -> str:
    """When each tenant last had its turn in a stream of `jobs` or `responses`."""
    return _turns(*stream.removeprefix(PREFIX).split(":"))


def blob_owner(id: str) -> str:
    """The hash of the document, upload, file or batch that owns a blob, by the id that the blob's name begins with."""
    return _OWNERS[id.partition("_")[0]](id)


_OWNERS = {"doc": document, "upload": upload, "file": batch_file, "batch": batch}
