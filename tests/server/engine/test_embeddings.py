"""Requests for embeddings and batches of them: whose texts wait for whose."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from everlong_models.text.embedder import Pieces
from everlong_server.engine.device.priority import background_priority
from everlong_server.engine.embeddings import TextEmbeddings
from everlong_server.observability.metrics import Metrics


class SlowEmbedder:
    """Gives each text of n characters the vector [n, 0]. Texts of one character wait until they are `released`."""

    dimension = 2

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()

    def split(self, texts: Sequence[str]) -> list[Pieces]:
        return [Pieces([[len(text)]], [(0, len(text))]) for text in texts]

    def embed_rows(self, rows: Sequence[Sequence[int]]) -> np.ndarray[Any, Any]:
        if rows[0][0] == 1:
            self.begun.set()
            assert self.released.wait(60), "nothing released the text"
        return np.array([[row[0], 0] for row in rows], np.float32)


class Free:
    """An engine and a quota without limits."""

    typical_seconds = 0.1

    @contextlib.contextmanager
    def admit(self) -> Iterator[None]:
        yield

    @contextlib.asynccontextmanager
    async def stream(self, seconds: float) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(tokens=0)


async def test_a_request_does_not_wait_for_the_texts_of_a_batch() -> None:
    embedder, free = SlowEmbedder(), Free()
    embeddings = TextEmbeddings(embedder, free, free, Metrics())  # type: ignore[arg-type]

    async def embed(text: str) -> list[float]:
        return (await embeddings.embed(embedder, [("input", text)])).rows[0][0].tolist()  # type: ignore[arg-type]

    with background_priority():
        batch = asyncio.create_task(embed("x"))
    await asyncio.to_thread(embedder.begun.wait, 60)
    assert await asyncio.wait_for(embed("four"), 60) == [4, 0]
    assert not batch.done()
    embedder.released.set()
    assert await batch == [1, 0]
