"""Receives a file: streams it to the blob store and checks it on the way, without holding it in memory."""

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
# `curl --data-binary` sends application/x-www-form-urlencoded by default.
_RAW_TYPES = ("", "application/octet-stream", "application/x-www-form-urlencoded", *formats.MEDIA_TYPES)
_MAX_NAME = 255
_BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class UploadSource(Protocol):
    """A source of a document, such as a request."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers, of which `content-type` and `content-length` are read."""

    @property
    def query_params(self) -> Mapping[str, str]:
        """Query parameters, of which `filename` is read."""

    def stream(self) -> AsyncIterator[bytes]:
        """Yield the content in chunks."""


FormFields = Mapping[str, Sequence[str]]
"""Required fields of a form, and the allowed values of each."""


@dataclass(slots=True)
class TextChecker:
    """Checks, chunk by chunk, that a file is UTF-8 text. Only counts the bytes of a file in a format that can be converted to
    text; `foreign` is that format."""

    limit: int
    size: int = 0
    foreign: str | None = None
    digest: Any = field(default_factory=hashlib.sha256)
    _head: bytes = b""
    _decoder: codecs.IncrementalDecoder = field(default_factory=codecs.getincrementaldecoder("utf-8"))

    def feed(self, data: bytes) -> None:
        """Check the next chunk. Raises `TooLarge`, `UnsupportedMedia` or `InvalidRequest` with the problem and its place."""
        if len(self._head) < 1024:
            self._head += data[: 1024 - len(self._head)]
            self.foreign = self.foreign or formats.recognised(self._head)
            for magic, name in _MAGIC.items():
                if self._head.startswith(magic):
                    raise UnsupportedMedia(
                        f"the document is {name}: upload UTF-8 text or a supported format", param="file"
                    )
            if b"\0" in self._head and self.foreign is None:
                raise UnsupportedMedia(
                    "the document contains NUL bytes, so it is not text: upload UTF-8 text or a supported format",
                    param="file",
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
        """Return the offset of the text's first byte, after a byte-order mark. Raises `InvalidRequest` if there is no text."""
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
    """Number of bytes that this server is receiving for one multipart upload, in concurrent parts."""

    bytes: int = 0


@dataclass(slots=True)
class PartChecker:
    """Counts the bytes of an upload's part. `limit`: maximum of this part; `room`: maximum of all parts `in_flight`.

    Only the whole upload is checked to be text.
    """

    limit: int
    room: int
    in_flight: BytesInFlight
    size: int = 0

    def feed(self, data: bytes) -> None:
        """Count the next chunk. Raises `TooLarge` beyond the limits."""
        self.size += len(data)
        self.in_flight.bytes += len(data)
        if self.size > self.limit or self.in_flight.bytes > self.room:
            raise TooLarge(f"the part is larger than the {self.limit} bytes that are left in the upload", param="data")

    def end(self) -> None:
        """Stop counting the part as in flight."""
        self.in_flight.bytes -= self.size


def too_large(limit: int) -> TooLarge:
    """Return the error for a document of more than `limit` bytes."""
    return TooLarge(
        f"the document is larger than the limit of {limit} bytes (EVERLONG_MAX_DOCUMENT_BYTES)", param="file"
    )


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """A received file: size of its text in bytes, offset of the text in the blob, SHA-256 of the blob, file name.

    `format`: None for text; otherwise the format that its first bytes show, and after the conversion, the format it was
    converted from. `suffix`: suffix of the blob's name until the conversion. It is unique, because a retry of the request
    uses the same name.
    """

    bytes: int
    text_offset: int
    digest: str
    filename: str | None
    format: str | None
    suffix: str = field(default_factory=lambda: f".{uuid.uuid4().hex}.upload", compare=False)


class DiscardingWriter:
    """A writer that discards the data, for a document that is stored already."""

    async def write(self, data: bytes) -> None:
        """Discard `data`."""

    async def commit(self, suffix: str = "") -> None:
        """Do nothing."""

    async def abort(self) -> None:
        """Do nothing."""


async def receive(
    request: UploadSource,
    writer: BlobWriter | DiscardingWriter,
    limit: int,
    form: FormFields | None,
    allow: Callable[[ReceivedFile], Awaitable[None]],
) -> ReceivedFile:
    """Receive the request's document with `writer`, durably. Leaves no blob if it is invalid.

    `form`: fields that the form must have; None accepts a plain body, too. `allow`: raises an error to reject the received
    file. A file that is not text must still be `converted`.
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
    """Make the written blob durable, under its own name if it is text, else under the name of a file to convert."""
    await writer.commit(received.suffix if received.format else "")


_CONVERTERS = Pool("everlong-convert", 2)
"""Few threads, as a conversion may take gigabytes of memory and minutes."""


async def converted(blobs: Blobs, name: str, received: ReceivedFile, limit: int) -> ReceivedFile:
    """Convert the received file to text in the blob `name`, and store its outline. Returns it unchanged if it is text.

    Raises `ServerError` if the file cannot be converted. Does not delete the text then, as it may belong to another server
    that handles a retry of the request.
    """
    kind = received.format
    if kind is None:
        return received

    def convert() -> ReceivedFile:
        with blobs.fill(name) as text, blobs.local(name + received.suffix) as uploaded:
            source_format, headings = formats.convert(uploaded, kind, text, limit)
            outline.save(blobs, name, headings)
            with text.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            return replace(received, bytes=text.stat().st_size, text_offset=0, digest=digest, format=source_format)

    converting = asyncio.create_task(_CONVERTERS.run(convert))
    try:
        return await asyncio.shield(converting)
    except BaseException:
        await asyncio.wait([converting])  # a cancelled conversion writes on until it ends
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
    """Return the file name without its path, in NFC; None if nothing is left.

    Raises `InvalidRequest` for a name that is too long, or with characters that make it look like another one.
    """
    if len(given) > _MAX_NAME:
        raise InvalidRequest(f"filename has {len(given)} characters, the limit is {_MAX_NAME}", param="filename")
    name = unicodedata.normalize("NFC", re.split(r"[/\\]", given)[-1]).strip()
    # Control characters, lone surrogates, and characters that change the direction of writing.
    bad = next((c for c in name if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in _BIDI_CONTROLS), None)
    if bad is not None:
        raise InvalidRequest(f"filename: the character U+{ord(bad):04X} is not allowed", param="filename")
    return None if name in ("", ".", "..") else name


async def receive_part(request: Request, blobs: Blobs, name: str, piece: PartChecker) -> None:
    """Store the form's part `data` as the blob `name`, durably. Raises `ServerError` if it is invalid or too large."""
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
            f"content type {kind[:60]!r} is not supported: send text/plain or multipart/form-data", param="content-type"
        )
    if charset.lower().replace("_", "-") not in ("utf-8", "utf8", "us-ascii", "ascii"):
        raise UnsupportedMedia(f"charset {charset[:60]!r} is not supported: send UTF-8", param="content-type")


async def _multipart(
    request: UploadSource,
    writer: BlobWriter | DiscardingWriter,
    text: TextChecker | PartChecker,
    boundary: bytes,
    form: FormFields,
    content: str = "file",
) -> str | None:
    """Stream the part named `content` to `writer` and return its file name. Parts of `form` are required; others are errors."""
    if not boundary:
        raise InvalidRequest(
            "the content type multipart/form-data has no boundary", param="content-type", code="invalid_multipart"
        )
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
    except FormParserError as error:  # also raised for a boundary that is too long
        raise InvalidRequest(f"malformed multipart body: {error}", code="invalid_multipart") from None
    return parts.finish()


@dataclass(slots=True)
class _FormParser:
    """Collects the parts of a form while it is parsed. The document's bytes go to `waiting`; fields are checked here."""

    form: FormFields
    content: str
    """Name of the document's part."""
    name: bytearray = field(default_factory=bytearray)
    value: bytearray = field(default_factory=bytearray)
    waiting: list[bytes] = field(default_factory=list)
    _header: dict[bytes, bytes] = field(default_factory=dict)
    _files: list[str | None] = field(default_factory=list)
    _fields: dict[str, bytearray] = field(default_factory=dict)
    _field: str | None = None
    """The field whose value is being parsed; None: the document."""
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
                f"unknown part {part[:60]!r}: send the document as the part {self.content!r}",
                param=part[:60],
                code="unknown_parameter",
            )
        if self._files:
            raise InvalidRequest("the request has more than one document: send one", param=self.content)
        given = options.get(b"filename")
        self._files.append(given.decode("utf-8", "replace") if given is not None else None)

    def part_data(self, data: bytes, start: int, stop: int) -> None:
        if self._field is None:
            self.waiting.append(data[start:stop])
            return
        value = self._fields[self._field]
        value += data[start : min(stop, start + _MAX_NAME)]
        if len(value) > _MAX_NAME:  # longer than any allowed value
            self.part_end()

    def part_end(self) -> None:
        if self._field is not None:
            given, allowed = self._fields[self._field].decode("utf-8", "replace"), self.form[self._field]
            if given not in allowed:
                raise InvalidRequest(
                    f"{self._field} must be {' or '.join(map(repr, allowed))}, got {given[:60]!r}", param=self._field
                )

    def end(self) -> None:
        self._ended = True

    def finish(self) -> str | None:
        """Return the document's file name. Raises `InvalidRequest` if a part is missing or the body is incomplete."""
        if not self._files:
            raise InvalidRequest(
                f"the multipart body has no part {self.content!r}", param=self.content, code="missing_parameter"
            )
        for name in self.form:
            if name not in self._fields:
                raise InvalidRequest(f"the multipart body has no part {name!r}", param=name, code="missing_parameter")
        if not self._ended:
            raise InvalidRequest("the multipart body ends before its last boundary", code="invalid_multipart")
        return self._files[0]
