"""Every Redis key of everlong: its name, what it holds, and how long it lives. Nothing else makes a key."""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = "{everlong}:"
"""What stands in braces decides where a cluster keeps a key: all of them together, since scripts touch many at once."""


@dataclass(frozen=True, slots=True)
class Key:
    """`ttl`: what ends the key's life: a time in words, or why it has none. `sealed`: whether a vault seals what users have said
    in it."""

    pattern: str
    type: str
    holds: str
    ttl: str
    expires: bool
    sealed: bool = False

    def matches(self, key: str) -> bool:
        """Whether `key` is one of these."""
        return re.fullmatch(re.escape(self.pattern).replace(r"\*", r"[^:]+"), key) is not None


KEYS = (
    Key("{everlong}:documents:*", "zset", "a tenant's document ids by time of creation", "none: an index", False),
    Key("{everlong}:document:*", "hash", "a document's facts and where its text is", "none: until DELETE", False, sealed=True),
    Key("{everlong}:document:*:readings", "set", "readings that involve the document", "none: until its DELETE", False),
    Key("{everlong}:reading:*", "hash", "state, cursor and progress of documents read in order by one model",
        "none: until DELETE of one of its documents", False, sealed=True),
    Key("{everlong}:reading:*:children", "set", "readings that wait for this one", "deleted when it ends", False),
    Key("{everlong}:jobs:*", "stream", "readings to be done by one model; consumer group `readers`",
        "none: entries go when done", False),
    Key("{everlong}:turns:jobs:*", "hash", "when each tenant's turn was last in the stream of jobs of a model",
        "a day after the last turn", True),
    Key("{everlong}:turns:responses:*", "hash", "the same of the stream of responses", "a day after the last turn", True),
    Key("{everlong}:deleted:*:*:*", "string", "where what was deleted stood in an index, so that its list goes on behind it",
        "an hour", True),
    Key("{everlong}:sessions:*", "zset", "a tenant's session ids by time of creation", "none: an index", False),
    Key("{everlong}:session:*", "hash", "a session's state, open segment, position, title and recall", "none: until DELETE", False, sealed=True),
    Key("{everlong}:session:*:messages", "list", "the dialogue as JSON", "none: until DELETE of its session", False, sealed=True),
    Key("{everlong}:session:*:lease", "string", "who may write the session: replica and fencing token",
        "lease_seconds, renewed while an answer is generated", True),
    Key("{everlong}:chat:*:*", "hash", "where a dialogue of a tenant stood that its caller keeps: state, open segment and "
        "position, by the digest of what was said", "chat_seconds after its last use", True, sealed=True),
    Key("{everlong}:apikeys", "zset", "API keys' ids by time of creation", "none: an index", False),
    Key("{everlong}:apikey:*", "hash", "an API key: tenant, scopes, end, the SHA-256 of its secret", "none", False),
    Key("{everlong}:ticket:*", "string", "whom a ticket stands for, by the SHA-256 of its secret", "30 s; once used, two minutes", True),
    Key("{everlong}:requests:*", "string", "when a tenant's requests so far would be spread evenly", "a minute", True),
    Key("{everlong}:counted:*:*", "string", "that a tenant's request was counted, by a nonce: it may be sent again", "two minutes", True),
    Key("{everlong}:streams:*", "set", "a tenant's running answers, each with its replica", "members: when they end", False),
    Key("{everlong}:queued:*:*", "set", "a tenant's readings by a model that are not done", "members: when done", False),
    Key("{everlong}:stored:*", "string", "bytes that a tenant has stored: documents, uploads in parts, responses", "none: a count",
        False),
    Key("{everlong}:held:*", "zset", "what of these bytes is counted until a time: ids of uploads and responses", "members: then",
        False),
    Key("{everlong}:held:*:sizes", "hash", "their bytes", "members: then", False),
    Key("{everlong}:tokens:*:*", "string", "tokens read and generated for a tenant on a day, where they are limited",
        "two days", True),
    Key("{everlong}:attempt:*:*", "hash", "a tenant's request with an Idempotency-Key, by the key's SHA-256: what its result is "
        "called, what was asked, and the answer", "idempotency_seconds", True, sealed=True),
    Key("{everlong}:uploads", "zset", "upload ids by when they expire", "none: an index", False),
    Key("{everlong}:upload:*", "hash", "a text that comes in parts: its facts and status",
        "upload_seconds after its creation, by the server", False, sealed=True),
    Key("{everlong}:upload:*:parts", "hash", "its parts so far, as JSON by id", "when it is completed, cancelled or expires",
        False),
    Key("{everlong}:response:*", "hash", "what was asked and answered under an id, and where the dialogue stands then: state, "
        "open segment and position", "response_seconds after its last use; DELETE", True, sealed=True),
    Key("{everlong}:responses:*", "stream", "background responses to be answered by one model; consumer group `readers`",
        "none: entries go when done", False),
    Key("{everlong}:replica:*", "string", "that a server process is alive, and its model", "lease_seconds, renewed by the process", True),
    Key("{everlong}:vault", "string", "something that is encrypted if all else is, by which a server sees whether its keys are right",
        "none", False),
    Key("{everlong}:store", "string", "a word that stands in the blob store, too: texts that are not in Redis are deleted only from "
        "that one", "none", False),
    Key("{everlong}:fence", "string", "the last fencing token given out", "none: must only grow", False),
)  # fmt: skip

API_KEYS = "{everlong}:apikeys"
UPLOADS = "{everlong}:uploads"
READERS = "readers"
VAULT = "{everlong}:vault"
STORE = "{everlong}:store"
FENCE = "{everlong}:fence"
REPLICA = "{everlong}:replica:"


def sealed(key: bytes) -> bool:
    """Whether the key is one that a vault seals values of."""
    return any(kind.matches(key.decode()) for kind in KEYS if kind.sealed)


def documents(tenant: str) -> str:
    """The index of a tenant's documents."""
    return f"{{everlong}}:documents:{tenant}"


def sessions(tenant: str) -> str:
    """The index of a tenant's sessions."""
    return f"{{everlong}}:sessions:{tenant}"


def deleted(index: str, id: str) -> str:
    """Where `id` stood in the index of a tenant's documents or sessions."""
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
    """Where a tenant's dialogue stood, by the digest of what was said."""
    return f"{{everlong}}:chat:{tenant}:{digest}"


def api_key(key_id: str) -> str:
    """An API key's hash."""
    return f"{{everlong}}:apikey:{key_id}"


def ticket(digest: str) -> str:
    """A ticket, by the digest of its secret."""
    return f"{{everlong}}:ticket:{digest}"


def requests(tenant: str) -> str:
    """Where a tenant's rate of requests stands."""
    return f"{{everlong}}:requests:{tenant}"


def counted(tenant: str, nonce: str) -> str:
    """That a request, or an answer's tokens, was counted."""
    return f"{{everlong}}:counted:{tenant}:{nonce}"


def streams(tenant: str) -> str:
    """A tenant's running answers."""
    return f"{{everlong}}:streams:{tenant}"


def queued(tenant: str, model: str) -> str:
    """A tenant's readings by a model (fingerprint) that are not done."""
    return f"{{everlong}}:queued:{tenant}:{model}"


def stored(tenant: str) -> str:
    """How many bytes a tenant has stored."""
    return f"{{everlong}}:stored:{tenant}"


def reservations(tenant: str) -> str:
    """The ids of what a tenant has stored until a time."""
    return f"{{everlong}}:held:{tenant}"


def reservation_sizes(tenant: str) -> str:
    """Bytes of what a tenant has stored until a time."""
    return f"{{everlong}}:held:{tenant}:sizes"


def tokens(tenant: str, day: str) -> str:
    """A tenant's tokens of a day."""
    return f"{{everlong}}:tokens:{tenant}:{day}"


def attempt(tenant: str, digest: str) -> str:
    """A request of a tenant with an Idempotency-Key, by the key's digest."""
    return f"{{everlong}}:attempt:{tenant}:{digest}"


def upload(upload_id: str) -> str:
    """An upload's hash."""
    return f"{{everlong}}:upload:{upload_id}"


def blob_owner(id: str) -> str:
    """The hash of the document or upload that a blob is of, by the id that its name begins with."""
    return upload(id) if id.startswith("upload_") else document(id)


def upload_parts(upload_id: str) -> str:
    """The hash of an upload's parts."""
    return f"{{everlong}}:upload:{upload_id}:parts"


def response(response_id: str) -> str:
    """A response's hash."""
    return f"{{everlong}}:response:{response_id}"


def responses(model: str) -> str:
    """The stream of background responses that a model (fingerprint) is to answer."""
    return f"{{everlong}}:responses:{model}"


def jobs(model: str) -> str:
    """The stream of readings that a model (fingerprint) is to do."""
    return f"{{everlong}}:jobs:{model}"


def turns(stream: str) -> str:
    """Whose turn was when in the stream of `jobs` or `responses`."""
    return f"{PREFIX}turns:{stream.removeprefix(PREFIX)}"


def replica(replica_id: str) -> str:
    """The liveness key of a server process."""
    return f"{REPLICA}{replica_id}"
