"""Chooses the passages for a query from their ranking: whether any is about it, and whether the query is about the whole text.

Both are told by the shape of the scores. If the text holds the answer in some place, passages there stand out. A question about the
whole text ("What is this about?", "Who is Alice?") is near to no passage or to all. Its passages are chosen to cover the text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise, zip_longest

import numpy as np

from everlong_server.store.texts.query import Query
from everlong_server.store.texts.ranking import Floats, Indexed, Ints, Ranking, representatives

# Cosines of all-MiniLM-L6-v2. Chosen on the 60 questions of "Questions people ask" (docs/research/results.md), not on others.
_SURE, _POSSIBLE, _POSSIBLE_REMARK = 0.45, 0.25, 0.3
"""A passage with this cosine is about the query by itself, or together with `_MIN_SHARE` of its words: of a question, of a remark."""
_MIN_SHARE, _SURE_SHARE = 0.25, 0.5
"""Share of the query's words that a passage about it has; by words alone, and to be sure of a question."""
_FEW_WORDS, _VAGUE = 2, 0.3
"""A question with at most so many words of its own and this cosine may be about the text itself ("What is the story about?")."""
_RELATIVE_COSINE, _RELATIVE_WORDS = 0.5, 0.3
"""Share of the best passage's cosine or BM25 score that every chosen passage must have."""
_DISTANT, _FLAT = 0.40, 2.2
"""The query is about the whole text only if its best cosine is below `_DISTANT` or less than `_FLAT` standard deviations above the mean."""
_PLACE, _PLAIN, _REMARK = 1.2, 0.6, 0.8
"""Best BM25 score ÷ that of one word that a single passage has. From `_PLACE` on, the query is about some place, however flat the
cosines are: without this limit, a quarter of the questions about stories were taken for ones about the whole text. By words alone:
below `_PLAIN`, it is about the whole text, and a remark below `_REMARK` is small talk."""
_SHORT_TEXT = 24
"""Passages of a text in which the shape of scores tells nothing."""
_OPENING, _ENDING, _REPRESENTATIVES, _CLUSTERED = 2, 1, 3, 400
"""Passages that cover a text; the representatives are chosen among at most `_CLUSTERED`."""


def choose(query: Query, parts: Sequence[Indexed], ranking: Ranking, limit: int) -> list[int]:
    """Return the numbers of at most `limit` passages for the query, in the order in which to take them; none if the texts have
    nothing about it."""
    if not len(ranking.scores):
        return []
    if not _is_found(query, ranking):
        vague = query.asks and len(query.words) <= _FEW_WORDS and float(ranking.similarities.max()) >= _VAGUE
        return _covering(parts, ranking, [], limit) if vague else []
    best = _best(ranking, limit)
    return _covering(parts, ranking, best, limit) if _is_about_whole(ranking) else best


def covers(query: Query, ranking: Ranking) -> bool:
    """Return whether `choose` takes passages that cover the texts, and not only those about the query."""
    return bool(len(ranking.scores)) and (not _is_found(query, ranking) or _is_about_whole(ranking))


def _is_found(query: Query, ranking: Ranking) -> bool:
    share, cosine = float(ranking.shares.max()), float(ranking.similarities.max())
    if not ranking.similarities.any():
        return share >= _MIN_SHARE and (query.asks or _specificity(ranking) >= _REMARK)
    if cosine >= _SURE or (query.asks and share >= _SURE_SHARE):
        return True
    return share >= _MIN_SHARE and cosine >= (_POSSIBLE if query.asks else _POSSIBLE_REMARK)


def _specificity(ranking: Ranking) -> float:
    """Return the best BM25 score ÷ the score of one word that a single passage has once."""
    return float(ranking.by_words.max()) / math.log(1 + len(ranking.by_words))


def _is_about_whole(ranking: Ranking) -> bool:
    count = len(ranking.scores)
    if count <= _SHORT_TEXT:
        return False
    if not ranking.similarities.any():
        return _specificity(ranking) < _PLAIN
    if _specificity(ranking) >= _PLACE:
        return False
    known = ranking.similarities[ranking.similarities != 0]
    top = float(known.max())
    return top < _DISTANT or top - float(known.mean()) < _FLAT * float(known.std())


def _best(ranking: Ranking, limit: int) -> list[int]:
    order = np.argsort(-ranking.scores, kind="stable")[:limit]
    near = ranking.similarities >= _RELATIVE_COSINE * ranking.similarities.max()
    near &= ranking.similarities > 0
    having = ranking.by_words >= _RELATIVE_WORDS * ranking.by_words.max()
    having &= ranking.by_words > 0
    return [int(n) for n in order if near[n] or having[n]]


def _covering(parts: Sequence[Indexed], ranking: Ranking, best: Sequence[int], limit: int) -> list[int]:
    """Return in turns the best passages for the query and those that cover the texts: their beginnings, what represents the rest, and
    their ends.

    The best comes first, since the shape of scores can mislead: a question about some place then loses few passages. At most half are
    beginnings, the first passage of each document before the second ones, so that many documents leave room.
    """
    spans = list(pairwise(ranking.first.tolist()))
    opening = [start + n for n in range(_OPENING) for start, end in spans if start + n < end]
    ending = [number for start, end in spans for number in range(max(start, end - _ENDING), end)]
    covering = [*opening[: max(1, limit // 2)], *_representing(parts, ranking), *ending]
    turns = (number for turn in zip_longest(best, covering) for number in turn if number is not None)
    return list(dict.fromkeys(turns))[:limit]


def _representing(parts: Sequence[Indexed], ranking: Ranking) -> list[int]:
    """Return passages that represent the texts by their vectors; without vectors, passages at equal distances."""
    count = len(ranking.scores)
    candidates = np.unique(np.linspace(0, count - 1, min(count, _CLUSTERED)).astype(np.int64))
    vectors = _vectors(parts, ranking.first, candidates)
    if vectors is None:
        spread = np.linspace(0, count - 1, _REPRESENTATIVES + 2)[1:-1].astype(np.int64)
        return [int(n) for n in np.unique(spread)]
    chosen = representatives(vectors @ vectors.T, _REPRESENTATIVES)
    return [int(candidates[n]) for n in chosen]


def _vectors(parts: Sequence[Indexed], first: Ints, numbers: Ints) -> Floats | None:
    """Return a vector of each of the passages, [numbers, D]; None unless all of them have one."""
    found = []
    for part, start, end in zip(parts, first[:-1], first[1:], strict=True):
        own = numbers[(numbers >= start) & (numbers < end)] - start
        if len(own):
            if part.vectors is None:
                return None
            found.append(np.asarray(part.vectors[own], np.float32))
    return np.concatenate(found)
