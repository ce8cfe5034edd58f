"""`Vectors`: the meaning of passages as vectors, a sidecar of each document. Built in the background, after the index of words.

The embedder sees a passage with the document's title and the innermost heading that the passage is below.

The file: the vectors, float16, [passages, dimension]; empty for a language that the embedder does not know.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path, PurePath

import numpy as np
from numpy.typing import NDArray

from everlong_models.freed_memory import release_memory
from everlong_models.text.embedder import Embedder
from everlong_models.text.reranker import Reranker
from everlong_server.errors import Damaged, NotFound
from everlong_server.pools import LOW_PRIORITY, Pool
from everlong_server.store.records import Document
from everlong_server.store.search.splitting import VERSION, Headings, split
from everlong_server.store.search.terms import language_of
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.piece import Piece
from everlong_server.store.texts.sidecar import BuildCancelled, DocumentLookup, Sidecar

log = logging.getLogger(__name__)

_PASSAGES_AT_ONCE = 128
_QUERIES = Pool("everlong-query-vector", 1)
_BUILDS = Pool("everlong-vectors", 1, niceness=LOW_PRIORITY)
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
        self._embedder = embedder
        self._builds = builds
        self._sidecar = Sidecar(blobs, documents, _BUILDS)

    def name(self, document_id: str) -> str:
        """Return the name of the document's blob of vectors."""
        return f"{document_id}.vectors.{self._embedder.digest[:16]}.{VERSION}"

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

    def stop(self, document_id: str) -> None:
        """Stop building the document's vectors in the background, soon. Does nothing if this server builds none."""
        if (task := self._builds.tasks.get(document_id)) is not None:
            task.cancel()

    async def rebuild(self, document: Document) -> None:
        """Delete the document's vectors, and build them again in the background."""
        await self._blobs.delete(self.name(document.id))
        self.begin(document)

    async def of_query(self, text: str) -> NDArray[np.float32]:
        """Return the vector of a question: [dimension]."""
        return await _QUERIES.run(self.of_text, text)

    def of_text(self, text: str) -> NDArray[np.float32]:
        """Return the vector of a question: [dimension]. Blocks."""
        vector: NDArray[np.float32] = self._embedder.embed([text])[0]
        return vector

    def similarity(self, vector: NDArray[np.float32], texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the cosine of each text's vector with `vector`: [texts]. Blocks."""
        cosines: NDArray[np.float32] = self._embedder.embed(texts) @ vector
        return cosines

    @property
    def reranker(self) -> Reranker | None:
        """The model that scores sentences of documents with vectors; None: their vectors are compared instead."""
        return self._embedder.reranker

    def nearest(self, vector: NDArray[np.float32], texts: tuple[str, ...]) -> float:
        """Return the largest cosine of `vector` with one of `texts`, which are the same in every search. Blocks."""
        return float((self._embedder.embed_fixed(texts) @ vector).max())

    @contextlib.contextmanager
    def of(self, document_id: str, passages: int) -> Iterator[NDArray[np.float16] | None]:
        """Yield the document's vectors, [passages, dimension]; None if it has none. Blocks.

        Raises `Damaged` if they are not as many as the passages: the file is damaged, or another version cut the text differently.
        """
        with contextlib.ExitStack() as stack:
            try:
                path = stack.enter_context(self._blobs.local(self.name(document_id)))
                vectors = _load(path, passages, self._embedder.dimension)
            except FileNotFoundError:
                vectors = None
            yield vectors

    async def _build(self, document: Document) -> None:
        with contextlib.suppress(NotFound):
            await self.ensure(document)

    def _fill(self, document: Document, path: Path, stop: threading.Event) -> None:
        known = self._embedder.languages
        with path.open("wb") as to, self._blobs.open(document.id, document.text_offset) as file:
            language = language_of(file.read(_SAMPLE).decode(errors="ignore"))
            if known is not None and language not in known:
                return
            file.seek(document.text_offset)
            title, headings = PurePath(document.filename or "").stem, Headings()
            pieces = split(file)
            while batch := list(islice(pieces, _PASSAGES_AT_ONCE)):
                if stop.is_set():
                    raise BuildCancelled
                texts = [_with_context(piece, title, headings) for piece in batch]
                # 1 only once they can be searched.
                self._builds.progress[document.id] = batch[0].start_byte / document.bytes
                to.write(self._embedder.embed(texts).astype(np.float16).tobytes())
        release_memory()


def _with_context(piece: Piece, title: str, headings: Headings) -> str:
    """Return the text of the piece after the document's title and the heading that it is below."""
    below = headings.of(piece.text)
    heading = below[-1] if below and not piece.text.lstrip("# ").startswith(below[-1]) else ""
    return ". ".join(part for part in (title, heading, piece.text) if part)


def _load(path: Path, passages: int, dimension: int) -> NDArray[np.float16] | None:
    """Map a file of vectors; None if it is empty. Raises `Damaged`."""
    size, expected = path.stat().st_size, 2 * passages * dimension
    if size not in (0, expected):
        raise Damaged(f"the vectors {path.name} have {size} bytes, {expected} are expected")
    return np.memmap(path, np.float16, "r", shape=(passages, dimension)) if size else None


def load_embedder(embeddings: str, device: str = "cpu") -> Embedder | None:
    """Return the embedder that a setting names: `auto`, the packaged one if it is installed; `off`, none; or a folder.

    Raises `BackboneError`.
    """
    if embeddings == "off":
        return None
    return Embedder.packaged(device) if embeddings == "auto" else Embedder(Path(embeddings).expanduser(), device=device)
