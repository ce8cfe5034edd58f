"""Uploading files and waiting until they are read, with a report of how it goes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from everlong_client.client import Everlong
from everlong_client.document import Document
from everlong_client.errors import (
    EverlongError,
    PayloadTooLargeError,
    ReadingFailedError,
    UnprocessableEntityError,
    UnsupportedMediaTypeError,
)
from everlong_client.terminal import complain, note, report

__all__ = ["ingest_files"]


def ingest_files(client: Everlong, files: Sequence[Path], *, wait: bool = True) -> Iterator[Document | None]:
    """Uploads the files, `-` for standard input, and yields their documents in this order.

    With `wait` each is yielded when it is read. None, after a complaint, stands for one that is refused or cannot be read. All are uploaded before
    the first is waited for, so that the server is never idle. Raises `OSError` for a file that cannot be read,
    before anything is uploaded.
    """
    for file in files:
        if file != Path("-"):
            file.open("rb").close()
    with report() as told:
        documents: list[tuple[str, Document | None]] = []
        for file in files:
            name = "standard input" if file == Path("-") else file.name
            source = sys.stdin.buffer if file == Path("-") else file
            try:
                documents.append((name, client.documents.upload(source, progress=told.upload(name))))
            except (PayloadTooLargeError, UnsupportedMediaTypeError, UnprocessableEntityError) as error:
                complain(f"{name}: {error}")  # the fault of this file: the others are read
                documents.append((name, None))
            except EverlongError:
                for sent, document in documents:  # else nobody would know what they are called
                    if document is not None:
                        note(f"{sent} was uploaded as {document.id}")
                raise
        for name, document in documents:
            if document is None:
                yield None
                continue
            try:
                yield client.documents.wait(document.id, progress=told.reading(name)) if wait else document
            except ReadingFailedError as error:
                complain(f"{name}: {error}")
                yield None
            except KeyboardInterrupt:
                note(f"the server goes on reading {name} as {document.id}")
                raise
