"""`Sidecar`: files that are built from a document's text and stored next to it, such as its search index.

A sidecar file becomes visible when it is complete, and is deleted with its document. Whoever needs a missing one builds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

from everlong_server.errors import NotFound
from everlong_server.pools import Pool
from everlong_server.store.records import Document
from everlong_server.store.texts.blobs import Blobs

Build = Callable[[Path, threading.Event], None]
"""Writes a sidecar file to a path. Raises `BuildCancelled` soon after the event is set."""

_LOCKS: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
"""One per blob name, so that this process builds a file once, however many requests need it."""
_THREADS = max(1, (os.cpu_count() or 2) // 2)
_LONG_BUILDS, _SHORT_BUILDS = Pool("everlong-sidecar", _THREADS), Pool("everlong-sidecar-short", _THREADS)
_SHORT = 1 << 20
"""Texts of up to this many bytes have threads of their own, so that they do not wait for long ones."""


class DocumentLookup(Protocol):
    """Finds documents by id. `store.documents.Documents` implements it."""

    async def get(self, document_id: str) -> Document:
        """Return the document. Raises `NotFound`."""


class BuildCancelled(Exception):
    """The build was cancelled."""


class Sidecar:
    """Builds sidecar files, blobs whose names begin with their document's id."""

    def __init__(self, blobs: Blobs, documents: DocumentLookup, pool: Pool | None = None) -> None:
        """`pool`: the threads that build; None: those of one of two shared pools, chosen by the length of the text."""
        self._blobs = blobs
        self._documents = documents
        self._pool = pool

    async def ensure(self, document: Document, name: str, build: Build) -> None:
        """Build the blob `name` unless it exists. Leaves nothing if the document is deleted. Cancelling ends the build soon."""
        if await asyncio.to_thread(self._blobs.exists, name):
            return
        async with _LOCKS.setdefault(name, asyncio.Lock()):
            if not await asyncio.to_thread(self._blobs.exists, name):
                await self._build(document, name, build)

    async def repair(self, document: Document, name: str, build: Build, is_damaged: Callable[[], bool]) -> None:
        """Build the blob `name` again if `is_damaged()`, which may block. Concurrent calls build it once."""
        async with _LOCKS.setdefault(name, asyncio.Lock()):
            if await asyncio.to_thread(is_damaged):
                await self._build(document, name, build)  # replaces the old file, so that readers always find one
                await asyncio.to_thread(self._blobs.forget, name)

    async def _build(self, document: Document, name: str, build: Build) -> None:
        stop = threading.Event()
        pool = self._pool or (_SHORT_BUILDS if document.bytes <= _SHORT else _LONG_BUILDS)
        future = pool.begin(self._fill, name, build, stop)
        building = asyncio.wrap_future(future)
        try:
            await asyncio.shield(building)
        finally:
            stop.set()
            if not future.cancel():  # it has started
                await asyncio.wait([building])
            try:
                await self._documents.get(document.id)
            except NotFound:  # deleted meanwhile, perhaps before the blob was complete
                await self._blobs.delete(name)

    def _fill(self, name: str, build: Build, stop: threading.Event) -> None:
        with contextlib.suppress(BuildCancelled, FileNotFoundError), self._blobs.fill(name) as path:
            build(path, stop)
