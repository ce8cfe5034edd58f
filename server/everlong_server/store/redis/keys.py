"""Every Redis key of everlong: its name, what it holds, and what ends it. No other module builds a key."""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = "{everlong}:"
"""A cluster places a key by the part in braces. All keys share it, since one script uses many keys and they must be on one node."""


@dataclass(frozen=True, slots=True)
class Key:
    """A kind of key. `type`: the Redis type. `holds`: what it holds. `ttl`: when it expires, or what deletes it. `expires`: whether
    it always has a Redis expiry. `sealed`: whether its values are encrypted where encryption at rest is on."""

    pattern: str
    type: str
    holds: str
    ttl: str
    expires: bool
    sealed: bool = False

    def matches(self, key: str) -> bool:
        """Whether `key` is of this kind."""
        return re.fullmatch(re.escape(self.pattern).replace(r"\*", r"[^:]+"), key) is not None


KEYS = (
    Key("{everlong}:documents:*", "zset", "the ids of a tenant's documents, scored by creation time", "never", False),
    Key("{everlong}:document:*", "hash", "a document: its file name, size, format and checksum",
        "never; deleted with the document", False, sealed=True),
    Key("{everlong}:document:*:readings", "set", "the ids of the readings that involve a document",
        "never; deleted with the document", False),
    Key("{everlong}:reading:*", "hash", "a reading: the state, cursor and progress of one model in a sequence of documents",
        "never; deleted with any of its documents", False, sealed=True),
    Key("{everlong}:reading:*:children", "set", "the ids of the readings that wait for this reading",
        "never; deleted when the reading ends", False),
    Key("{everlong}:jobs:*", "stream", "the readings that one model has to do; consumer group `readers`",
        "never; an entry is deleted when its reading ends", False),
    Key("{everlong}:turns:jobs:*", "hash", "for each tenant, when it last had its turn in a model's stream of readings",
        "1 day after the last turn", True),
    Key("{everlong}:turns:responses:*", "hash",
        "for each tenant, when it last had its turn in a model's stream of background responses",
        "1 day after the last turn", True),
    Key("{everlong}:deleted:*:*:*", "string",
        "the score that a deleted document or session had in its index, so that a client can list what follows it",
        "1 hour after the deletion", True),
    Key("{everlong}:sessions:*", "zset", "the ids of a tenant's sessions, scored by creation time", "never", False),
    Key("{everlong}:session:*", "hash", "a session: its state, open segment, position, title and recall setting",
        "never; deleted with the session", False, sealed=True),
    Key("{everlong}:session:*:messages", "list", "the messages of a session, as JSON",
        "never; deleted with the session", False, sealed=True),
    Key("{everlong}:session:*:lease", "string", "the replica that may write a session, and its fencing token",
        "after `lease_seconds`; renewed while an answer is generated", True),
    Key("{everlong}:chat:*:*", "hash",
        "a cached chat of a tenant, by the digest of its messages: the state, open segment and position after them",
        "`chat_seconds` after its last use", True, sealed=True),
    Key("{everlong}:apikeys", "zset", "the ids of all API keys, scored by creation time", "never", False),
    Key("{everlong}:apikey:*", "hash", "an API key: its tenant, scopes, expiry, and the SHA-256 of its secret", "never", False),
    Key("{everlong}:ticket:*", "string", "the caller that a ticket authenticates, by the SHA-256 of the ticket",
        "after 30 seconds; 2 minutes after its use", True),
    Key("{everlong}:requests:*", "string", "a tenant's request rate: the time at which its full allowance is available again",
        "after at most 1 minute", True),
    Key("{everlong}:counted:*:*", "string", "a mark that a request, or the tokens of an answer, was counted; a retry is not counted again",
        "after 2 minutes", True),
    Key("{everlong}:streams:*", "set", "a tenant's running answers, each with its replica",
        "never; an answer is removed when it ends", False),
    Key("{everlong}:queued:*:*", "set", "the ids of a tenant's readings by one model that have not ended",
        "never; a reading is removed when it ends", False),
    Key("{everlong}:stored:*", "string", "the bytes that a tenant stores in documents, uploads and responses", "never", False),
    Key("{everlong}:held:*", "zset", "the ids of a tenant's uploads and responses, scored by the time until which their bytes are counted",
        "never; an id is removed when its time is over", False),
    Key("{everlong}:held:*:sizes", "hash", "the bytes of each of these uploads and responses",
        "never; a field is removed with its id", False),
    Key("{everlong}:tokens:*:*", "string", "the tokens read and generated for a tenant on one day, if they are limited",
        "after 2 days", True),
    Key("{everlong}:attempt:*:*", "hash",
        "a tenant's request with an Idempotency-Key, by the SHA-256 of the key: the id of its result, a fingerprint of the request, and the answer",
        "after `idempotency_seconds`", True, sealed=True),
    Key("{everlong}:uploads", "zset", "the ids of all uploads, scored by the time at which they expire", "never", False),
    Key("{everlong}:upload:*", "hash", "an upload in parts: its file name, size, purpose and status",
        "never; the server deletes it `upload_seconds` after its creation", False, sealed=True),
    Key("{everlong}:upload:*:parts", "hash", "the parts of an upload that have arrived, as JSON by id",
        "never; deleted when the upload is completed or cancelled, or expires", False),
    Key("{everlong}:response:*", "hash",
        "a response: its request, its answer, and the state, open segment and position after it",
        "`response_seconds` after its last use; deleted with the response", True, sealed=True),
    Key("{everlong}:responses:*", "stream", "the background responses that one model has to answer; consumer group `readers`",
        "never; an entry is deleted when its response ends", False),
    Key("{everlong}:replica:*", "string", "a mark that a server process is alive, and the model that it serves",
        "after `lease_seconds`; renewed by the process", True),
    Key("{everlong}:vault", "string", "an encrypted mark, by which a server checks at its start that it has the right keys", "never", False),
    Key("{everlong}:store", "string",
        "the store ID, which the blob store holds too; texts that Redis does not know are deleted only from a store with this ID",
        "never", False),
    Key("{everlong}:fence", "string", "the last fencing token that was issued; it only grows", "never", False),
)  # fmt: skip

API_KEYS = "{everlong}:apikeys"
UPLOADS = "{everlong}:uploads"
READERS = "readers"
VAULT = "{everlong}:vault"
STORE = "{everlong}:store"
FENCE = "{everlong}:fence"
REPLICA = "{everlong}:replica:"


def sealed(key: bytes) -> bool:
    """Whether a vault seals values of the key."""
    return any(kind.matches(key.decode()) for kind in KEYS if kind.sealed)


def documents(tenant: str) -> str:
    """The index of a tenant's documents."""
    return f"{{everlong}}:documents:{tenant}"


def sessions(tenant: str) -> str:
    """The index of a tenant's sessions."""
    return f"{{everlong}}:sessions:{tenant}"


def deleted(index: str, id: str) -> str:
    """The score that a deleted id had in the index of a tenant's documents or sessions."""
    return f"{PREFIX}deleted:{index.removeprefix(PREFIX)}:{id}"


def document(document_id: str) -> str:
    """A document's hash."""
    return f"{{everlong}}:document:{document_id}"


def document_readings(document_id: str) -> str:
    """The set of readings that involve the document."""
    return f"{{everlong}}:document:{document_id}:readings"


def reading(reading_id: str) -> str:
    """A reading's hash."""
    return f"{{everlong}}:reading:{reading_id}"


def reading_children(reading_id: str) -> str:
    """The set of readings that wait for this one."""
    return f"{{everlong}}:reading:{reading_id}:children"


def session(session_id: str) -> str:
    """A session's hash."""
    return f"{{everlong}}:session:{session_id}"


def session_messages(session_id: str) -> str:
    """The list of a session's messages."""
    return f"{{everlong}}:session:{session_id}:messages"


def session_lease(session_id: str) -> str:
    """The lease on a session."""
    return f"{{everlong}}:session:{session_id}:lease"


def chat(tenant: str, digest: str) -> str:
    """A tenant's cached chat, by the digest of its messages."""
    return f"{{everlong}}:chat:{tenant}:{digest}"


def api_key(key_id: str) -> str:
    """An API key's hash."""
    return f"{{everlong}}:apikey:{key_id}"


def ticket(digest: str) -> str:
    """A ticket, by the digest of its secret."""
    return f"{{everlong}}:ticket:{digest}"


def requests(tenant: str) -> str:
    """A tenant's request rate."""
    return f"{{everlong}}:requests:{tenant}"


def counted(tenant: str, nonce: str) -> str:
    """A mark that a request, or an answer's tokens, was counted."""
    return f"{{everlong}}:counted:{tenant}:{nonce}"


def streams(tenant: str) -> str:
    """A tenant's running answers."""
    return f"{{everlong}}:streams:{tenant}"


def queued(tenant: str, model: str) -> str:
    """A tenant's readings by a model (fingerprint) that have not ended."""
    return f"{{everlong}}:queued:{tenant}:{model}"


def stored(tenant: str) -> str:
    """The number of bytes that a tenant stores."""
    return f"{{everlong}}:stored:{tenant}"


def reservations(tenant: str) -> str:
    """A tenant's byte reservations: ids of uploads and responses, scored by when they end."""
    return f"{{everlong}}:held:{tenant}"


def reservation_sizes(tenant: str) -> str:
    """The bytes of a tenant's reservations."""
    return f"{{everlong}}:held:{tenant}:sizes"


def tokens(tenant: str, day: str) -> str:
    """The number of tokens used by a tenant on a day."""
    return f"{{everlong}}:tokens:{tenant}:{day}"


def attempt(tenant: str, digest: str) -> str:
    """A tenant's request with an Idempotency-Key, by the digest of that key."""
    return f"{{everlong}}:attempt:{tenant}:{digest}"


def upload(upload_id: str) -> str:
    """An upload's hash."""
    return f"{{everlong}}:upload:{upload_id}"


def blob_owner(id: str) -> str:
    """The hash of the document or upload that owns a blob, by the id that the blob's name begins with."""
    return upload(id) if id.startswith("upload_") else document(id)


def upload_parts(upload_id: str) -> str:
    """The hash of an upload's parts."""
    return f"{{everlong}}:upload:{upload_id}:parts"


def response(response_id: str) -> str:
    """A response's hash."""
    return f"{{everlong}}:response:{response_id}"


def responses(model: str) -> str:
    """The stream of background responses for a model (fingerprint)."""
    return f"{{everlong}}:responses:{model}"


def jobs(model: str) -> str:
    """The stream of readings for a model (fingerprint)."""
    return f"{{everlong}}:jobs:{model}"


def turns(stream: str) -> str:
    """When each tenant last had its turn in a stream of `jobs` or `responses`."""
    return f"{PREFIX}turns:{stream.removeprefix(PREFIX)}"


def replica(replica_id: str) -> str:
    """The key that marks a server process alive."""
    return f"{REPLICA}{replica_id}"
