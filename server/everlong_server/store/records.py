"""The records that Redis stores, as values: `Document`, `Reading`, `Session`; with their conversion from and to hashes."""

from __future__ import annotations

import hashlib
import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from everlong_server.store.snapshot import Snapshot
from everlong_server.store.texts import notes
from everlong_server.store.texts.notes import Note

Hash = Mapping[bytes, bytes]
DEFAULT_TENANT = "default"
"""The only tenant of a server that requires no API keys."""
_ID = re.compile(r"(doc|ses|resp|upload|part|vs|vsfb|file|batch)_[0-9a-f]{32}")


def new_id(prefix: str) -> str:
    """Return a new identifier, such as `doc_3f…`."""
    return f"{prefix}_{uuid.uuid4().hex}"


def is_id(prefix: str, text: str) -> bool:
    """Whether `text` has the form of `new_id(prefix)`. Only such text may become part of a Redis key."""
    return _ID.fullmatch(text) is not None and text.startswith(f"{prefix}_")


def now() -> float:
    """Return the Unix time in seconds."""
    return time.time()


def reading_id(model: str, documents: Sequence[str]) -> str:
    """Return the id of the reading of that sequence of documents by the model with that fingerprint."""
    return hashlib.sha256(json.dumps([model, list(documents)]).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Document:
    """An uploaded text. `bytes`: its length in UTF-8. `text_offset`: the byte at which it starts, after a byte-order mark.

    `digest`: SHA-256 of the blob, as hex; None: not checked. `format`: the file format that the text was converted from ("pdf", …); None for
    plain text. `notes`: what the conversion left out or repaired. `original_bytes`: size of the original, if it is kept; else 0.
    `content`: identifies the uploaded file (`ReceivedFile.content`); empty for files in archives, and for documents of 0.1.0.
    """

    id: str
    filename: str | None
    bytes: int
    text_offset: int
    created_at: float
    digest: str | None = None
    format: str | None = None
    notes: tuple[Note, ...] = ()
    original_bytes: int = 0
    content: str = ""

    @property
    def stored_bytes(self) -> int:
        """The bytes that it counts for in its tenant's quota."""
        return self.text_offset + self.bytes + self.original_bytes

    def fields(self) -> dict[str, str | int | float]:
        """Return the fields of the hash that stores it."""
        return {
            "id": self.id, "filename": self.filename or "", "bytes": self.bytes,
            "text_offset": self.text_offset, "created_at": self.created_at, "digest": self.digest or "",
            "format": self.format or "", "notes": notes.encode(self.notes),
            **({"original_bytes": self.original_bytes} if self.original_bytes else {}),
            **({"content": self.content} if self.content else {}),
        }  # fmt: skip

    @staticmethod
    def of(stored: Hash) -> Document:
        """Decode a hash."""
        return Document(
            id=stored[b"id"].decode(),
            filename=stored[b"filename"].decode() or None,
            bytes=int(stored[b"bytes"]),
            text_offset=int(stored[b"text_offset"]),
            created_at=float(stored[b"created_at"]),
            digest=stored[b"digest"].decode() or None,
            format=stored[b"format"].decode() or None,
            notes=notes.decode(stored.get(b"notes", b"").decode()),
            original_bytes=int(stored.get(b"original_bytes", 0)),
            content=stored.get(b"content", b"").decode(),
        )


@dataclass(frozen=True, slots=True)
class Cursor:
    """The progress of a reading in its last document.

    `offset`: a byte of the text at which tokenising can resume. `skip`: how many tokens from there on are in the state or the
    open segment already. `tokens`: tokens of the document that were read. `segments`: full segments that were read. `bytes`:
    bytes of the text that were read, approximately. `seconds`: time spent reading.
    """

    offset: int = 0
    skip: int = 0
    tokens: int = 0
    segments: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Reading:
    """The prefill of a sequence of documents by one model.

    `status`: queued, reading, ready, failed. `version`: counts the checkpoints. `snapshot`: the memory at the last checkpoint;
    its position counts the tokens of all documents and of the chat format.
    """

    id: str
    model: str
    documents: tuple[str, ...]
    status: str
    version: int
    cursor: Cursor
    snapshot: Snapshot
    error: dict[str, str] | None
    tenant: str
    trace: str = ""
    """The `traceparent` of the request that created it."""

    @property
    def parent(self) -> str | None:
        """The id of the reading of all documents but the last, whose state this one starts from."""
        return reading_id(self.model, self.documents[:-1]) if len(self.documents) > 1 else None

    @staticmethod
    def fields(model: str, documents: Sequence[str], tenant: str, trace: str = "") -> dict[str, str | int | float]:
        """Return the fields of the hash that stores a new, queued reading."""
        return {
            "id": reading_id(model, documents), "tenant": tenant, "model": model, "documents": json.dumps(list(documents)),
            "status": "queued", "version": 0, "fence": 0, "attempts": 0, "starts": 0, "created_at": now(), **({"trace": trace} if trace else {}),
        }  # fmt: skip

    @staticmethod
    def of(stored: Hash) -> Reading:
        """Decode a hash, with or without its state."""
        return Reading(
            id=stored[b"id"].decode(),
            model=stored[b"model"].decode(),
            documents=tuple(json.loads(stored[b"documents"])),
            status=stored[b"status"].decode(),
            version=int(stored[b"version"]),
            cursor=Cursor(
                offset=int(stored.get(b"offset", 0)),
                skip=int(stored.get(b"skip", 0)),
                tokens=int(stored.get(b"tokens", 0)),
                segments=int(stored.get(b"segments", 0)),
                bytes=int(stored.get(b"bytes", 0)),
                seconds=float(stored.get(b"seconds", 0)),
            ),
            snapshot=Snapshot.of(stored),
            error=json.loads(stored[b"error"]) if stored.get(b"error") else None,
            tenant=stored[b"tenant"].decode(),
            trace=stored.get(b"trace", b"").decode(),
        )


def title_of(question: str) -> str:
    """Return a question as one line of at most 80 characters, cut between words where possible."""
    line = " ".join(question.split())
    if len(line) <= _TITLE:
        return line
    end = line.rfind(" ", _TITLE // 2, _TITLE)
    return line[: end if end >= 0 else _TITLE - 1] + "…"


_TITLE = 80


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a conversation. The first may be the system's; then user and assistant alternate."""

    role: Literal["system", "user", "assistant"]
    content: str


RecallChoice = dict[str, int] | Literal[False] | None
"""A request's or session's setting for recall: `passages` and `tokens`, either or both; False: no passages; None: not set."""


@dataclass(frozen=True, slots=True)
class Session:
    """A copy of the memory of its documents' reading, and the messages since.

    `snapshot`: its memory. `title`: the first question, or the title that a client gave it. `recall`: the setting for messages
    that have none of their own. `unread`: how many of the last messages its memory has not read: those that it was created with, and
    those before the documents were read. `version`: counts the commits. `parent`: the session that it branched off from. `client`: the
    program that created it; None if an older version did not store it.
    """

    id: str
    model: str
    model_name: str
    documents: tuple[str, ...]
    snapshot: Snapshot = field(default_factory=Snapshot)
    messages: int = 0
    created_at: float = field(default_factory=now)
    version: int = 0
    title: str | None = None
    recall: RecallChoice = None
    unread: int = 0
    parent: str | None = None
    client: str | None = None

    @property
    def started(self) -> bool:
        """Whether it has a state, which it gets when its documents are ready; without documents, with its first message."""
        return self.snapshot.size is not None

    @property
    def reading(self) -> str | None:
        """The id of the reading that the session starts from."""
        return reading_id(self.model, self.documents) if self.documents else None

    def fields(self) -> dict[str, Any]:
        """Return the fields of the hash that stores it."""
        return {
            "id": self.id, "model": self.model, "model_name": self.model_name, "documents": json.dumps(self.documents),
            "created_at": self.created_at, "version": self.version, "messages": self.messages, "unread": self.unread,
            **self.snapshot.fields(), **({"title": self.title} if self.title is not None else {}),
            **({"recall": json.dumps(self.recall)} if self.recall is not None else {}),
            **({"parent": self.parent} if self.parent else {}),
            **({"client": self.client} if self.client else {}),
        }  # fmt: skip

    @staticmethod
    def of(stored: Hash) -> Session:
        """Decode a hash, with or without its state."""
        return Session(
            id=stored[b"id"].decode(),
            model=stored[b"model"].decode(),
            model_name=stored[b"model_name"].decode(),
            documents=tuple(json.loads(stored[b"documents"])),
            snapshot=Snapshot.of(stored),
            messages=int(stored[b"messages"]),
            created_at=float(stored[b"created_at"]),
            version=int(stored[b"version"]),
            title=stored[b"title"].decode() if b"title" in stored else None,
            recall=json.loads(stored.get(b"recall", b"null")),
            unread=int(stored.get(b"unread", 0)),
            parent=stored[b"parent"].decode() if b"parent" in stored else None,
            client=stored[b"client"].decode() if b"client" in stored else None,
        )
