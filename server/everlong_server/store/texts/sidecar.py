"""`Sidecar`: what is made of a document's text and kept beside it. It is there when it is complete, and goes with the
document; whoever finds none makes it."""

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

Make = Callable[[Path, threading.Event], None]
"""Writes a file. Raises `BuildCancelled` soon after the event is set."""

_MAKING: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
"""By blob, of this process: it is made once, however many requests find none."""
_THREADS = max(1, (os.cpu_count() or 2) // 2)
_MAKERS, _OF_SHORT = Pool("everlong-beside", _THREADS), Pool("everlong-beside-short", _THREADS)
_SHORT = 1 << 20
"""Bytes of a text up to which what is made of it does not wait for what is made of longer ones."""


class DocumentLookup(Protocol):
    """What is to be known of documents; `store.documents.Documents` is one."""

    async def get(self, document_id: str) -> Document:
        """Raises `NotFound`."""


class BuildCancelled(Exception):
    """What was being made is no longer wanted."""


class Sidecar:
    """Blobs whose names begin with a document's."""

    def __init__(self, blobs: Blobs, documents: DocumentLookup) -> None:
        self._blobs = blobs
        self._documents = documents

    async def ensure(self, document: Document, name: str, make: Make) -> None:
        """Makes the blob `name` unless it is there, or the document is not. Cancelling ends it soon."""
        if await asyncio.to_thread(self._blobs.exists, name):
            return
        async with _MAKING.setdefault(name, asyncio.Lock()):
            if not await asyncio.to_thread(self._blobs.exists, name):
                await self._make(document, name, make)

    async def mend(self, document: Document, name: str, make: Make, damaged: Callable[[], bool]) -> None:
        """As `ensure`, but what is there is made anew if it is `damaged`, which blocks: once, however many ask."""
        async with _MAKING.setdefault(name, asyncio.Lock()):
            if await asyncio.to_thread(damaged):
                await self._make(document, name, make)  # in its place: others, who search it, never find none
                await asyncio.to_thread(self._blobs.forget, name)

    async def _make(self, document: Document, name: str, make: Make) -> None:
        stop = threading.Event()
        begun = (_OF_SHORT if document.bytes <= _SHORT else _MAKERS).begin(self._fill, name, make, stop)
        making = asyncio.wrap_future(begun)
        try:
            await asyncio.shield(making)
        finally:
            stop.set()
            if not begun.cancel():  # else it still stood in line
                await asyncio.wait([making])
            try:
                await self._documents.get(document.id)
            except NotFound:  # deleted meanwhile, perhaps before the blob had its name
                await self._blobs.delete(name)

    def _fill(self, name: str, make: Make, stop: threading.Event) -> None:
        with contextlib.suppress(BuildCancelled, FileNotFoundError), self._blobs.fill(name) as path:
            make(path, stop)
