"""Cuts passages into sentences, and orders these by how well they fit a query.

A passage of seventy words has one or two sentences that matter to a question. Shown only these, a small model reads less that can
mislead it, and a prompt of the same length holds the sentences of more passages.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from everlong_server.store.search.ranking import Floats, Indexed, weighted
from everlong_server.store.search.rows import rows
from everlong_server.store.search.terms import terms_of

if TYPE_CHECKING:
    from everlong_server.store.search.passages import Passage

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
_NEIGHBOUR_WEIGHT = 0.3
"""Weight of the sentences before and after: what "he" means, or the answer to a quoted question, often stands there. Not with the
reranker, which has read these sentences, too."""

_BEGINNING = 200
"""Characters of a document's beginning that are taken whatever the query is."""
_WITH_HEADER = 48
"""So many sentences get the row that names their columns, if they are in a table. An answer is shown fewer."""
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
) -> list[Passage]:
    """Return the sentences of `passages`, those that fit the query best first. Blocks.

    `words`: those of the query, with their weights. `similarity`: returns the cosines of texts with the query, [texts]; None: words
    alone are compared, as in documents without vectors. `parts`: each document's part of the search. `beginning`: the first passage
    of a document. Its first sentences are taken early, with the score 0: they often are the title and the author. `answering`:
    takes texts and the start and end of each of their sentences, and returns the reranker's score of each sentence; then `similarity` is
    not called. Sentences of documents without vectors get the mean of what the others get. `header`: returns the row that names the columns
    of the table that a sentence is in; it comes before the first of them.
    """
    passages = sorted(passages, key=lambda p: (p.document, p.start))
    sentences = [sentence for passage in passages for sentence in _sentences(passage)]
    near = _WORDS_WEIGHT * _shares(sentences, words, parts)
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


def _shares(sentences: Sequence[Passage], words: Mapping[str, float], parts: Mapping[str, Indexed]) -> Floats:
    """Return the share of the query's words that each sentence has, [sentences]; words that few of the sentences have weigh more."""
    terms = [terms_of(parts[sentence.document].language) for sentence in sentences]
    having = [set(term.of(sentence.text)) for term, sentence in zip(terms, sentences, strict=True)]
    shares, total = np.zeros(len(sentences), np.float32), 0.0
    for word, weight in weighted(words, sorted({part.language for part in parts.values()})).items():
        matches = np.array([not own.isdisjoint(term.of(word)) for term, own in zip(terms, having, strict=True)])
        rarity = weight * math.log(1 + len(sentences) / (1 + int(matches.sum())))
        shares += np.float32(rarity) * matches
        total += rarity
    return shares / np.float32(total or 1)


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
