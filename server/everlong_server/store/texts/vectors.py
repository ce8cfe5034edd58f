"""`Vectors`: the meaning of passages as vectors, a sidecar of each document. Built in the background, after the index of words.

A passage has a vector for each of its units, halves that end with a sentence: a short text has a clearer meaning.

The file: the number of units (int64), the passage of each unit (int32), the vectors (float16, [units, dimension]).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from everlong_models.text.embedder import Embedder
from everlong_server.errors import Damaged, NotFound
from everlong_server.pools import Pool
from everlong_server.store.records import Document
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.sidecar import BuildCancelled, DocumentLookup, Sidecar
from everlong_server.store.texts.splitting import Piece, split
from everlong_server.store.texts.terms import language_of

log = logging.getLogger(__name__)

_UNITS_AT_ONCE = 256
_SHORTEST_HALVED = 240
_CLAUSE_END = re.compile(r"[.!?;:][\"'”’)*_]*\s+")
_SPACE = re.compile(r"\s+")
_QUERIES = Pool("everlong-query-vector", 1)
_BUILDS = Pool("everlong-vectors", 1)
_NICENESS = 10
"""Priority of the threads that build vectors, below the threads that answer."""
_SAMPLE = 1 << 16


@dataclass(slots=True)
class VectorBuilds:
    """The builds of this process. `progress`: share of the text that is done, by document id."""

    progress: dict[str, float] = field(default_factory=dict)
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)


class Vectors:
    """The vectors of documents, by one embedder."""

    def __init__(self, blobs: Blobs, documents: DocumentLookup, embedder: Embedder, builds: VectorBuilds) -> None:
        self._blobs = blobs
        self._documents = documents
        self._embedder = embedder
        self._builds = builds
        self._sidecar = Sidecar(blobs, documents, _BUILDS)

    def name(self, document_id: str) -> str:
        """Return the name of the document's blob of vectors."""
        return f"{document_id}.vectors.{self._embedder.digest[:16]}"

    def begin(self, document: Document) -> None:
        """Build the document's vectors in the background, unless they exist or are being built."""
        tasks = self._builds.tasks
        if document.id in tasks:
            return
        task = tasks[document.id] = asyncio.create_task(self._build(document))
        self._builds.progress[document.id] = 0.0

        def end(task: asyncio.Task[None]) -> None:
            tasks.pop(document.id, None)
            self._builds.progress.pop(document.id, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.warning("the vectors of document %s could not be built: %r", document.id, error)

        task.add_done_callback(end)

    async def progress(self, document_id: str) -> float:
        """Return the share of the document's text that has vectors, 0 to 1; as far as this server knows, while one builds them."""
        if await asyncio.to_thread(self._blobs.exists, self.name(document_id)):
            return 1.0
        return self._builds.progress.get(document_id, 0.0)

    async def ensure(self, document: Document) -> None:
        """Build the document's vectors unless they exist. For a language that the embedder does not know, they are none."""
        await self._sidecar.ensure(document, self.name(document.id), partial(self._fill, document))

    async def delete(self, document_id: str) -> None:
        """Delete the document's vectors. Does nothing if there are none."""
        await self._blobs.delete(self.name(document_id))

    async def of_query(self, text: str) -> NDArray[np.float32]:
        """Return the vector of a question: [dimension]."""
        vectors = await _QUERIES.run(self._embedder.embed, [text])
        vector: NDArray[np.float32] = vectors[0]
        return vector

    @contextlib.contextmanager
    def of(self, document_id: str) -> Iterator[tuple[NDArray[np.float16], NDArray[np.int32]] | None]:
        """Yield the document's vectors and the passage of each; None if it has none yet. Blocks."""
        with contextlib.ExitStack() as stack:
            try:
                path = stack.enter_context(self._blobs.local(self.name(document_id)))
                loaded = _load(path, self._embedder.dimension)
            except FileNotFoundError:
                loaded = None
            yield loaded

    async def _build(self, document: Document) -> None:
        with contextlib.suppress(NotFound):
            await self.ensure(document)

    def _fill(self, document: Document, path: Path, stop: threading.Event) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        with self._blobs.open(document.id, document.text_offset) as file:
            language = language_of(file.read(_SAMPLE).decode(errors="ignore"))
        known = self._embedder.languages
        units: list[NDArray[np.float16]] = []
        owners: list[int] = []
        if known is None or language in known:
            with self._blobs.open(document.id, document.text_offset) as file:
                waiting = _units(split(file))
                while batch := list(islice(waiting, _UNITS_AT_ONCE)):
                    if stop.is_set():
                        raise BuildCancelled
                    units.append(self._embedder.embed([text for _, _, text in batch]).astype(np.float16))
                    owners += [owner for owner, _, _ in batch]
                    self._builds.progress[document.id] = min(1.0, batch[-1][1] / document.bytes)
        with path.open("wb") as to:
            to.write(np.int64(len(owners)).tobytes())
            to.write(np.array(owners, np.int32).tobytes())
            for part in units:
                to.write(part.tobytes())


def _units(pieces: Iterator[Piece]) -> Iterator[tuple[int, int, str]]:
    """Yield the units of the pieces: number of the piece, byte at which it ends, text."""
    for number, piece in enumerate(pieces):
        for half in halves(piece.text):
            yield number, piece.end_byte, half


def halves(text: str) -> list[str]:
    """Return a text as two parts, cut near its middle, after a clause if possible; a short text as one."""
    if len(text) < _SHORTEST_HALVED:
        return [text]
    for pattern, margin in ((_CLAUSE_END, 0.25), (_SPACE, 0.35)):
        ends = [match.end() for match in pattern.finditer(text)]
        ends = [end for end in ends if margin * len(text) < end < (1 - margin) * len(text)]
        if ends:
            cut = min(ends, key=lambda end: abs(end - len(text) / 2))
            return [text[:cut], text[cut:]]
    return [text]


def _load(path: Path, dimension: int) -> tuple[NDArray[np.float16], NDArray[np.int32]]:
    """Map a file of vectors. Raises `Damaged`."""
    raw = np.memmap(path, np.uint8, "r")
    count = int(raw[:8].view(np.int64)[0]) if raw.size >= 8 else -1
    if raw.size != 8 + count * (4 + 2 * dimension):
        raise Damaged(f"the vectors {path.name} are damaged")
    end = 8 + 4 * count
    return raw[end:].view(np.float16).reshape(count, dimension), raw[8:end].view(np.int32)


def load_embedder(embeddings: str, device: str = "cpu") -> Embedder | None:
    """Return the embedder that a setting names: `auto`, the packaged one if it is installed; `off`, none; or a folder.

    Raises `BackboneError`.
    """
    if embeddings == "off":
        return None
    return Embedder.packaged(device) if embeddings == "auto" else Embedder(Path(embeddings).expanduser(), device=device)
