"""Orders passages that a search found, with a model that reads each of them together with the query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from everlong_server.store.search.ranking import RANK_OFFSET, Indexed
from everlong_server.store.search.sentences import Answering, cut
from everlong_server.store.texts.passage import Passage

CANDIDATES = 32
"""Passages that the model reads: 0.22 s on two cores."""


def reranked_passages(
    passages: Sequence[Passage], parts: Mapping[str, Indexed], score_sentences: Answering
) -> list[tuple[int, float]]:
    """Call `reranked` for passages. `parts`: each document's part of the search. The model knows the languages that have vectors."""
    readable = [parts[passage.document].vectors is not None for passage in passages]
    texts, figures = [passage.text for passage in passages], [passage.figures for passage in passages]
    return reranked(texts, readable, score_sentences, figures)


def reranked(
    texts: Sequence[str], readable: Sequence[bool], score_sentences: Answering, figures: Sequence[float] = ()
) -> list[tuple[int, float]]:
    """Return the numbers of the passages, the best first, each with its relevance. Blocks.

    Fuses the order of the search with the order of the model's scores (reciprocal rank fusion). The score of a passage is that of its
    best sentence. The relevance is 1 for the passage that is first in both orders, and less for later places.

    `texts`: of the passages, in the order of the search. The model reads the first `CANDIDATES`; the others follow. `readable`: whether the
    model knows the language of each. Those that it does not read keep their place in the model's order. `figures`: how rare the figures of the
    query are that each has, 0 to 1; (): none has any. They count as they do in the search, since the model hardly compares dates and numbers.
    """
    by_search = 1 / (RANK_OFFSET + np.arange(len(texts), dtype=np.float32))
    by_model = np.where(np.arange(len(texts)) < CANDIDATES, by_search, np.float32(0))
    read = [n for n, known in enumerate(readable[:CANDIDATES]) if known]
    if read:
        scores = score_sentences([texts[n] for n in read], [list(cut(texts[n])) for n in read])
        best = np.array([of_sentences.max(initial=-np.inf) for of_sentences in scores])
        by_model[np.array(read)[np.argsort(-best, kind="stable")]] = by_search[read]
    by_figures = np.array(figures or [0.0] * len(texts), np.float32)
    most = 2 + float(by_figures.max(initial=0))
    relevance = ((by_search + by_model) * np.float32(RANK_OFFSET) + by_figures) / np.float32(most)
    return [(int(n), float(relevance[n])) for n in np.argsort(-relevance, kind="stable")]
