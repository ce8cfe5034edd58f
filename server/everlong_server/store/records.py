"""The records that Redis holds, as values: `Document`, `Reading`, `Session`; and how they are read from hashes."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Hash = Mapping[bytes, bytes]
DEFAULT_TENANT = "default"
"""Everybody, where no keys are asked for; and whom things belong to that were made before there were tenants."""
_ID = re.compile(r"(doc|ses|resp|upload|part)_[0-9a-f]{32}")


def new_id(prefix: str) -> str:
    """A new identifier, such as `doc_3f…`."""
    return f"{prefix}_{uuid.uuid4().hex}"


def is_id(prefix: str, text: str) -> bool:
    """Whether `text` can be an identifier that `new_id(prefix)` made. Only those become part of a key."""
    return _ID.fullmatch(text) is not None and text.startswith(f"{prefix}_")


def now() -> float:
    """Unix time in seconds."""
    return time.time()


def belongs(tenant: bytes | None) -> str:
    """The tenant that a stored object's field `tenant` names."""
    return DEFAULT_TENANT if tenant is None else tenant.decode()


def reading_id(model: str, documents: Sequence[str]) -> str:
    """One reading for each model fingerprint and sequence of documents."""
    return hashlib.sha256(json.dumps([model, list(documents)]).encode()).hexdigest()[:32]


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian uint32."""
    return struct.pack(f"<{len(tokens)}I", *tokens)


def unpack_tokens(blob: bytes) -> list[int]:
    """The inverse of `pack_tokens`."""
    return list(struct.unpack(f"<{len(blob) // 4}I", blob))


@dataclass(frozen=True, slots=True)
class Document:
    """An uploaded text. `bytes`: of UTF-8. `text_offset`: where the text starts (behind a byte-order mark).

    `digest`: SHA-256 of the blob; None if it was stored before there was one. `format`: what the text was made of ("pdf",
    …); None: it was text.
    """

    id: str
    filename: str | None
    bytes: int
    text_offset: int
    created_at: float
    digest: str | None = None
    format: str | None = None

    def fields(self) -> dict[str, str | int | float]:
        """As it is stored."""
        return {
            "id": self.id, "filename": self.filename or "", "bytes": self.bytes,
            "text_offset": self.text_offset, "created_at": self.created_at, "digest": self.digest or "",
            "format": self.format or "",
        }  # fmt: skip

    @staticmethod
    def of(stored: Hash) -> Document:
        """From a hash."""
        return Document(
            id=stored[b"id"].decode(),
            filename=stored[b"filename"].decode() or None,
            bytes=int(stored[b"bytes"]),
            text_offset=int(stored[b"text_offset"]),
            created_at=float(stored[b"created_at"]),
            digest=stored.get(b"digest", b"").decode() or None,
            format=stored.get(b"format", b"").decode() or None,
        )


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a reading has come in its last document.

    `offset`: a byte of the text at which encoding can be resumed; `skip`: how many tokens from there on are already in
    the state or the open segment. `tokens`: of the document, read. `position`: tokens of all documents and of the chat
    format, read. `open`: the open segment. `segments`: full ones, read. `bytes`: of the text, about, read. `seconds`: of
    reading.
    """

    offset: int = 0
    skip: int = 0
    tokens: int = 0
    position: int = 0
    segments: int = 0
    bytes: int = 0
    seconds: float = 0.0
    open: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """What one model has learnt from documents read in order. `state`: an encoded MemoryState, absent at the start."""

    id: str
    model: str
    documents: tuple[str, ...]
    status: str
    version: int
    cursor: Cursor
    state: bytes | None
    state_bytes: int
    state_digest: str | None
    error: dict[str, str] | None
    tenant: str
    trace: str = ""
    """The `traceparent` of what asked for it first."""

    @property
    def parent(self) -> str | None:
        """The reading of all documents but the last, whose state this one starts from."""
        return reading_id(self.model, self.documents[:-1]) if len(self.documents) > 1 else None

    @staticmethod
    def fields(model: str, documents: Sequence[str], tenant: str, trace: str = "") -> dict[str, str | int | float]:
        """A new one, as it is stored."""
        return {
            "id": reading_id(model, documents), "tenant": tenant, "model": model, "documents": json.dumps(list(documents)),
            "status": "queued", "version": 0, "fence": 0, "attempts": 0, "created_at": now(), **({"trace": trace} if trace else {}),
        }  # fmt: skip

    @staticmethod
    def of(stored: Hash) -> Reading:
        """From a hash, with or without its state."""
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
                position=int(stored.get(b"position", 0)),
                segments=int(stored.get(b"segments", 0)),
                bytes=int(stored.get(b"bytes", 0)),
                seconds=float(stored.get(b"seconds", 0)),
                open=tuple(unpack_tokens(stored.get(b"open", b""))),
            ),
            state=stored.get(b"state"),
            state_bytes=int(stored.get(b"state_bytes", 0)),
            state_digest=stored[b"state_digest"].decode() if stored.get(b"state_digest") else None,
            error=json.loads(stored[b"error"]) if stored.get(b"error") else None,
            tenant=belongs(stored.get(b"tenant")),
            trace=stored.get(b"trace", b"").decode(),
        )


def title_of(question: str) -> str:
    """A question in a line of at most 80 characters, cut between words where it has some."""
    line = " ".join(question.split())
    if len(line) <= _TITLE:
        return line
    end = line.rfind(" ", _TITLE // 2, _TITLE)
    return line[: end if end >= 0 else _TITLE - 1] + "…"


_TITLE = 80


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a dialogue. The first of it may be the system's; then user and assistant take turns."""

    role: Literal["system", "user", "assistant"]
    content: str


RecallChoice = dict[str, int] | Literal[False] | None
"""What was said of recall: `passages`, `tokens`, either or both; False: no passages; None: nothing."""


@dataclass(frozen=True, slots=True)
class Session:
    """A fork of its documents' state plus the dialogue. It has `started` once it has a state: when its documents are
    read, or at its first message. `state` is that state if it was asked for. `title`: its first question, or what it was
    given. `recall`: of messages that say nothing of it."""

    id: str
    model: str
    model_name: str
    documents: tuple[str, ...]
    created_at: float
    version: int
    messages: int
    position: int
    open: tuple[int, ...]
    started: bool
    state: bytes | None
    state_bytes: int
    state_digest: str | None
    title: str | None = None
    recall: RecallChoice = None

    @property
    def reading(self) -> str | None:
        """The reading that the session starts from."""
        return reading_id(self.model, self.documents) if self.documents else None

    @staticmethod
    def fields(session_id: str, model: str, model_name: str, documents: Sequence[str]) -> dict[str, str | int | float]:
        """A new one, as it is stored."""
        return {
            "id": session_id, "model": model, "model_name": model_name, "documents": json.dumps(list(documents)),
            "created_at": now(), "version": 0, "messages": 0, "position": 0,
        }  # fmt: skip

    def after_answer(
        self,
        id: str,
        messages: int,
        *,
        state: bytes,
        state_bytes: int,
        state_digest: str,
        open: Sequence[int],
        position: int,
    ) -> Session:
        """What this one has become after an answer, under another `id`, with so many `messages`."""
        return Session(
            id, self.model, self.model_name, self.documents, now(), 0, messages, position, tuple(open), True, state,
            state_bytes, state_digest,
        )  # fmt: skip

    def all_fields(self) -> dict[str, Any]:
        """All of one that has started, as it is stored."""
        return {
            "id": self.id, "model": self.model, "model_name": self.model_name, "documents": json.dumps(self.documents),
            "created_at": self.created_at, "version": self.version, "messages": self.messages,
            "position": self.position, "open": pack_tokens(self.open), "state": self.state or b"",
            "state_bytes": self.state_bytes, "state_digest": self.state_digest or "",
        }  # fmt: skip

    @staticmethod
    def of(stored: Hash) -> Session:
        """From a hash."""
        return Session(
            id=stored[b"id"].decode(),
            model=stored[b"model"].decode(),
            model_name=stored[b"model_name"].decode(),
            documents=tuple(json.loads(stored[b"documents"])),
            created_at=float(stored[b"created_at"]),
            version=int(stored[b"version"]),
            messages=int(stored[b"messages"]),
            position=int(stored[b"position"]),
            open=tuple(unpack_tokens(stored.get(b"open", b""))),
            started=b"state_bytes" in stored,
            state=stored.get(b"state"),
            state_bytes=int(stored.get(b"state_bytes", 0)),
            state_digest=stored[b"state_digest"].decode() if stored.get(b"state_digest") else None,
            title=stored[b"title"].decode() if b"title" in stored else None,
            recall=json.loads(stored.get(b"recall", b"null")),
        )
