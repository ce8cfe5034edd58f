"""`add_archive`: stores each file of an archive as a document of its own.

The id of each document is derived from the id of the request and the file's position in the archive. So a retry of a request that was interrupted
finds the documents that exist already, and makes the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from redis.exceptions import RedisError

from everlong_server.engine.documents.formats.catalogue import ARCHIVES, FORMATS
from everlong_server.engine.documents.formats.conversion import ConvertedFile, convert_each, not_an_archive
from everlong_server.engine.documents.ingest import (
    FileSource,
    Ingest,
    PageReport,
    ReceivedFile,
    receive,
)
from everlong_server.engine.documents.text_checker import MAX_NAME, clean_filename
from everlong_server.errors import NotFound, ServerError
from everlong_server.store.idempotency import IdempotencyRecord
from everlong_server.store.records import Document
from everlong_server.store.texts.blobs import DiscardingWriter
from everlong_server.store.texts.notes import Note

_RESERVED_SECONDS = 3600.0
"""Seconds after which the bytes of an archive no longer count for the tenant if the server was killed meanwhile."""


@dataclass(frozen=True, slots=True)
class StoredArchive:
    """The documents of an archive, in its order, and notes on the files in it that are none."""

    documents: list[Document]
    notes: Sequence[Note]


async def add_archive(
    ingest: Ingest, source: FileSource, record: IdempotencyRecord, ocr_language: str | None = None
) -> StoredArchive | None:
    """Receive an archive, store each file in it as a document, and queue their readings. Everything is durable on return.

    Stores all of them or, if there is an error, none. Returns None for a retry of a completed request, whose content it only compares
    with the first request's. `ocr_language`: as in `Ingest.add`. Raises `ServerError`.
    """
    language = ingest.language_named(ocr_language)
    ingest.engine.require_running()
    await ingest.redis.ping()  # fail before the upload, not after it
    if record.first:
        await ingest.quota.require_room(source.announced_bytes, ingest.engine.model.fingerprint)
    name = f"doc_{record.id}"  # of the uploaded file, which is no document
    writer = DiscardingWriter() if record.answer is not None else await ingest.blobs.create(name)
    async with writer:
        received = await receive(source, writer, ingest.max_bytes)
        kind = received.format
        if kind not in ARCHIVES:
            raise not_an_archive(
                "text" if kind is None else FORMATS[kind].name if kind in FORMATS else "an old Office file"
            )
        await record.check_same_request("archive", received.digest, received.filename or "", ocr_language or "")
        await received.commit(writer)
    if record.answer is not None:
        return None
    with contextlib.ExitStack() as folders:
        folder = folders.enter_context(ingest.blobs.folder())

        def unpack(uploaded: Path, limit: int, report: PageReport) -> tuple[list[ConvertedFile], list[Note]]:
            return convert_each(uploaded, kind, folder, limit, language, report)

        files, notes = await ingest.convert(name, received, unpack, reports=record)
        documents = await _store(ingest, received, files, record)
        await asyncio.to_thread(folders.close)  # it may have a thousand files
        return StoredArchive(documents, notes)


async def _store(
    ingest: Ingest, archive: ReceivedFile, files: Sequence[ConvertedFile], record: IdempotencyRecord
) -> list[Document]:
    """Create the documents of the files. Deletes all of them if one is refused."""
    quota, model = ingest.quota, ingest.engine.model.fingerprint
    ids = [_document_id(record, number, file) for number, file in enumerate(files)]
    existing = {id for id in ids if await ingest.documents.exists(id)}
    new = [file for id, file in zip(ids, files, strict=True) if id not in existing]
    size = sum(map(_stored_bytes, new))
    try:
        await quota.require_room(size, model, len(new))
        await quota.reserve(ids[0], size, _RESERVED_SECONDS)
        documents = []
        for id, file in zip(ids, files, strict=True):
            if id in existing:
                documents.append(await ingest.documents.get(id))
                continue
            received = await asyncio.to_thread(_store_text, ingest, id, archive, file)
            documents.append(received.as_document(id))
            await ingest.documents.create(documents[-1], model, reserved=size)
        return documents
    except BaseException as error:
        # A retry makes the missing documents if the record keeps its id: see `IdempotencyRecord.give_up`.
        if record.key is None or (isinstance(error, ServerError) and error.status < 500):
            await _delete(ingest, ids, record)
        raise
    finally:
        with contextlib.suppress(RedisError):  # then it ends by itself
            await quota.release(ids[0])


def _store_text(ingest: Ingest, id: str, archive: ReceivedFile, file: ConvertedFile) -> ReceivedFile:
    with ingest.blobs.fill(id) as text:
        shutil.copyfile(file.text, text)
        stored = archive.converted(ingest.blobs, id, text, file.original or file.text, file.made)
    return replace(stored, filename=_filename(file, archive))


async def _delete(ingest: Ingest, ids: Sequence[str], record: IdempotencyRecord) -> None:
    """Delete the documents that were created, and the texts of others. A later sweep deletes those that remain if Redis is away."""
    with contextlib.suppress(RedisError):
        if not await record.is_owner():
            return
        for id in ids:
            with contextlib.suppress(NotFound):
                await ingest.delete(id)
            await ingest.drop_text(id, record)


def _document_id(record: IdempotencyRecord, number: int, file: ConvertedFile) -> str:
    return f"doc_{hashlib.sha256(f'{record.id} {number} {file.name}'.encode()).hexdigest()[:32]}"


def _stored_bytes(file: ConvertedFile) -> int:
    return file.text.stat().st_size + (file.original.stat().st_size if file.original else 0)


def _filename(file: ConvertedFile, archive: ReceivedFile) -> str | None:
    """Return the name of a file in an archive, without its folder. A compressed file has the archive's, without the extension."""
    name = file.name or PurePosixPath(archive.filename or "").stem
    return clean_filename(name.replace("\\", "/").rpartition("/")[2][-MAX_NAME:])
