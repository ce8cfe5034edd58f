"""Every Redis key of everlong: its name, what it holds, and how long it lives. Nothing else makes a key."""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = "everlong:"


@dataclass(frozen=True, slots=True)
class Key:
    """`ttl`: what ends the key's life: a time in words, or why it has none."""

    pattern: str
    type: str
    holds: str
    ttl: str
    expires: bool

    def matches(self, key: str) -> bool:
        """Whether `key` is one of these."""
        return re.fullmatch(re.escape(self.pattern).replace(r"\*", r"[^:]+"), key) is not None


KEYS = (
    Key("everlong:documents", "zset", "document ids by time of creation", "none: an index", False),
    Key("everlong:document:*", "hash", "a document's facts and where its text is", "none: until DELETE", False),
    Key("everlong:document:*:readings", "set", "readings that involve the document", "none: until its DELETE", False),
    Key("everlong:reading:*", "hash", "state, cursor and progress of documents read in order by one model",
        "none: until DELETE of one of its documents", False),
    Key("everlong:reading:*:children", "set", "readings that wait for this one", "deleted when it ends", False),
    Key("everlong:jobs:*", "stream", "readings to be done by one model; consumer group `readers`",
        "none: entries go when done", False),
    Key("everlong:sessions", "zset", "session ids by time of creation", "none: an index", False),
    Key("everlong:session:*", "hash", "a session's state, open segment and position", "none: until DELETE", False),
    Key("everlong:session:*:messages", "list", "the dialogue as JSON", "none: until DELETE of its session", False),
    Key("everlong:session:*:lease", "string", "who may write the session: replica and fencing token",
        "lease_seconds, renewed while an answer is generated", True),
    Key("everlong:chat:*", "hash", "where a dialogue stood that its caller keeps: state, open segment and position, by "
        "the digest of what was said", "chat_seconds after its last use", True),
    Key("everlong:uploads", "zset", "upload ids by when they expire", "none: an index", False),
    Key("everlong:upload:*", "hash", "a text that comes in parts: its facts and status",
        "upload_seconds after its creation, by the server", False),
    Key("everlong:upload:*:parts", "hash", "its parts so far, as JSON by id", "when it is completed, cancelled or expires",
        False),
    Key("everlong:response:*", "hash", "what was asked and answered under an id, and where the dialogue stands then: state, "
        "open segment and position", "response_seconds after its last use; DELETE", True),
    Key("everlong:responses:*", "stream", "background responses to be answered by one model; consumer group `readers`",
        "none: entries go when done", False),
    Key("everlong:replica:*", "string", "that a server process is alive, and its model", "lease_seconds, renewed by the process", True),
    Key("everlong:fence", "string", "the last fencing token given out", "none: must only grow", False),
)  # fmt: skip

DOCUMENTS = "everlong:documents"
SESSIONS = "everlong:sessions"
UPLOADS = "everlong:uploads"
READERS = "readers"
FENCE = "everlong:fence"
REPLICA = "everlong:replica:"


def document(document_id: str) -> str:
    """A document's hash."""
    return f"everlong:document:{document_id}"


def document_readings(document_id: str) -> str:
    """The set of readings that involve the document."""
    return f"everlong:document:{document_id}:readings"


def reading(reading_id: str) -> str:
    """A reading's hash."""
    return f"everlong:reading:{reading_id}"


def reading_children(reading_id: str) -> str:
    """The set of readings that wait for this one."""
    return f"everlong:reading:{reading_id}:children"


def session(session_id: str) -> str:
    """A session's hash."""
    return f"everlong:session:{session_id}"


def session_messages(session_id: str) -> str:
    """The list of a session's messages."""
    return f"everlong:session:{session_id}:messages"


def session_lease(session_id: str) -> str:
    """The lease on a session."""
    return f"everlong:session:{session_id}:lease"


def chat(digest: str) -> str:
    """Where a dialogue stood, by the digest of what was said."""
    return f"everlong:chat:{digest}"


def upload(upload_id: str) -> str:
    """An upload's hash."""
    return f"everlong:upload:{upload_id}"


def upload_parts(upload_id: str) -> str:
    """The hash of an upload's parts."""
    return f"everlong:upload:{upload_id}:parts"


def response(response_id: str) -> str:
    """A response's hash."""
    return f"everlong:response:{response_id}"


def responses(model: str) -> str:
    """The stream of background responses that a model (fingerprint) is to answer."""
    return f"everlong:responses:{model}"


def jobs(model: str) -> str:
    """The stream of readings that a model (fingerprint) is to do."""
    return f"everlong:jobs:{model}"


def replica(replica_id: str) -> str:
    """The liveness key of a server process."""
    return f"{REPLICA}{replica_id}"
