"""Ranks passages for a query: by words (BM25), by meaning (similarity of vectors), and both fused.

The passages of all documents of a search are numbered consecutively and ranked together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everlong_server.store.search.figures.find import Figure
from everlong_server.store.search.query import PassageFilter
from everlong_server.store.search.terms import stop_words, terms_of
from everlong_server.store.texts import outline
from everlong_server.store.texts.outline import OutlineEntry

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_K1 = 1.2
_HEADING_WEIGHT = 0.3
"""Weight of a match in the headings that a passage is below, against a match in its text."""
_NEIGHBOUR_SHARE = 0.4
"""The share of each neighbour's score that is added to a passage's score: what "he" means is often named in the passage before."""
_STOP_WORD = 0.2
"""Weight of a stop word against another word. Not 0, because lists of stop words have some that tell, such as the Spanish "trabajo"."""
_HEAVIEST = 6
"""A passage's share of a query's words is measured against this many of them, those with the largest weights."""
_MAX_TERMS = 64
"""Terms of a query that are looked up: the first and last ones. A word of a language without spaces may have any number."""
RANK_OFFSET = 3
"""The constant of reciprocal rank fusion. Small, so that a passage that only one ranking has at its top stays near the top."""


@dataclass(frozen=True, slots=True)
class Indexed:
    """One document's part of a search: its index, number of passages, size of its text, language, and vectors if it has any.

    `bytes`: of the UTF-8 text. `vectors`: [passages, D]. `outline`: loads the document's outline; blocks.
    """

    index: Any
    size: int
    bytes: int
    language: str
    vectors: NDArray[np.float16] | None = None
    outline: Callable[[], Sequence[OutlineEntry]] = tuple


@dataclass(frozen=True, slots=True)
class Ranking:
    """`scores`: [passages], for their order alone. `shares`: of the words of the query, weighted by rarity. `similarities`: cosine with
    the query, 0 where a passage was not compared. `compared`: whether the passage has a vector, as the query has. `by_words`: BM25,
    without the neighbours' share. `first`: [documents + 1], number of each document's first passage. `figures`: how rare the figures of the
    query are that each passage has, 0 to 1."""

    scores: Floats
    shares: Floats
    similarities: Floats
    compared: Bools
    by_words: Floats
    first: Ints
    figures: Floats = field(default_factory=lambda: np.zeros(0, np.float32))

    @property
    def relevance(self) -> Floats:
        """Return `scores` scaled to 0 to 1: 1 for a passage that is first by words and by meaning (or words, if there are no vectors), and has
        the figures of the query, if any passage has."""
        rankings = (2 if self.compared.any() else 1) + float(self.figures.max(initial=0))
        scaled: Floats = self.scores * np.float32(RANK_OFFSET / rankings)
        return scaled


def rank(
    parts: Sequence[Indexed],
    words: Mapping[str, float],
    vector: Floats | None,
    figures: Mapping[Figure, float] | None = None,
) -> Ranking:
    """Rank all passages of the documents. `vector`: of the query; None: by words alone. `figures`: those whose parts are among the words.

    A passage without a vector has its rank by words for its rank by meaning, too: one that was added a moment ago, whose vector is
    being built, does not lose against others for that. A figure counts as much as a ranking, if a single passage has it: its meaning
    tells little, and so both rankings can be of other passages.
    """
    first = np.cumsum([0, *(part.size for part in parts)])
    by_words, shares, rarities = _match_words(parts, words, figures or {}, first)
    similarities, compared = np.zeros(first[-1], np.float32), np.zeros(first[-1], np.bool_)
    if vector is not None:
        for part, start, end in zip(parts, first[:-1], first[1:], strict=True):
            if part.vectors is not None:
                similarities[start:end] = np.asarray(part.vectors, np.float32) @ vector
                compared[start:end] = True
    scores = _reciprocal(_with_neighbours(by_words, first))
    if compared.any():
        scores += np.where(compared, _reciprocal(similarities), scores)
    having = np.minimum(rarities / np.float32(_rarity(first[-1], 1)), np.float32(1)) if len(scores) else rarities
    scores += having / np.float32(RANK_OFFSET)
    return Ranking(scores, shares, similarities, compared, by_words, first, having)


def _match_words(
    parts: Sequence[Indexed], words: Mapping[str, float], figures: Mapping[Figure, float], first: Ints
) -> tuple[Floats, Floats, Floats]:
    """Return the BM25 score of each passage, its share of the words, and the rarity of the figures that it has.

    A passage with a figure has one more word, and all parts of the figure: "5 March" has the 03 of 2026-03-05. The others do not lack this word.
    """
    count = int(first[-1])
    shares: Floats = np.zeros(count, np.float32)
    weights = list[float]()
    scores, rarities, also_having = _match_figures(parts, figures, first)
    for terms, weight in _terms(parts, words).items():
        having, times = np.unique(_occurrences(parts, terms, "text", first), return_counts=True)
        rarity = weight * _rarity(count, len(having))
        weights.append(rarity)
        scores[having] += rarity * _saturated(times)
        shares[having] += rarity
        otherwise = np.setdiff1d(also_having.get(terms, having), having)
        scores[otherwise] += rarity
        shares[otherwise] += rarity
        below = np.unique(_occurrences(parts, terms, "headings", first))
        scores[below] += weight * _HEADING_WEIGHT * _rarity(count, len(below))
    totals = rarities + np.float32(sum(sorted(weights)[-_HEAVIEST:]))
    shares = np.minimum((shares + rarities) / np.where(totals > 0, totals, np.float32(1)), np.float32(1))
    return scores, shares, rarities


def _match_figures(
    parts: Sequence[Indexed], figures: Mapping[Figure, float], first: Ints
) -> tuple[Floats, Floats, dict[tuple[str, ...], Ints]]:
    """Return the BM25 score of each passage for the figures, and the rarity of those that it has, [passages]; and for each term of their parts
    the passages that have its figure. Of the terms of a figure, the rarest one that a passage has counts."""
    count = int(first[-1])
    scores, rarities = np.zeros(count, np.float32), np.zeros(count, np.float32)
    having_part: dict[tuple[str, ...], Ints] = {}
    for figure, weight in figures.items():
        in_text, in_headings, rarest = (np.zeros(count, np.float32) for _ in range(3))
        for term in figure.terms:
            having, times = np.unique(_occurrences(parts, [term] * len(parts), "text", first), return_counts=True)
            rarity = weight * _rarity(count, len(having))
            in_text[having] = np.maximum(in_text[having], rarity * _saturated(times))
            rarest[having] = np.maximum(rarest[having], rarity)
            below = np.unique(_occurrences(parts, [term] * len(parts), "headings", first))
            heading = weight * _HEADING_WEIGHT * _rarity(count, len(below))
            in_headings[below] = np.maximum(in_headings[below], heading)
        scores += in_text + in_headings
        rarities += rarest
        for terms in _terms(parts, dict.fromkeys(figure.words, weight)):
            having_part[terms] = np.union1d(having_part.get(terms, np.zeros(0, np.int64)), np.flatnonzero(rarest))
    return scores, rarities, having_part


def weighted(words: Mapping[str, float], languages: Sequence[str]) -> dict[str, float]:
    """Return the words with their weights in documents of these languages: what is a stop word in each of them weighs less."""
    common = frozenset.intersection(*map(stop_words, languages)) if languages else frozenset()
    return {word: weight * (_STOP_WORD if word.casefold() in common else 1.0) for word, weight in words.items()}


def _rarity(count: int, having: int) -> float:
    return math.log(1 + (count - having + 0.5) / (having + 0.5))


def _terms(parts: Sequence[Indexed], words: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    """Return the terms of the words, each as a tuple of the term in every document's language, with its largest weight."""
    found: dict[tuple[str, ...], float] = {}
    for word, weight in weighted(words, [part.language for part in parts]).items():
        in_each = [terms_of(part.language).of(word) for part in parts]
        for terms in zip(*in_each, strict=False):
            found[terms] = max(found.get(terms, 0.0), weight)
    if len(found) > _MAX_TERMS:
        kept = [*found][: _MAX_TERMS // 2] + [*found][-_MAX_TERMS // 2 :]
        found = {terms: found[terms] for terms in kept}
    return found


def _saturated(times: Ints) -> NDArray[np.float64]:
    """Return how much a term counts that a passage has this many times."""
    return times * (_K1 + 1) / (times + _K1)


def _occurrences(parts: Sequence[Indexed], terms: Sequence[str], column: str, first: Ints) -> Ints:
    """Return the passage number of each occurrence of a term in a column. `terms`: the term in each document."""
    found = [np.zeros(0, np.int64)]
    for part, term, start in zip(parts, terms, first, strict=False):
        # As one string: fetching one row per occurrence takes three times as long.
        query = "SELECT group_concat(doc) FROM places WHERE term = ? AND col = ?"
        row = part.index.execute(query, (term, column)).fetchone()
        found.append(np.fromstring(row[0] or "", np.int64, sep=",") + start)
    return np.concatenate(found)


def _reciprocal(scores: Floats) -> Floats:
    """Return 1 / (constant + rank) for each score above 0, else 0. Equal scores keep the order of the text."""
    order = np.argsort(-scores, kind="stable")
    found = np.zeros(len(scores), np.float32)
    found[order] = 1 / (RANK_OFFSET + np.arange(len(scores), dtype=np.float32))
    return np.where(scores > 0, found, 0).astype(np.float32)


def _with_neighbours(scores: Floats, first: Ints) -> Floats:
    """Add to each score a share of the neighbours' scores."""
    before, after = np.zeros_like(scores), np.zeros_like(scores)
    before[1:], after[:-1] = scores[:-1], scores[1:]
    before[first[:-1][np.diff(first) > 0]] = 0  # no neighbours across documents
    after[first[1:][np.diff(first) > 0] - 1] = 0
    return scores + _NEIGHBOUR_SHARE * (before + after)


def accepted(parts: Sequence[Indexed], only: PassageFilter) -> Bools:
    """Return whether the filter accepts each passage of the parts."""
    found: list[bool] = []
    for part in parts:
        entries = part.outline()
        starts = part.index.execute("SELECT start FROM passages ORDER BY id")
        found += [only.accepts(outline.at(entries, start)) for (start,) in starts]
    return np.array(found, bool)
