"""A document: an uploaded file, and how far the server has read it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """The reason why the server could not read a document or a session's documents."""

    message: str
    code: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentNote:
    """What a conversion left out of a document's text, or repaired. `page`: counted from 1; `part`: a part of the file."""

    text: str
    page: int | None = None
    part: str | None = None

    def __str__(self) -> str:
        """Return the note in one line."""
        place = [f"page {self.page}"] if self.page is not None else []
        return ": ".join([*place, *([self.part] if self.part else []), self.text])


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A document on the server.

    `status` is queued, reading, ready or failed. `bytes` were received; `tokens` and `segments` were read so far.
    `progress` goes from 0 to 1, and is None while the length is unknown. `tokens_per_second` is None unless the document
    is being read. `format` is the format that the text was converted from; `notes` say what the conversion left out of it or
    repaired. `state_digest` is the digest of the final memory state. `created_at` is in Unix seconds.
    """

    id: str
    filename: str | None = None
    status: str
    format: str | None = None
    notes: tuple[DocumentNote, ...] = ()
    bytes: int = 0
    tokens: int = 0
    segments: int = 0
    progress: float | None = None
    tokens_per_second: float | None = None
    model: str | None = None
    state_digest: str | None = None
    error: Failure | None = None
    created_at: float = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadedArchive:
    """The documents that the server made of an archive's files, and `notes` on the files that it left out."""

    documents: tuple[Document, ...]
    notes: tuple[DocumentNote, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentText:
    """A part of a document's text, its bytes `start_byte` to `end_byte` in UTF-8. `bytes` is the length of the whole text."""

    document: str
    start_byte: int
    end_byte: int
    bytes: int
    text: str
