"""Chooses the passages for a query from their ranking: finds out whether any passage is about the query, and whether the query is about the whole text.

If the text holds the answer in some place, passages there stand out in the scores. A question about the whole text ("What is this
about?", "List the characters") is nearer in meaning to a question of that kind than to any passage. Its passages cover the text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

import numpy as np

from everlong_server.store.records import Document
from everlong_server.store.search.numbered import NamedPart
from everlong_server.store.search.query import Query
from everlong_server.store.search.ranking import Bools, Floats, Indexed, Ints, Ranking

WHOLE = (
    "What is the text about?",
    "Summarise the text.",
    "Give me the gist.",
    "Who are the characters?",
    "How does it end?",
    "Is it a true story?",
    "What is the moral?",
    "What is the theme of the text?",
    "What are the main points?",
    "What is this?",
    "What does this code do?",
    "Who are the people in this document?",
    "What is in this file?",
    "Give me a short summary.",
)
"""Examples of questions about a whole text. The example nearest to the query is compared with the passages nearest to it. The lab notes tell
how they were chosen."""

# Cosines are those of all-MiniLM-L6-v2.
_SHARE_WEIGHT, _SIZE_WEIGHT, _FIT = 0.7, 0.06, 0.22
"""A question is about the texts if best cosine + 0.7 × largest share of its words - 0.06 × ln(number of passages) is at least 0.22: among more
passages, the best fits better by chance. Chosen on questions about texts of six kinds, each asked about other texts, too
(docs/research/lab-notes.md, "Refusing")."""
_UNRELATED = 0.12
"""Cosine below which no passage is about the query, whatever words they share."""
_REMARK_ALONE, _REMARK_WITH_WORDS = 0.45, 0.3
"""Cosine from which a remark is about the texts: by itself; and with `_MIN_SHARE` of its words, or if the texts are short. Remarks are often
small talk."""
_MIN_SHARE, _MIN_SHARE_FOREIGN = 0.25, 0.15
"""Share of the query's words that a passage about it has, if there are no vectors: in English, and in other languages. Without vectors, the search
finds neither compounds nor synonyms."""
_MOST_WORDS = 0.5
"""Share of the words from which a remark, or a question of everyday words, is about texts of at most `_SHOWN_WHOLE` bytes."""
_RELATIVE_COSINE, _RELATIVE_WORDS = 0.5, 0.3
"""Share of the best passage's cosine or BM25 score that every chosen passage must have."""
_WHOLE = 0.4
"""Cosine with one of `WHOLE` from which a query can be about the whole text. Below it are greetings and questions about nothing in
the text, which are near to neither. Chosen on questions about 15 books and articles, SQuAD and FairytaleQA (lab notes)."""
_PLAIN, _REMARK = 0.6, 0.8
"""By words alone, best BM25 score ÷ that of one word that a single passage has. Below `_PLAIN`, the query is about the whole text, and
a remark below `_REMARK` is small talk."""
_SHORT_TEXT = 24
"""Passages of a text in which the BM25 scores do not tell whether a query is about all of it."""
_SHOWN_WHOLE = 3200
"""Bytes of texts so short that an answer is shown all of them, as far as the evidence has room: their few words tell little about a query."""
_FEW_PAGES = 32_000
"""Bytes of texts of a few pages. The search is less sure of them: in doubt, it leaves to a model's probe whether their passages hold an answer."""
_NEAR = 0.18
"""Cosine of a question of everyday words with a short text from which the text can hold its answer. "How are you?" is
below. Chosen on 18 questions about a note, an e-mail and a recipe, and six greetings; not measured on others."""
_OPENING, _ENDING, _STRETCHES, _CLUSTERED = 2, 3, 5, 400
"""Passages that cover the texts: of each beginning, of each end, and one of each of this many stretches of equal length. The passage of
a stretch is chosen among at most `_CLUSTERED`."""
_OF_PART = 3
"""Passages of a part that a question names, for each passage from elsewhere."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """`best`: numbers of the passages about the query, best first. `cover`: numbers of passages that cover the texts, if the query is
    about the whole text; else (). `doubtful`: the texts may have nothing about the query, and `best` are the nearest passages."""

    best: Sequence[int] = ()
    cover: Sequence[int] = ()
    doubtful: bool = False

    def in_turns(self, limit: int, best: int | None = None) -> list[int]:
        """Return at most `limit` passages, the best and the covering ones in turns. `best`: the maximum number of the best; None: all.

        The best comes first, since a question about some place can be taken for one about the whole text: it then loses few passages.
        """
        turns = (number for turn in zip_longest(self.best[:best], self.cover) for number in turn if number is not None)
        return list(dict.fromkeys(turns))[:limit]


def shown_whole(texts: Sequence[Indexed] | Sequence[Document]) -> bool:
    """Return whether the texts are so short that a question gets all of them, whether or not they hold its answer."""
    return sum(text.bytes for text in texts) <= _SHOWN_WHOLE


def has_few_pages(parts: Sequence[Indexed]) -> bool:
    """Return whether the texts have a few pages together."""
    return sum(part.bytes for part in parts) <= _FEW_PAGES


def choose(
    query: Query, parts: Sequence[Indexed], ranking: Ranking, limit: int, whole: float = 0.0, best: int = 0
) -> Chosen:
    """Return at most `limit` passages of each kind for the query; none if the texts have nothing about it, unless a probe can judge that.

    `whole`: the query's largest cosine with one of `WHOLE`. `best`: return up to this many of the best passages, if that is more than `limit`.
    """
    if not len(ranking.scores):
        return Chosen()
    found: Sequence[int] = ()
    doubtful = False
    foreign = not ranking.compared.any() and all(part.language != "en" for part in parts)
    if shown_whole(parts):
        found = _in_order(ranking)[: max(limit, best)] if _is_about_short_text(query, ranking) else ()
    elif _is_found(query, ranking, _MIN_SHARE_FOREIGN if foreign else _MIN_SHARE):
        found = _best(ranking, max(limit, best))
    elif doubtful := has_few_pages(parts) and query.asks and not query.everyday and _can_be_judged(parts, ranking):
        found = _in_order(ranking)[: max(limit, best)]
    everything = np.arange(len(ranking.scores))
    about_whole = _is_about_whole(found, ranking, whole)
    return Chosen(
        found, _covering(parts, ranking, limit, everything) if about_whole else (), doubtful and not about_whole
    )


def _can_be_judged(parts: Sequence[Indexed], ranking: Ranking) -> bool:
    """Return whether a probe knows such texts: they are English, and passages are compared by meaning."""
    return bool(ranking.compared.any()) and all(part.language == "en" for part in parts)


def choose_in_part(
    query: Query, parts: Sequence[Indexed], ranking: Ranking, limit: int, best: int, named: NamedPart,
    without_name: Ranking, whole: float,
) -> Chosen:  # fmt: skip
    """Like `choose`, for a query that names a part of the texts.

    A question about the whole part gets its passages alone. Any other gets mostly these: "type 2" can name a section, yet "How is type 2
    treated?" can be answered elsewhere. `without_name`: the ranking for the query with "the text" in place of the part's name;
    `whole`: the largest cosine of this query with one of `WHOLE`.
    """
    among, inside = named.passages, np.zeros(len(ranking.scores), np.bool_)
    inside[among] = True
    below = _in_order(without_name, among)[: max(limit, best)]
    if named.is_all or _is_about_whole(below, without_name, whole, inside):
        return Chosen(below, _covering(parts, without_name, limit, among))
    chosen = choose(query, parts, ranking, limit, 0.0, best)
    if not chosen.best:
        return chosen
    below, elsewhere = _in_order(ranking, among), [n for n in chosen.best if not inside[n]]
    mixed = list[int]()
    for turn, start in enumerate(range(0, len(below), _OF_PART)):
        mixed += below[start : start + _OF_PART] + elsewhere[turn : turn + 1]
    return Chosen(mixed[: max(limit, best)], chosen.cover, chosen.doubtful)


def _is_found(query: Query, ranking: Ranking, min_share: float) -> bool:
    """Return whether texts that are not short are about a query. `min_share`: of its words, in passages without vectors."""
    alone = ~ranking.compared
    share = float(ranking.shares[alone].max(initial=0))
    if share >= min_share and (query.asks or _specificity(ranking, alone) >= _REMARK):
        return True
    if not ranking.compared.any():
        return False
    cosine, share = float(ranking.similarities.max()), float(ranking.shares.max())
    if not query.asks:
        return cosine >= _REMARK_ALONE or (cosine >= _REMARK_WITH_WORDS and share >= _MIN_SHARE)
    share = 0.0 if query.everyday else share
    fit = cosine + _SHARE_WEIGHT * share - _SIZE_WEIGHT * math.log(len(ranking.scores))
    return cosine >= _UNRELATED and fit >= _FIT


def _is_about_short_text(query: Query, ranking: Ranking) -> bool:
    """Return whether a query is about a text that an answer can be shown whole. In doubt, it is: only the model can see whether it is answered."""
    share, cosine = float(ranking.shares.max()), float(ranking.similarities.max(initial=0))
    if query.asks:
        return not query.everyday or share >= _MOST_WORDS or cosine >= _NEAR
    return share >= _MOST_WORDS or cosine >= _REMARK_WITH_WORDS


def _specificity(ranking: Ranking, among: Bools | slice = slice(None)) -> float:
    """Return the best BM25 score of the passages `among` all ÷ the score of one word that a single passage has once."""
    return float(ranking.by_words[among].max(initial=0)) / math.log(1 + len(ranking.by_words))


def _is_about_whole(best: Sequence[int], ranking: Ranking, whole: float, among: Bools | slice = slice(None)) -> bool:
    if whole >= max(_WHOLE, float(ranking.similarities[among].max())):
        return True
    by_words = not ranking.compared.any()
    long = len(ranking.scores[among]) > _SHORT_TEXT
    return by_words and bool(best) and long and _specificity(ranking, among) < _PLAIN


def _best(ranking: Ranking, limit: int) -> list[int]:
    near = ranking.similarities >= _RELATIVE_COSINE * ranking.similarities.max()
    near &= ranking.similarities > 0
    having = ranking.by_words >= _RELATIVE_WORDS * ranking.by_words.max()
    having &= ranking.by_words > 0
    return [n for n in _in_order(ranking)[:limit] if near[n] or having[n]]


def _in_order(ranking: Ranking, among: Ints | None = None) -> list[int]:
    """Return numbers of passages, the best first. `among`: the passages to order; None: all."""
    if among is None:
        among = np.arange(len(ranking.scores))
    ordered: list[int] = among[np.argsort(-ranking.scores[among], kind="stable")].tolist()
    return ordered


def _covering(parts: Sequence[Indexed], ranking: Ranking, limit: int, among: Ints) -> list[int]:
    """Return passages that cover the texts, or the part of them whose passages are `among`: the beginnings, what represents each
    stretch, and the ends.

    At most half are beginnings, the first passage of each document before the second ones, so that many documents leave room. Of the
    ends, the last passage of each document comes first.
    """
    in_each = [among[(among >= start) & (among < end)].tolist() for start, end in pairwise(ranking.first.tolist())]
    opening = [own[n] for n in range(_OPENING) for own in in_each if n < len(own)]
    ending = [own[-n] for n in range(1, _ENDING + 1) for own in in_each if n <= len(own)]
    covering = [*opening[: max(1, limit // 2)], *_representing(parts, ranking, among), *ending]
    return list(dict.fromkeys(covering))[:limit]


def _representing(parts: Sequence[Indexed], ranking: Ranking, among: Ints) -> list[int]:
    """Return the passage of each stretch that is nearest to the others of its stretch; without vectors, the one in its middle."""
    edges = np.linspace(0, len(among), _STRETCHES + 1).astype(np.int64)
    chosen = []
    for start, end in pairwise(edges.tolist()):
        if start == end:
            continue
        places = np.unique(np.linspace(start, end - 1, min(end - start, _CLUSTERED // _STRETCHES)).astype(np.int64))
        candidates = among[places]
        vectors = _vectors(parts, ranking.first, candidates)
        nearest = len(candidates) // 2 if vectors is None else int((vectors @ vectors.sum(axis=0)).argmax())
        chosen.append(int(candidates[nearest]))
    return chosen


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
