"""Receiving a text: streamed to the blob store as it comes, checked on the way, never held in memory."""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import re
import unicodedata
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from everlong_server.engine.documents import formats
from everlong_server.errors import InvalidRequest, TooLarge, UnsupportedMedia
from everlong_server.pools import Pool
from everlong_server.store.texts import outline
from everlong_server.store.texts.blobs import Blobs, BlobWriter

_MAGIC = {
    b"\x1f\x8b": "a gzip file",
    b"7z\xbc\xaf\x27\x1c": "a 7z file",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"\xd0\xcf\x11\xe0": "an old Office file",
    b"{\\rtf": "an RTF file",
}
_BOM = codecs.BOM_UTF8
# curl --data-binary says application/x-www-form-urlencoded unless told otherwise.
_RAW_TYPES = ("", "application/octet-stream", "application/x-www-form-urlencoded", *formats.MEDIA_TYPES)
_MAX_NAME = 255
_BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class UploadSource(Protocol):
    """Where a document comes from: a request is one."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Of its content: type and length."""

    @property
    def query_params(self) -> Mapping[str, str]:
        """`filename`, if it has one."""

    def stream(self) -> AsyncIterator[bytes]:
        """The content in pieces."""


FormFields = Mapping[str, Sequence[str]]
"""Fields of a form, and the values that each can have."""


@dataclass(slots=True)
class TextChecker:
    """Checks bytes that arrive in pieces: UTF-8, and nothing that is known not to be text; or of a format that can be
    turned into text, `foreign`: then the bytes are only counted."""

    limit: int
    size: int = 0
    foreign: str | None = None
    digest: Any = field(default_factory=hashlib.sha256)
    _head: bytes = b""
    _decoder: codecs.IncrementalDecoder = field(default_factory=codecs.getincrementaldecoder("utf-8"))

    def feed(self, data: bytes) -> None:
        """Raises `TooLarge`, `UnsupportedMedia` or `InvalidRequest` naming what was found and where."""
        if len(self._head) < 1024:
            self._head += data[: 1024 - len(self._head)]
            self.foreign = self.foreign or formats.recognised(self._head)
            for magic, name in _MAGIC.items():
                if self._head.startswith(magic):
                    raise UnsupportedMedia(f"the document is {name}; upload plain UTF-8 text", param="file")
            if b"\0" in self._head and self.foreign is None:
                raise UnsupportedMedia(
                    "the document holds NUL bytes: it is no text; upload plain UTF-8 text", param="file"
                )
        if self.size + len(data) > self.limit:
            raise too_large(self.limit)
        self.size += len(data)
        self.digest.update(data)
        if self.foreign is None:
            self._check(data)

    def _check(self, data: bytes) -> None:
        pending = len(self._decoder.getstate()[0])
        try:
            self._decoder.decode(data)
        except UnicodeDecodeError as error:
            at = self.size - len(data) - pending + error.start
            raise InvalidRequest(
                f"the document is not UTF-8: {error.reason} at byte {at}", param="file", code="invalid_utf8"
            ) from None

    def finish(self) -> int:
        """The byte where the text starts, behind a byte-order mark. Raises `InvalidRequest` if there is no text."""
        if self.foreign is not None:
            return 0
        try:
            self._decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            raise InvalidRequest(
                f"the document is not UTF-8: it ends inside a character, at byte {self.size}",
                param="file",
                code="invalid_utf8",
            ) from None
        start = len(_BOM) if self._head.startswith(_BOM) else 0
        if self.size == start:
            raise InvalidRequest("the document is empty", param="file", code="empty_document")
        return start


@dataclass(slots=True, weakref_slot=True)
class BytesInFlight:
    """Bytes that this server is receiving for one upload, in parts side by side."""

    bytes: int = 0


@dataclass(slots=True)
class PartChecker:
    """Bytes of which only the whole is a text: they are counted. `limit`: of them, and `room`: of them and what else is
    `in_flight`."""

    limit: int
    room: int
    in_flight: BytesInFlight
    size: int = 0

    def feed(self, data: bytes) -> None:
        """Raises `TooLarge`."""
        self.size += len(data)
        self.in_flight.bytes += len(data)
        if self.size > self.limit or self.in_flight.bytes > self.room:
            raise TooLarge(f"the part has more than the {self.limit} bytes that the upload has room for", param="data")

    def end(self) -> None:
        """They are there, or thrown away."""
        self.in_flight.bytes -= self.size


def too_large(limit: int) -> TooLarge:
    """The error for a document of more than `limit` bytes."""
    return TooLarge(f"the document has more than {limit} bytes, the limit (EVERLONG_MAX_DOCUMENT_BYTES)", param="file")


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """What came: the text's bytes, where it starts in the blob, the blob's SHA-256, and what the sender calls it.

    `format`: None for text; else what the first bytes say that it is, and at last, what it was `converted` from. `suffix`:
    behind the blob's name until then; its own, since a request that was taken over comes to the same name.
    """

    bytes: int
    text_offset: int
    digest: str
    filename: str | None
    format: str | None
    suffix: str = field(default_factory=lambda: f".{uuid.uuid4().hex}.upload", compare=False)


class DiscardingWriter:
    """In place of a blob: for a document that is there already."""

    async def write(self, data: bytes) -> None:
        """It is only looked at."""

    async def commit(self, suffix: str = "") -> None:
        """There is nothing to keep."""

    async def abort(self) -> None:
        """There is nothing to throw away."""


async def receive(
    request: UploadSource,
    writer: BlobWriter | DiscardingWriter,
    limit: int,
    form: FormFields | None,
    allow: Callable[[ReceivedFile], Awaitable[None]],
) -> ReceivedFile:
    """The request's document, written by `writer`, durable. Raises what is wrong with it, leaving no blob behind.

    `form`: what must stand beside the document, which then has to be part of a form. `allow`: raises if what has come
    is not to be kept. What is no text is to be `converted`.
    """
    try:
        received = await _receive(request, writer, limit, form)
        await allow(received)
        await commit(writer, received)
    except BaseException:
        await writer.abort()
        raise
    return received


async def commit(writer: BlobWriter | DiscardingWriter, received: ReceivedFile) -> None:
    """Makes what was written durable: as the text that it is, or as what is to be `converted`."""
    await writer.commit(received.suffix if received.format else "")


_CONVERTERS = Pool("everlong-convert", 2)
"""A conversion may take gigabytes of memory and minutes."""


async def converted(blobs: Blobs, name: str, received: ReceivedFile, limit: int) -> ReceivedFile:
    """What was received as the blob `name`, as text; marks beside it. Raises what is wrong with it, and deletes no text: that may
    be another server's, which has taken the request over."""
    kind = received.format
    if kind is None:
        return received

    def convert() -> ReceivedFile:
        with blobs.fill(name) as text, blobs.local(name + received.suffix) as uploaded:
            made_of, found = formats.convert(uploaded, kind, text, limit)
            outline.save(blobs, name, found)
            with text.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            return replace(received, bytes=text.stat().st_size, text_offset=0, digest=digest, format=made_of)

    converting = asyncio.create_task(_CONVERTERS.run(convert))
    try:
        return await asyncio.shield(converting)
    except BaseException:
        await asyncio.wait([converting])  # whoever waits for it may have gone; it writes on until it ends
        raise
    finally:
        await blobs.delete(name + received.suffix)


async def _receive(
    request: UploadSource, writer: BlobWriter | DiscardingWriter, limit: int, form: FormFields | None
) -> ReceivedFile:
    length = request.headers.get("content-length")
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    multipart = kind == b"multipart/form-data"
    if length is not None and length.isdigit() and int(length) > limit + (4096 if multipart else 0):
        raise too_large(limit)
    if form and not multipart:
        raise UnsupportedMedia(
            f"content type {kind.decode('latin-1')[:60]!r}: send multipart/form-data", param="content-type"
        )
    if not multipart:
        _check_type(kind.decode("latin-1"), options.get(b"charset", b"utf-8").decode("latin-1"))
    text = TextChecker(limit)
    if multipart:
        filename = await _multipart(request, writer, text, options.get(b"boundary", b""), form or {})
        filename = filename or request.query_params.get("filename")
    else:
        filename = request.query_params.get("filename")
        async for data in request.stream():
            text.feed(data)
            await writer.write(data)
    start = text.finish()
    return ReceivedFile(text.size - start, start, text.digest.hexdigest(), clean_filename(filename or ""), text.foreign)


def clean_filename(given: str) -> str | None:
    """What a document is called, for people: no path, and nothing that makes a name look like another one.

    Raises `InvalidRequest`.
    """
    if len(given) > _MAX_NAME:
        raise InvalidRequest(f"filename has {len(given)} characters, the limit is {_MAX_NAME}", param="filename")
    name = unicodedata.normalize("NFC", re.split(r"[/\\]", given)[-1]).strip()
    # Control characters, lone surrogates, and those that turn the direction of writing.
    bad = next((c for c in name if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in _BIDI_CONTROLS), None)
    if bad is not None:
        raise InvalidRequest(f"filename: it has the character U+{ord(bad):04X}", param="filename")
    return None if name in ("", ".", "..") else name


async def receive_part(request: Request, blobs: Blobs, name: str, piece: PartChecker) -> None:
    """The part `data` of the request's form in the blob `name`, durable, and counted. Raises what is wrong with it."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data":
        raise UnsupportedMedia(
            f"content type {kind.decode('latin-1')[:60]!r}: send multipart/form-data", param="content-type"
        )
    writer = await blobs.create(name)
    try:
        await _multipart(request, writer, piece, options.get(b"boundary", b""), {}, "data")
        if not piece.size:
            raise InvalidRequest("the part is empty", param="data")
        await writer.commit()
    except BaseException:
        await writer.abort()
        raise


def _check_type(kind: str, charset: str) -> None:
    if not (kind in _RAW_TYPES or kind.startswith("text/")):
        raise UnsupportedMedia(
            f"content type {kind[:60]!r}: send text/plain or multipart/form-data", param="content-type"
        )
    if charset.lower().replace("_", "-") not in ("utf-8", "utf8", "us-ascii", "ascii"):
        raise UnsupportedMedia(f"charset {charset[:60]!r}: send UTF-8", param="content-type")


async def _multipart(
    request: UploadSource,
    writer: BlobWriter | DiscardingWriter,
    text: TextChecker | PartChecker,
    boundary: bytes,
    form: FormFields,
    content: str = "file",
) -> str | None:
    """Streams the part named `content`; its file name. Of others, those of `form` must be there; the rest are errors."""
    if not boundary:
        raise InvalidRequest("multipart body without a boundary", param="content-type", code="invalid_multipart")
    parts = _FormParser(form, content)
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_header_field": lambda data, start, stop: parts.name.extend(data[start:stop]),
                "on_header_value": lambda data, start, stop: parts.value.extend(data[start:stop]),
                "on_header_end": parts.header_end,
                "on_headers_finished": parts.headers_finished,
                "on_part_data": parts.part_data,
                "on_part_end": parts.part_end,
                "on_end": parts.end,
            },
        )
        async for data in request.stream():
            parser.write(data)
            for part in parts.waiting:
                text.feed(part)
                await writer.write(part)
            parts.waiting.clear()
        parser.finalize()
    except FormParserError as error:  # of a boundary that is too long, too
        raise InvalidRequest(f"malformed multipart body: {error}", code="invalid_multipart") from None
    return parts.finish()


@dataclass(slots=True)
class _FormParser:
    """The parts of a form as they come: the document's bytes go into `waiting`, fields are checked here."""

    form: FormFields
    content: str
    """The document's part."""
    name: bytearray = field(default_factory=bytearray)
    value: bytearray = field(default_factory=bytearray)
    waiting: list[bytes] = field(default_factory=list)
    _header: dict[bytes, bytes] = field(default_factory=dict)
    _files: list[str | None] = field(default_factory=list)
    _fields: dict[str, bytearray] = field(default_factory=dict)
    _field: str | None = None
    """The field whose value is coming; None: the document."""
    _ended: bool = False

    def header_end(self) -> None:
        self._header[bytes(self.name).lower()] = bytes(self.value)
        self.name.clear()
        self.value.clear()

    def headers_finished(self) -> None:
        _, options = parse_options_header(self._header.get(b"content-disposition", b""))
        part = options.get(b"name", b"").decode("utf-8", "replace")
        self._header.clear()
        self._field = None
        if part in self.form and part not in self._fields:
            self._field, self._fields[part] = part, bytearray()
            return
        if part != self.content:
            raise InvalidRequest(
                f"unknown part {part[:60]!r}; send the document as the part {self.content!r}",
                param=part[:60],
                code="unknown_parameter",
            )
        if self._files:
            raise InvalidRequest("more than one document in one request", param=self.content)
        given = options.get(b"filename")
        self._files.append(given.decode("utf-8", "replace") if given is not None else None)

    def part_data(self, data: bytes, start: int, stop: int) -> None:
        if self._field is None:
            self.waiting.append(data[start:stop])
            return
        value = self._fields[self._field]
        value += data[start : min(stop, start + _MAX_NAME)]
        if len(value) > _MAX_NAME:  # no value is so long: it need not be kept to see that it is wrong
            self.part_end()

    def part_end(self) -> None:
        if self._field is not None:
            given, allowed = self._fields[self._field].decode("utf-8", "replace"), self.form[self._field]
            if given not in allowed:
                raise InvalidRequest(
                    f"{self._field}: {given[:60]!r}; it can be {' or '.join(map(repr, allowed))}", param=self._field
                )

    def end(self) -> None:
        self._ended = True

    def finish(self) -> str | None:
        """The document's file name. Raises what is missing."""
        if not self._files:
            raise InvalidRequest(
                f"multipart body without a part {self.content!r}", param=self.content, code="missing_parameter"
            )
        for name in self.form:
            if name not in self._fields:
                raise InvalidRequest(f"multipart body without a part {name!r}", param=name, code="missing_parameter")
        if not self._ended:
            raise InvalidRequest("the multipart body was cut off", code="invalid_multipart")
        return self._files[0]
