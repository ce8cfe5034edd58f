"""Uploading files and waiting until they are read, with a report of how it goes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from everlong_client.cli.terminal import ProgressReport, print_error, print_note, progress_report, require_stream
from everlong_client.client import Everlong
from everlong_client.errors import (
    EverlongError,
    PayloadTooLargeError,
    ReadingFailedError,
    UnprocessableEntityError,
    UnsupportedMediaTypeError,
)
from everlong_client.types.document import Document

__all__ = ["ingest_files"]


def ingest_files(client: Everlong, files: Sequence[Path], *, wait: bool = True) -> Iterator[Document | None]:
    """Uploads the files, `-` for standard input, and yields their documents in this order.

    With `wait` each is yielded when it is read. None, after a complaint, stands for one that is refused or cannot be read. All are uploaded before
    the first is waited for, so that the server is never idle. Raises `OSError` for a file that cannot be read,
    before anything is uploaded.
    """
    for file in files:
        if file == Path("-"):
            require_stream(sys.stdin, "standard input")
        elif not file.is_fifo():  # opening a pipe waits for its writer, and closing it ends that one
            file.open("rb").close()
    with progress_report() as progress:
        documents: list[tuple[str, Document | None]] = []  # that were not reported yet
        try:
            for file in files:
                name = "standard input" if file == Path("-") else file.name
                source = sys.stdin.buffer if file == Path("-") else file
                try:
                    documents.append((name, client.documents.upload(source, progress=progress.upload(name))))
                except (PayloadTooLargeError, UnsupportedMediaTypeError, UnprocessableEntityError) as error:
                    print_error(f"{name}: {error}")  # the fault of this file: the others are read
                    documents.append((name, None))
            while documents:
                yield _read(client, *documents[0], progress) if wait else documents[0][1]
                del documents[0]
        except (KeyboardInterrupt, EverlongError, OSError) as error:
            reads = isinstance(error, KeyboardInterrupt)
            for name, document in documents:  # else nobody would know what they are called
                if document is not None:
                    print_note(
                        f"the server goes on reading {name} as {document.id}"
                        if reads
                        else f"{name} was uploaded as {document.id}"
                    )
            raise


def _read(client: Everlong, name: str, document: Document | None, progress: ProgressReport) -> Document | None:
    """The document when it is read. None, after a complaint, if it cannot be, or if there is none."""
    if document is None:
        return None
    try:
        return client.documents.wait(document.id, progress=progress.reading(name))
    except ReadingFailedError as error:
        print_error(f"{name}: {error}")
        return None
