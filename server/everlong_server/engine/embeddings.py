"""`TextEmbeddings`: vectors of the texts in a request, and their relevance for a query, by the models of the search.

A request is computed in slices, on a thread of its own: requests take turns, and neither the event loop nor the search waits for
2,048 texts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from everlong_models.freed_memory import release_memory
from everlong_models.text.embedder import Embedder, Pieces
from everlong_server.engine.admission import admitted
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.device.priority import in_background
from everlong_server.errors import InvalidRequest, NotFound
from everlong_server.observability.metrics import Metrics
from everlong_server.pools import LOW_PRIORITY, Pool
from everlong_server.store.search.sentences import cut
from everlong_server.store.tenants.quota import Quota, TokenCost

Floats = NDArray[np.float32]

MAX_TEXT_TOKENS = 8192
"""Maximum number of tokens in one text, as with OpenAI's models."""
_TEXTS_AT_ONCE = 64
_ROWS, _TOKENS = 32, 2048
"""Maximum size of a slice: number of rows, and of tokens including padding."""
_MANY_TOKENS = 16_384
_READ = 128
"""Texts of a request that the reranker reads. On two cores they take about a second."""
_POOL = Pool("everlong-embeddings", 1, niceness=LOW_PRIORITY)
_BACKGROUND_POOL = Pool("everlong-embeddings-background", 1, niceness=LOW_PRIORITY)
"""For batches: another request waits for at most one of their slices, since the model computes one at a time."""


@dataclass(slots=True)
class EmbeddedTexts:
    """`rows`: for each text the vectors of its pieces, [pieces, dimension]. `weights`: the number of tokens of each piece. `spans`: its
    start and end in the text, in characters."""

    rows: list[Floats] = field(default_factory=list)
    weights: list[list[int]] = field(default_factory=list)
    spans: list[list[tuple[int, int]]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """The number of tokens of all texts."""
        return sum(map(sum, self.weights))

    def vector(self, text: int, dimensions: int | None = None) -> Floats:
        """Return the vector of a text: the mean of its pieces, weighted by their tokens, and scaled to length 1.

        `dimensions`: keep only the first components; None: all.
        """
        mean = np.average(self.rows[text], axis=0, weights=self.weights[text]).astype(np.float32)[:dimensions]
        scaled: Floats = mean / np.maximum(np.linalg.norm(mean), np.finfo(np.float32).tiny)
        return scaled

    async def vectors(self, dimensions: int | None = None) -> Floats:
        """Return the vectors of all texts, [texts, dimensions]. On a thread: this takes a tenth of a second for 2,048 texts."""
        return await _pool().run(lambda: np.stack([self.vector(n, dimensions) for n in range(len(self.rows))]))


class TextEmbeddings:
    """Embeds texts for one tenant."""

    def __init__(self, embedder: Embedder | None, engine: Engine, quota: Quota, metrics: Metrics) -> None:
        self._embedder = embedder
        self._engine = engine
        self._quota = quota
        self._metrics = metrics

    def require_model(self, name: str) -> Embedder:
        """Return the embedder, which a request calls `name`. Raises `NotFound`."""
        if self._embedder is None:
            raise NotFound(
                f"no model {name[:64]!r}: this server has no embedding model (EVERLONG_EMBEDDINGS, EVERLONG_RECALL_PASSAGES)",
                param="model", code="model_not_found",
            )  # fmt: skip
        if name != self._embedder.name:
            raise NotFound(
                f"no embedding model {name[:64]!r}; this server has {self._embedder.name!r}",
                param="model", code="model_not_found",
            )  # fmt: skip
        return self._embedder

    async def embed(self, embedder: Embedder, texts: Sequence[tuple[str, str]]) -> EmbeddedTexts:
        """Return the vectors of texts, each given as the name of its field and the text.

        Counts as one of the tenant's answers, and towards its tokens. Raises `InvalidRequest` for a text of too many tokens,
        `Overloaded`, `Unavailable` and `RateLimited`.
        """
        async with admitted(self._engine, self._quota) as cost:
            return await self._embed(embedder, texts, cost)

    async def _embed(self, embedder: Embedder, texts: Sequence[tuple[str, str]], cost: TokenCost) -> EmbeddedTexts:
        pieces = await self._split(embedder, texts)
        rows = [row for each in pieces for row in each.rows]
        found = np.zeros((len(rows), embedder.dimension), np.float32)
        for slice in _slices(rows):
            chosen = [rows[n] for n in slice]
            found[slice] = await _pool().run(embedder.embed_rows, chosen)
            tokens = sum(map(len, chosen))
            cost.tokens += tokens
            self._metrics.tokens_embedded.inc(tokens)
        if cost.tokens > _MANY_TOKENS:
            await _pool().run(release_memory)
        embedded, first = EmbeddedTexts(), 0
        for each in pieces:
            embedded.rows.append(found[first : first + len(each.rows)])
            embedded.weights.append([len(row) for row in each.rows])
            embedded.spans.append(each.spans)
            first += len(each.rows)
        return embedded

    async def relevance(self, embedder: Embedder, query: str, texts: Sequence[tuple[str, str]]) -> tuple[Floats, int]:
        """Return how relevant each text is for the query, [texts], 0 to 1, and the number of tokens of all.

        The mean of two figures: the cosine of the text's nearest piece with the query (0 if it is negative), and the reranker's
        probability that this piece has the answer. The reranker reads the pieces of the `_READ` nearest texts; the others get 0. Without
        a reranker, the cosine alone. `texts`: the name of the field and the text of each. What the reranker reads counts towards the
        tenant's tokens, too. Raises the errors of `embed`.
        """
        async with admitted(self._engine, self._quota) as cost:
            return await self._relevance(embedder, query, texts, cost)

    async def _relevance(
        self, embedder: Embedder, query: str, texts: Sequence[tuple[str, str]], cost: TokenCost
    ) -> tuple[Floats, int]:
        embedded = await self._embed(embedder, [("query", query), *texts], cost)
        vector = embedded.vector(0)
        cosines = [rows @ vector for rows in embedded.rows[1:]]
        nearness = np.array([max(0.0, float(of_text.max())) for of_text in cosines], np.float32)
        reranker = embedder.reranker
        if reranker is None:
            return nearness, embedded.tokens
        answering = np.zeros_like(nearness)
        read = np.argsort(-nearness, kind="stable")[:_READ].tolist()
        for start in range(0, len(read), _ROWS):
            numbers = read[start : start + _ROWS]
            pieces = []
            for n in numbers:
                nearest = int(cosines[n].argmax())
                first, last = embedded.spans[1 + n][nearest]
                pieces.append(texts[n][1][first:last])
                cost.tokens += sum(embedded.weights[0]) + embedded.weights[1 + n][nearest]
            scores = await _pool().run(reranker.scores, query, pieces, [list(cut(piece)) for piece in pieces])
            answering[numbers] = [_probability(float(of_piece.max(initial=-math.inf))) for of_piece in scores]
        mean: Floats = ((nearness + answering) / 2).astype(np.float32)
        return mean, embedded.tokens

    async def _split(self, embedder: Embedder, texts: Sequence[tuple[str, str]]) -> list[Pieces]:
        """Return the tokens of each text. Raises `InvalidRequest`."""
        pieces: list[Pieces] = []
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            batch = texts[start : start + _TEXTS_AT_ONCE]
            for (name, _), each in zip(
                batch, await _pool().run(embedder.split, [text for _, text in batch]), strict=True
            ):
                if each.tokens > MAX_TEXT_TOKENS:
                    raise InvalidRequest(
                        f"{name} has {each.tokens} tokens, the limit is {MAX_TEXT_TOKENS}: split it", param=name
                    )
                pieces.append(each)
        return pieces


def _pool() -> Pool:
    """Return the thread for the current task's work."""
    return _BACKGROUND_POOL if in_background() else _POOL


def _probability(score: float) -> float:
    """Return the logistic function of a score of the reranker."""
    return 1 / (1 + math.exp(min(-score, 700)))


def _slices(rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield the numbers of the rows in slices, shortest rows first, so that a slice needs little padding."""
    slice: list[int] = []
    for n in sorted(range(len(rows)), key=lambda n: len(rows[n])):
        if slice and (len(slice) == _ROWS or (len(slice) + 1) * len(rows[n]) > _TOKENS):
            yield slice
            slice = []
        slice.append(n)
    if slice:
        yield slice
