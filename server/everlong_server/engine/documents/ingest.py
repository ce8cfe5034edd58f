"""`Ingest`: adds and deletes documents. Receives a file, checks it, converts it to text, stores it and queues its reading.

Uploads, downloads, OpenAI's files and multipart uploads all go through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import uuid
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, TypeVar

from redis.exceptions import RedisError, ResponseError

from everlong_server.engine.device.engine import Engine
from everlong_server.engine.documents.formats import conversion, recognition
from everlong_server.engine.documents.formats.conversion import Conversion
from everlong_server.engine.documents.formats.languages import ANY_LANGUAGE, Language
from everlong_server.engine.documents.text_checker import Declaration, TextChecker, clean_filename
from everlong_server.engine.documents.token_offsets import TokenOffsets
from everlong_server.errors import InvalidRequest, NotFound, ServerError, TooLarge
from everlong_server.pools import SharedPool
from everlong_server.store.backup.running import is_running
from everlong_server.store.chats import Chats
from everlong_server.store.documents import Documents
from everlong_server.store.idempotency import IdempotencyRecord
from everlong_server.store.records import Document, is_id, now, reading_id
from everlong_server.store.redis.connection import Client
from everlong_server.store.search.passages import Passages
from everlong_server.store.tenants.quota import Quota
from everlong_server.store.texts import originals, outline
from everlong_server.store.texts.blobs import Blobs, BlobWriter, DiscardingWriter
from everlong_server.store.texts.notes import Note

_CONVERTERS = SharedPool("everlong-convert", 3, each=2)
"""Few threads, as a conversion may take gigabytes of memory and minutes."""
_READERS = 5
"""Version of the file readers. Raise it when a reader's output changes: uploads with `reuse` then convert a file again."""

T = TypeVar("T")
PageReport: TypeAlias = Callable[[int, int], object]
"""Takes the page that is being read, counted from 1, and the number of pages."""


class FileSource(Declaration, Protocol):
    """A file that is being received. Its name and media type are known once `chunks` has yielded the first chunk."""

    @property
    def announced_bytes(self) -> int:
        """Size that the sender announced; 0 if unknown."""

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the content. Raises `ServerError` if it cannot be received."""


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """A received file: size of its text in bytes, offset of the text in the blob, SHA-256 of the blob, file name.

    `format`: None for text; otherwise the kind that its first bytes show, and after the conversion, the format it was
    converted from, with `notes` on what is not in the text. `content`: equal for files that become the same document; "" for files of
    archives. `suffix`: suffix of the blob's name until the conversion. It is unique, because a retry of the request uses the same name.
    """

    bytes: int
    text_offset: int
    digest: str
    filename: str | None
    format: str | None
    notes: tuple[Note, ...] = ()
    original_bytes: int = 0
    content: str = ""
    suffix: str = field(default_factory=lambda: f".{uuid.uuid4().hex}.upload", compare=False)

    def identified(self, language: Language) -> ReceivedFile:
        """Return the file with its `content`. `language`: of the text in pictures."""
        how = [] if self.format is None else [language.name, recognition.is_installed(), _READERS]
        parts = json.dumps([self.digest, self.format, *how])
        return replace(self, content=hashlib.sha256(parts.encode()).hexdigest())

    async def commit(self, writer: BlobWriter | DiscardingWriter) -> None:
        """Make the written blob durable, under its own name if it is text, else under the name of a file to convert."""
        await writer.commit(self.suffix if self.format else "")

    def converted(self, blobs: Blobs, name: str, text: Path, uploaded: Path, made: Conversion) -> ReceivedFile:
        """Return the file after its conversion to the local file `text`. Stores what is kept next to the text. Blocks."""
        outline.save(blobs, name, made.outline)
        with text.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        original = uploaded.stat().st_size if made.format == "pdf" else 0
        if original:
            originals.save(blobs, name, uploaded)
        return replace(
            self, bytes=text.stat().st_size, text_offset=0, digest=digest, format=None if made.format == "text" else made.format,
            notes=tuple(made.notes), original_bytes=original,
        )  # fmt: skip

    def as_document(self, document_id: str) -> Document:
        """Return the document record of this file."""
        return Document(
            document_id, self.filename, self.bytes, self.text_offset, now(), self.digest, self.format, self.notes,
            self.original_bytes, self.content,
        )  # fmt: skip


async def receive(
    source: FileSource, writer: BlobWriter | DiscardingWriter, limit: int, *, plain: bool = False
) -> ReceivedFile:
    """Stream a file of at most `limit` bytes to `writer` and check it. Does not commit it. `plain`: see `TextChecker`.

    Raises `ServerError` if the file is too large, not text, and not in a format that can be converted to text.
    """
    checker = TextChecker(limit, source, plain)
    async with contextlib.aclosing(source.chunks()) as chunks:
        async for chunk in chunks:
            checker.feed(chunk)
            await writer.write(chunk)
    start = await asyncio.to_thread(checker.finish)  # it can parse JSON
    filename = clean_filename(source.filename or "")
    return ReceivedFile(checker.size - start, start, checker.digest.hexdigest(), filename, checker.foreign)


@dataclass(frozen=True, slots=True)
class Ingest:
    """Adds and deletes the documents of one tenant. `max_bytes`: largest file, and largest text converted from one. `language`: of
    the text in pictures, where an upload names no other."""

    engine: Engine
    redis: Client
    blobs: Blobs
    documents: Documents
    quota: Quota
    chats: Chats
    passages: Passages
    token_offsets: TokenOffsets
    max_bytes: int
    language: Language = ANY_LANGUAGE

    async def add(
        self,
        source: FileSource,
        record: IdempotencyRecord,
        endpoint: Literal["document", "file"] | None,
        ocr_language: str | None = None,
        *,
        reuse: bool = False,
        plain: bool = False,
    ) -> Document:
        """Receive and store a document, and queue its reading. Everything is durable on return.

        For a retry of a completed request, only compares the content with the first request's. `endpoint`: where the client
        sent the content; None if the client sent none, and the caller has compared the request. `ocr_language`: of the text in
        pictures; None: the server's. `reuse`: return the tenant's document of the same file, if there is one that could be read.
        `plain`: see `TextChecker`. Raises `ServerError`.
        """
        language = self.language_named(ocr_language)
        self.engine.require_running()
        await self.redis.ping()  # fail before the upload, not after it
        document_id = f"doc_{record.id}"
        exists = record.answer is not None or (not record.first and await self.documents.exists(document_id))
        if not exists:
            await self.quota.require_room(source.announced_bytes, self.engine.model.fingerprint)
        writer = DiscardingWriter() if exists else await self.blobs.create(document_id)
        async with writer:
            received = await receive(source, writer, self.max_bytes, plain=plain)
            if endpoint is not None:
                asked = (endpoint, received.digest, received.filename or "", ocr_language or "")
                await record.check_same_request("upload", *asked)
            await received.commit(writer)
        if record.answer is not None:
            return received.as_document(document_id)
        if exists:
            return await self.documents.get(document_id)
        document = await self.create(document_id, received, record, language=language, reuse=reuse)
        assert document is not None, "only a multipart upload can be cancelled or completed by another request"
        return document

    async def create(
        self,
        document_id: str,
        received: ReceivedFile,
        record: IdempotencyRecord | None,
        *,
        upload: str | None = None,
        reserved: int = 0,
        reports: IdempotencyRecord | None = None,
        language: Language | None = None,
        reuse: bool = False,
    ) -> Document | None:
        """Convert the received blob to text and create its document. Deletes the text if the document is refused.

        Returns None if the multipart `upload` was cancelled or completed in the meantime. `upload` and `reserved` are passed to
        `Documents.create`. `reports`: the record that gets the progress of the conversion; None: `record`. `language`: of the text in
        pictures; None: the server's. `reuse`: as in `add`.
        """
        creating, language = False, language or self.language
        try:
            received = received.identified(language)
            known, failed = await self._known(received.content)
            if reuse and known is not None and (upload is None or await self.documents.complete_with(upload, known.id)):
                await self.drop_text(document_id, record)
                await self.blobs.delete(document_id + received.suffix)
                return known
            received = await self._converted(document_id, received, reserved, reports or record, language)
            document, creating = received.as_document(document_id), True
            stored = await self.documents.create(
                document,
                self.engine.model.fingerprint,
                upload=upload,
                reserved=reserved,
                reuse=reuse,
                instead_of=failed,
            )
            if stored == document_id:
                return document
        except BaseException as error:
            # If Redis did not answer, it may still create the document. Then a later sweep deletes the text, if it is unused.
            if not creating or isinstance(error, ServerError | ResponseError):
                await self.drop_text(document_id, record)
            raise
        await self.drop_text(document_id, record)
        return None if stored is None else await self.documents.get(stored)

    async def _known(self, content: str) -> tuple[Document | None, str]:
        """Return the tenant's document of that content and "", or None and the id of one that could not be read."""
        known = await self.documents.of_content(content)
        if known is None:
            return None, ""
        reading = await self.documents.readings.get(reading_id(self.engine.model.fingerprint, [known.id]))
        return (None, known.id) if reading is not None and reading.status == "failed" else (known, "")

    async def delete(self, document_id: str) -> None:
        """Delete a document, its text and everything that was derived from it. Raises `NotFound`."""
        missing: NotFound | None = None
        try:
            await self.documents.delete(document_id)
        except NotFound as error:
            # A deletion may have been interrupted. The text is deleted last, so it shows whether something is left.
            missing = error
            if not is_id("doc", document_id) or not await asyncio.to_thread(self.blobs.exists, document_id):
                raise
        if not await self.documents.exists(document_id):  # else it belongs to another tenant
            await self.chats.forget(document_id)
            if not await is_running(self.redis):  # a backup may still copy the files; a later sweep deletes them
                await self.passages.delete(document_id)
                await self.token_offsets.delete(document_id)
                for blob in (originals.name(document_id), outline.name(document_id), document_id):
                    await self.blobs.delete(blob)
        if missing is not None:
            raise missing

    def language_named(self, name: str | None) -> Language:
        """Return a language of text in pictures; None: the server's. Raises `InvalidRequest`."""
        if name is None:
            return self.language
        try:
            return Language(name, self.language.models)
        except ValueError as error:
            raise InvalidRequest(f"ocr_language: {error}", param="ocr_language") from None

    async def _converted(
        self,
        name: str,
        received: ReceivedFile,
        reserved: int,
        reports: IdempotencyRecord | None,
        language: Language,
    ) -> ReceivedFile:
        """Convert the received file to text in the blob `name`, and store its outline. Returns it unchanged if it is text.

        `reserved`: bytes that the quota counts for the file already. Raises `ServerError` if the file cannot be converted,
        and `OSError` if the disk is full. Does not delete the text then, as it may belong to another server that handles a
        retry of the request.
        """
        kind, blobs = received.format, self.blobs
        if kind is None:
            return received

        def write_text(uploaded: Path, limit: int, report: PageReport) -> ReceivedFile:
            with blobs.fill(name) as text, blobs.folder() as scratch:
                made = conversion.convert(uploaded, kind, text, limit, language, report, scratch)
                return received.converted(blobs, name, text, uploaded, made)

        return await self.convert(name, received, write_text, reserved, reports)

    async def convert(
        self,
        name: str,
        received: ReceivedFile,
        work: Callable[[Path, int, PageReport], T],
        reserved: int = 0,
        reports: IdempotencyRecord | None = None,
    ) -> T:
        """Run `work`, which converts the received file, in a thread, and then delete the file.

        `work`: gets the local path of the file, the most bytes that it may make of it, and a function that reports the page. `name`,
        `reserved`, `reports` and what is raised: as for `create`.
        """
        room = await self.quota.bytes_left()
        limit = self.max_bytes if room is None else min(self.max_bytes, room + reserved)
        loop, blobs = asyncio.get_running_loop(), self.blobs

        def report(page: int, pages: int) -> None:
            if reports is not None:
                asyncio.run_coroutine_threadsafe(reports.report_page(page, pages), loop)

        def run() -> T:
            with blobs.local(name + received.suffix) as uploaded:
                return work(uploaded, limit, report)

        try:
            return await _CONVERTERS.run_for(self.quota.tenant, run)
        except TooLarge:
            if limit < self.max_bytes:
                await self.quota.require_bytes(limit + 1)
            raise
        finally:
            await blobs.delete(name + received.suffix)

    async def drop_text(self, document_id: str, record: IdempotencyRecord | None) -> None:
        """Delete the text of a document that was not created. Keeps it if Redis cannot tell, or another server retries."""
        with contextlib.suppress(RedisError):
            if (record is None or await record.is_owner()) and not await self.documents.exists(document_id):
                for blob in (document_id, outline.name(document_id), originals.name(document_id)):
                    await self.blobs.delete(blob)
