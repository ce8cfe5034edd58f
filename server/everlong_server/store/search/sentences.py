"""Cuts passages into sentences, and orders these by how well they fit a query.

A passage of seventy words has one or two sentences that matter to a question. Shown only these, a small model reads less that can
mislead it, and a prompt of the same length holds the sentences of more passages.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from everlong_server.store.search.figures.find import Figure
from everlong_server.store.search.ranking import Floats, Indexed, weighted
from everlong_server.store.search.rows import rows
from everlong_server.store.search.terms import terms_of
from everlong_server.store.texts.passage import Passage

# A full stop after a short word with a capital, such as Mr., Dr. or J., ends no sentence.
FULL_STOP = r"\.(?<!\b[A-Z]\.)(?<!\b[A-Z][a-z]\.)(?<!\b[A-Z][a-z][a-z]\.)"
MARKS = "[!?…؟۔।॥]"
"""Other marks that end a sentence: those of European languages, Arabic, Urdu and Hindi."""
_END = re.compile(
    rf"(?:{MARKS}|{FULL_STOP})(?![.!?…])[\"'”’»)\]_*]*+\s+"
    r"|[。！？]+[」』”]*\s*"
    r"|\n\s*\n\s*"
    r"|\n(?=\s*(?:[-*+•|#>]|\d+[.)]))"  # entries of lists, rows of tables, headings, quotations
)
_SHORTEST = 25
"""Characters of a sentence. A shorter one ("Why?") is left with the one before."""
_WORDS_WEIGHT = 0.4
"""Weight of a sentence's share of the query's words against the cosine of its vector with the query's. This constant and
`_NEIGHBOUR_WEIGHT` were chosen on the 60 questions of "Questions people ask" (docs/research/results.md)."""
_ANSWER_WEIGHT, _PASSAGE_WEIGHT = 0.2, 0.3
"""Weights of the reranker's score of a sentence, and of 1 ÷ its passage's rank in the search, against the share of the query's words.
Chosen on the questions that its training held out (docs/research/lab-notes.md, "A reranker")."""
_FIGURE_WEIGHT = 1.0
"""Weight of the figures of the query that a sentence has, 0 to 1. Vectors and the reranker hardly compare dates and numbers: among the rows of a
year, asked for ten dates, the right row was one of the first three sentences five times without this weight, and ten times with it."""
_NEIGHBOUR_WEIGHT = 0.3
"""Weight of the sentences before and after: what "he" means, or the answer to a quoted question, is often there. Not with the
reranker, which has read these sentences, too."""

_BEGINNING = 200
"""Characters of a document's beginning that are taken whatever the query is."""
_WITH_HEADER = 48
"""This many sentences get the row that names their columns, if they are in a table. An answer is shown fewer."""
_EARLY = 2
"""Sentences that are taken before the beginning."""
_FIRST = 200
"""Characters of a passage's first sentences, if it has more than one."""
TITLE = 800
"""Characters of a document's beginning, which often has its title, its author and its subject."""

Similarity = Callable[[Sequence[str]], Floats]
Spans = Sequence[tuple[int, int]]
Answering = Callable[[Sequence[str], Sequence[Spans]], Sequence[Floats]]


def cut(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each sentence of `text` in characters, without gaps: white space belongs to the sentence before it.

    A row of a table is one sentence, or a part of one.
    """
    start, of_rows = 0, list(rows(text))
    inside = iter(of_rows)
    row = next(inside, None)
    for end in sorted({*(end.end() for end in _END.finditer(text)), *(place for of in of_rows for place in of)}):
        while row is not None and row[1] < end:
            row = next(inside, None)
        rest = len(text) - end
        if (row is None or not row[0] < end < row[1]) and end - start >= _SHORTEST and (rest >= _SHORTEST or not rest):
            yield start, end
            start = end
    if start < len(text):
        yield start, len(text)


def first(passage: Passage) -> Passage:
    """Return the passage cut after the last sentence that ends within its first 200 characters, but never within its first sentence."""
    ends = [end for _, end in cut(passage.text)]
    return passage.part(0, max([*ends[:1], *(end for end in ends if end <= _FIRST)], default=0))


def ordered(
    passages: Sequence[Passage],
    words: Mapping[str, float],
    similarity: Similarity | None,
    parts: Mapping[str, Indexed],
    beginning: Passage | None = None,
    answering: Answering | None = None,
    header: Callable[[Passage], Passage | None] = lambda sentence: None,
    figures: Mapping[Figure, float] | None = None,
) -> list[Passage]:
    """Return the sentences of `passages`, those that fit the query best first. Blocks.

    `words`: those of the query, with their weights. `similarity`: returns the cosines of texts with the query, [texts]; None: words
    alone are compared, as in documents without vectors. `parts`: each document's part of the search. `beginning`: the first passage
    of a document. Its first sentences are taken early, with the score 0: they often are the title and the author. `answering`:
    takes texts and the start and end of each of their sentences, and returns the reranker's score of each sentence; then `similarity` is
    not called. Sentences of documents without vectors get the mean of what the others get. `header`: returns the row that names the columns
    of the table that a sentence is in; it comes before the first of them. `figures`: of the query, whose parts are among the words.
    """
    passages = sorted(passages, key=lambda p: (p.document, p.start))
    sentences = [sentence for passage in passages for sentence in _sentences(passage)]
    shares, having_figures = _shares(sentences, words, figures or {}, parts)
    near = _WORDS_WEIGHT * shares
    compared = np.array([parts[sentence.document].vectors is not None for sentence in sentences], bool)
    if compared.any() and (answering is not None or similarity is not None):
        if answering is not None:
            shown = [passage for passage in passages if parts[passage.document].vectors is not None]
            scores = answering([p.text for p in shown], [list(cut(p.text)) for p in shown])
            places = [np.full(len(of), p.score, np.float32) for p, of in zip(shown, scores, strict=True)]
            more = _ANSWER_WEIGHT * np.concatenate(scores) + _PASSAGE_WEIGHT * np.concatenate(places)
        elif similarity is not None:
            more = similarity([sentences[n].text.strip() for n in np.flatnonzero(compared)])
        near[compared] += more
        near[~compared] += more.mean()  # neither better nor worse, for all that is known
    if answering is None:
        near = _with_neighbours(near, sentences)
    near += _FIGURE_WEIGHT * having_figures
    order = np.argsort(-near, kind="stable")
    found = [replace(sentences[n], score=round(1 / (1 + place), 3)) for place, n in enumerate(order.tolist())]
    first = [] if beginning is None else [s for s in _sentences(beginning) if s.end <= beginning.start + _BEGINNING]
    taken: dict[tuple[str, int], Passage] = {}
    for place, sentence in enumerate([*found[:_EARLY], *first, *found[_EARLY:]]):
        if place < _WITH_HEADER and (columns := header(sentence)) is not None:
            taken.setdefault((columns.document, columns.start), replace(columns, score=sentence.score))
        key = sentence.document, sentence.start
        if key not in taken or taken[key].end < sentence.end:  # a short header can be the beginning of a sentence
            taken[key] = sentence
    return [*taken.values()]


def _sentences(passage: Passage) -> list[Passage]:
    return [passage.part(start, end) for start, end in cut(passage.text)]


def _shares(
    sentences: Sequence[Passage],
    words: Mapping[str, float],
    figures: Mapping[Figure, float],
    parts: Mapping[str, Indexed],
) -> tuple[Floats, Floats]:
    """Return the share of the query's words that each sentence has, [sentences]; words that few of the sentences have weigh more. And how rare the
    figures are that it has, 0 to 1.

    A figure is one more word, unless no sentence has it. A sentence with a figure has all its parts: "5 March" has the 03 of 2026-03-05.
    """
    terms = [terms_of(parts[sentence.document].language) for sentence in sentences]
    having = [set(term.with_figures(sentence.text)) for term, sentence in zip(terms, sentences, strict=True)]

    def rarity(matches: NDArray[np.bool_]) -> float:
        return math.log(1 + len(sentences) / (1 + int(matches.sum())))

    of_figures, total = np.zeros(len(sentences), np.float32), 0.0
    having_part: dict[str, NDArray[np.bool_]] = {}
    for figure, weight in figures.items():
        rarest = np.zeros(len(sentences), np.float32)
        for term in figure.terms:
            matches = np.array([term in own for own in having], bool)
            rarest = np.maximum(rarest, np.float32(weight * rarity(matches)) * matches)
        of_figures += rarest
        total += float(rarest.max(initial=0))
        having_part |= {word: (rarest > 0) | having_part.get(word, False) for word in figure.words}
    shares = of_figures.copy()
    for word, weight in weighted(words, sorted({part.language for part in parts.values()})).items():
        matches = np.array([not own.isdisjoint(term.of(word)) for term, own in zip(terms, having, strict=True)], bool)
        weight_here = weight * rarity(matches)
        shares += np.float32(weight_here) * (matches | having_part.get(word, False))
        total += weight_here
    most = np.float32(math.log(1 + len(sentences) / 2))
    return shares / np.float32(total or 1), np.minimum(of_figures / most, np.float32(1))


def _with_neighbours(near: Floats, sentences: Sequence[Passage]) -> Floats:
    """Add to each value a share of those of the sentences that stand directly before and after it in the text.

    A sum, not a mean: sentences within a passage come before those at its ends, whose context is missing.
    """
    total = near.copy()
    for n in range(1, len(sentences)):
        before, after = sentences[n - 1], sentences[n]
        if (before.document, before.end) == (after.document, after.start):
            total[n] += _NEIGHBOUR_WEIGHT * near[n - 1]
            total[n - 1] += _NEIGHBOUR_WEIGHT * near[n]
    return total
