"""`MultipartUploads`: files that arrive in parts, in any order and over any number of connections."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from redis.exceptions import RedisError, ResponseError

from everlong_server.engine.documents.formats.languages import Language
from everlong_server.engine.documents.ingest import FileSource, Ingest, ReceivedFile
from everlong_server.engine.documents.text_checker import Declared, TextChecker, clean_filename, too_large
from everlong_server.errors import Conflict, InvalidRequest, NotFound, ServerError, TooLarge
from everlong_server.store.backup.running import is_running
from everlong_server.store.idempotency import IdempotencyRecord
from everlong_server.store.records import new_id
from everlong_server.store.texts.blobs import BlobWriter, DiscardingWriter
from everlong_server.store.uploads import Part, Upload, Uploads

log = logging.getLogger(__name__)

MAX_PARTS = 10_000
_BLOCK = 1 << 20


@dataclass(slots=True, weakref_slot=True)
class _BytesInFlight:
    """Number of bytes that this server is receiving for one multipart upload, in concurrent parts."""

    bytes: int = 0


_IN_FLIGHT: WeakValueDictionary[str, _BytesInFlight] = WeakValueDictionary()
"""The bytes that this server is receiving, by upload."""


@dataclass(slots=True)
class _PartCounter:
    """Counts the bytes of an upload's part. `limit`: maximum of this part; `room`: maximum of all parts `in_flight`.

    Only the whole upload is checked to be text.
    """

    limit: int
    room: int
    in_flight: _BytesInFlight
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


@dataclass(frozen=True, slots=True)
class MultipartUploads:
    """The multipart uploads of one tenant. `seconds`: lifetime of an upload that is not completed."""

    ingest: Ingest
    uploads: Uploads
    seconds: float

    async def create(self, id: str, size: int, filename: str, purpose: str) -> Upload:
        """Create an upload for a file of `size` bytes, or return the upload `id` if it exists.

        Raises `TooLarge`, `InvalidRequest` or `RateLimited`.
        """
        limit, quota = self.ingest.max_bytes, self.ingest.quota
        if size > limit:
            error = too_large(limit)
            error.param = "bytes"
            raise error
        if (name := clean_filename(filename)) is None:
            raise InvalidRequest(f"filename: {filename[:60]!r} is not a file name", param="filename")
        await quota.require_room(0, self.ingest.engine.model.fingerprint)
        moment = await self.uploads.moment()
        upload = Upload(id, size, name, purpose, moment, moment + self.seconds)
        await quota.reserve(upload.id, upload.bytes, self.seconds)
        await self.uploads.create(upload)
        return await self.uploads.get(id)

    async def add_part(self, upload_id: str, source: FileSource, record: IdempotencyRecord) -> Part:
        """Receive and store a part. A part whose response was lost can be sent again.

        For a retry of a completed request, only compares the content with the first request's. Raises `Conflict` if the upload
        has ended, and `TooLarge` if the part does not fit.
        """
        self.ingest.engine.require_running()
        part = Part(f"part_{record.id}", upload_id, 0, await self.uploads.moment())
        if record.answer is not None:
            await self._compare(part, source, record)
            return part
        upload = _pending(await self.uploads.get(upload_id))
        stored = await self.uploads.parts(upload.id)
        if part.id in stored:  # the first server died before it recorded the result
            await self._compare(part, source, record)
            return stored[part.id]
        if len(stored) >= MAX_PARTS:
            raise InvalidRequest(f"the upload has {len(stored)} parts, the limit is {MAX_PARTS}", param="upload_id")
        # Twice the size of the file, as parts may be sent again whose response was lost.
        room = 2 * upload.bytes - sum(one.bytes for one in stored.values())
        counter = _PartCounter(min(upload.bytes, room), room, _IN_FLIGHT.setdefault(upload.id, _BytesInFlight()))
        try:
            await self._receive_part(part, source, counter, await self.ingest.blobs.create(part.name), record)
            part = replace(part, bytes=counter.size)
            added = await self._store_part(upload, part, record)
        except FileNotFoundError:  # the upload was deleted in the meantime, with this part's data
            log.info("the upload was deleted or expired while its part %s arrived", part.id)
            added = False
        finally:
            counter.end()
        if not added:
            _pending(await self.uploads.get(upload_id))
            raise Conflict("the part could not be added to the upload: send it again", param="upload_id")
        return part

    async def _compare(self, part: Part, source: FileSource, record: IdempotencyRecord) -> None:
        """Receive a part that is stored already. Raises `InvalidRequest` if it differs from the stored one."""
        limit = self.ingest.max_bytes
        counter = _PartCounter(limit, limit, _BytesInFlight())
        await self._receive_part(part, source, counter, DiscardingWriter(), record)

    async def _receive_part(
        self,
        part: Part,
        source: FileSource,
        counter: _PartCounter,
        writer: BlobWriter | DiscardingWriter,
        record: IdempotencyRecord,
    ) -> None:
        """Write the content of a part to `writer`, durably."""
        digest = hashlib.sha256()
        async with writer:
            async with contextlib.aclosing(source.chunks()) as chunks:
                async for chunk in chunks:
                    counter.feed(chunk)
                    digest.update(chunk)
                    await writer.write(chunk)
            if not counter.size:
                raise InvalidRequest("the part is empty", param="data")
            await record.check_same_request("part", part.upload, digest.hexdigest())
            await writer.commit()

    async def _store_part(self, upload: Upload, part: Part, record: IdempotencyRecord) -> bool:
        """Add a received part to its upload. Deletes its data if it is refused. Returns False if the upload has ended."""
        adding = False
        try:
            size = part.bytes + sum(one.bytes for one in (await self.uploads.parts(upload.id)).values())
            if size > upload.bytes:  # a part was sent twice
                await self.ingest.quota.reserve(upload.id, size, upload.expires_at - part.created_at)
            adding = True
            added = await self.uploads.add(part, 2 * upload.bytes, MAX_PARTS)
        except BaseException as error:
            # If Redis did not answer, it may still add the part. Its data is deleted with the upload.
            if not adding or isinstance(error, ServerError | ResponseError):
                await self._drop_part(part, record)
            raise
        if not added:
            await self._drop_part(part, record)
        return added

    async def _drop_part(self, part: Part, record: IdempotencyRecord) -> None:
        """Delete the data of a part that was not added. Keeps it if Redis cannot tell, or another server retries."""
        with contextlib.suppress(RedisError):
            if await record.is_owner() and part.id not in await self.uploads.parts(part.upload):
                await self.ingest.blobs.delete(part.name)

    async def complete(
        self,
        upload_id: str,
        part_ids: Sequence[str],
        md5: str | None,
        record: IdempotencyRecord | None = None,
        ocr_language: str | None = None,
        *,
        reuse: bool = False,
    ) -> Upload:
        """Join the parts to a document and queue its reading. A retry returns the same result.

        `record`: gets the progress of the conversion. `ocr_language`: of the text in pictures; None: the server's. `reuse`: as in
        `Ingest.add`. Raises `ServerError`.
        """
        language = self.ingest.language_named(ocr_language)
        upload = await self.uploads.get(upload_id)
        if upload.status != "completed":
            refused: ServerError | None = None
            try:
                await self._create_document(_pending(upload), part_ids, md5, record, language, reuse)
            except (Conflict, NotFound) as error:  # for example if another request completed it in the meantime
                refused = error
            upload = await self.uploads.get(upload_id)
            if upload.status != "completed":
                raise refused or _not_pending(upload)
        await self._release(upload)
        return upload

    async def cancel(self, upload_id: str) -> Upload:
        """Cancel an upload and delete its parts. Raises `Conflict` if it is completed."""
        upload = await self.uploads.get(upload_id)
        if upload.status == "pending":
            await self.uploads.cancel(upload.id)
            upload = await self.uploads.get(upload_id)
        if upload.status == "completed":
            _pending(upload)
        await self._release(upload)
        return upload

    async def _release(self, upload: Upload) -> None:
        """Delete the parts and release the quota of an upload that has ended."""
        # A backup may still copy the parts; they are deleted when they expire.
        if not await is_running(self.ingest.redis):
            await self.ingest.blobs.delete_parts(upload.id)
        await self.ingest.quota.release(upload.id)

    async def _create_document(
        self,
        upload: Upload,
        part_ids: Sequence[str],
        md5: str | None,
        record: IdempotencyRecord | None,
        language: Language,
        reuse: bool,
    ) -> None:
        """Create the document of the parts. Does nothing if the upload was cancelled or completed in the meantime."""
        parts = await self._ordered_parts(upload, part_ids)
        document_id = new_id("doc")
        received = await self._join(upload, document_id, parts, md5)
        await self.ingest.create(
            document_id, received, None, upload=upload.id, reserved=upload.bytes, reports=record, language=language, reuse=reuse,
        )  # fmt: skip

    async def _ordered_parts(self, upload: Upload, ids: Sequence[str]) -> list[Part]:
        """Return the parts in the order of `ids`. Raises `ServerError` for unknown or repeated ids, and for a wrong total
        size."""
        stored = await self.uploads.parts(upload.id)
        seen = set[str]()
        for index, id in enumerate(ids):
            name = f"part_ids.{index}"
            if id not in stored:
                raise NotFound(f"{name}: no part {id!r} in this upload", param=name, code="part_not_found")
            if id in seen:
                raise InvalidRequest(f"{name}: part {id!r} is listed twice", param=name)
            seen.add(id)
        parts = [stored[id] for id in ids]
        size = sum(part.bytes for part in parts)
        if size != upload.bytes:
            raise InvalidRequest(
                f"part_ids: the parts have {size} bytes, but the upload was created with {upload.bytes}",
                param="part_ids",
                code="size_mismatch",
            )
        return parts

    async def _join(self, upload: Upload, document_id: str, parts: Sequence[Part], md5: str | None) -> ReceivedFile:
        """Join the parts in one blob and check the text. Raises `ServerError` if the file or its checksum is invalid."""
        self.ingest.engine.require_running()
        blobs = self.ingest.blobs
        checker = TextChecker(self.ingest.max_bytes, Declared(upload.filename))
        total = hashlib.md5(usedforsecurity=False)
        async with await blobs.create(document_id) as writer:
            for part in parts:
                try:
                    file = await asyncio.to_thread(blobs.open, part.name)
                except FileNotFoundError:  # cancelled in the meantime, or completed by another request
                    _pending(await self.uploads.get(upload.id))
                    raise
                with contextlib.closing(file):
                    while block := await asyncio.to_thread(file.read, _BLOCK):
                        checker.feed(block)
                        total.update(block)
                        await writer.write(block)
            start = checker.finish()
            if md5 is not None and total.hexdigest() != md5.lower():
                raise InvalidRequest(
                    f"md5: the MD5 of the parts is {total.hexdigest()}, got {md5.lower()}",
                    param="md5",
                    code="checksum_mismatch",
                )
            digest = checker.digest.hexdigest()
            received = ReceivedFile(checker.size - start, start, digest, upload.filename, checker.foreign)
            await received.commit(writer)
        return received


def _pending(upload: Upload) -> Upload:
    """Return `upload`. Raises `Conflict` if it is completed or cancelled."""
    if upload.status != "pending":
        raise _not_pending(upload)
    return upload


def _not_pending(upload: Upload) -> Conflict:
    return Conflict(
        f"upload {upload.id!r} is {upload.status}: create a new one", param="upload_id", code=f"upload_{upload.status}"
    )
