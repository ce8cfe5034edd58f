"""`everlong ingest`: upload files, wait until the server has read them, and report the progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from everlong_client.cli.originals import STDIN, STDIN_NAME
from everlong_client.cli.terminal import ProgressReport, fail, print_error, print_note, progress_report, require_stream
from everlong_client.client import Everlong
from everlong_client.errors import (
    EverlongError,
    PayloadTooLargeError,
    ReadingFailedError,
    UnprocessableEntityError,
    UnsupportedMediaTypeError,
)
from everlong_client.transport.upload import Source
from everlong_client.types.document import Document, DocumentNote


def ingest_files(
    client: Everlong,
    files: Sequence[Path],
    *,
    wait: bool = True,
    ocr_language: str | None = None,
    unpack: bool = False,
    on_upload: Callable[[Document, Path], None] | None = None,
    kept: bool = True,
) -> Iterator[Document | None]:
    """Upload the files (`-` is standard input) and yield their documents in the same order. `unpack`: the files are archives, of whose
    files each becomes a document.

    With `wait`, yields each document once the server has read it. For a file that the server refuses or cannot read,
    prints an error and yields None. Uploads all files before it waits for the first, so that the server is never idle.
    `on_upload`: called for each document as soon as the server has it. `kept`: whether the documents stay on the server; an
    interruption then prints their ids. Before any upload, raises `OSError` if a local file cannot be opened, and ends the
    command if one is a folder.
    """
    for file in files:
        if file == STDIN:
            require_stream(sys.stdin, STDIN_NAME)
        elif file.is_dir():
            fail(f"{file} is a folder: name its files, for example {file / '*'}")
        elif not file.is_fifo():  # opening a pipe blocks until its writer opens it, and closing it breaks the writer
            file.open("rb").close()
    with progress_report() as progress:
        documents: list[tuple[str, Document | None]] = []  # not yielded yet
        try:
            for file in files:
                name = STDIN_NAME if file == STDIN else file.name
                source = sys.stdin.buffer if file == STDIN else file
                try:
                    for shown, document in _upload(client, source, name, progress, ocr_language, unpack=unpack):
                        documents.append((shown, document))
                        if on_upload is not None:
                            on_upload(document, file)
                        _print_notes(shown, document.notes)
                except (PayloadTooLargeError, UnsupportedMediaTypeError, UnprocessableEntityError) as error:
                    print_error(f"{name}: {error}")  # concerns this file only
                    documents.append((name, None))
            while documents:
                yield _read(client, *documents[0], progress) if wait else documents[0][1]
                del documents[0]
        except (KeyboardInterrupt, EverlongError, OSError) as error:
            reads = isinstance(error, KeyboardInterrupt)
            for name, left in documents:  # print the ids that the caller will not get
                if left is not None and kept:
                    print_note(
                        f"the server continues to read {name} as {left.id}"
                        if reads
                        else f"{name} was uploaded as {left.id}"
                    )
            raise


def _upload(
    client: Everlong, source: Source, name: str, progress: ProgressReport, ocr_language: str | None, *, unpack: bool
) -> list[tuple[str, Document]]:
    """Upload the file `name`. Returns its document with that name, or those of the archive's files with theirs."""
    sent, converted = progress.upload(name), progress.conversion(name)
    if not unpack:
        return [(name, client.documents.upload(source, None, sent, converted, ocr_language=ocr_language))]
    archive = client.documents.upload_archive(source, None, sent, converted, ocr_language=ocr_language)
    _print_notes(name, archive.notes)
    return [(document.filename or name, document) for document in archive.documents]


def _print_notes(name: str, notes: Sequence[DocumentNote]) -> None:
    for note in notes:
        print_note(f"{name}: {note}")


def _read(client: Everlong, name: str, document: Document | None, progress: ProgressReport) -> Document | None:
    """Wait for the document and return it. None if there is none, or after printing an error if it cannot be read."""
    if document is None:
        return None
    try:
        return client.documents.wait(document.id, progress=progress.reading(name))
    except ReadingFailedError as error:
        print_error(f"{name}: {error}")
        return None
