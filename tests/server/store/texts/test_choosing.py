"""Choosing: which passages of a ranking are taken, and when none or those that cover the texts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from everlong_server.store.texts.choosing import choose
from everlong_server.store.texts.query import Query
from everlong_server.store.texts.ranking import Indexed, Ranking

LIMIT = 16
QUESTION = Query("?", {"a": 1.0, "b": 1.0, "c": 1.0})
VAGUE = Query("?", {"story": 1.0})
REMARK = Query(".", QUESTION.words, asks=False)


def chosen(
    query: Query = QUESTION, *, sizes: tuple[int, ...] = (100,), limit: int = LIMIT, cosines: dict[int, float] | None = None,
    other: float = 0.05, words: dict[int, float] | None = None, shares: dict[int, float] | None = None,
) -> list[int]:  # fmt: skip
    """Choose among passages with these cosines (None: no vectors), BM25 scores and shares of the words; `other`: all other cosines."""
    count, first = sum(sizes), np.cumsum([0, *sizes])

    def filled(given: dict[int, float] | None, rest: float = 0.0) -> Any:
        values = np.full(count, rest, np.float32)
        for number, value in (given or {}).items():
            values[number] = value
        return values

    similarities = filled(cosines, 0.0 if cosines is None else other)
    by_words = filled(words)
    ranking = Ranking(by_words + similarities, filled(shares), similarities, by_words, first)
    return choose(query, [Indexed(None, size, "en") for size in sizes], ranking, limit)


def test_passages_that_stand_out_are_taken_best_first_and_weak_ones_are_not() -> None:
    assert chosen(cosines={40: 0.7, 60: 0.8, 70: 0.5, 80: 0.3}) == [60, 40, 70]
    assert chosen(cosines={40: 0.7, 60: 0.8, 70: 0.5}, limit=2) == [60, 40]
    found = chosen(words={40: 9.0, 60: 10.0, 80: 1.0}, shares={40: 0.9, 60: 1.0})
    assert found == [60, 40]


@pytest.mark.parametrize(
    ("cosine", "share", "by_question", "by_remark"),
    [
        (0.5, 0.0, True, True), (0.1, 0.6, True, False), (0.27, 0.3, True, False), (0.35, 0.3, True, True),
        (0.35, 0.1, False, False), (0.1, 0.3, False, False),
    ],
)  # fmt: skip
def test_a_remark_is_answered_from_the_texts_only_if_they_are_surely_about_it(
    cosine: float, share: float, by_question: bool, by_remark: bool
) -> None:
    given: dict[str, Any] = {"sizes": (10,), "cosines": {5: cosine}, "words": {5: 5.0}, "shares": {5: share}}
    assert bool(chosen(QUESTION, **given)) is by_question
    assert bool(chosen(REMARK, **given)) is by_remark


def test_by_words_alone_a_remark_needs_rare_words() -> None:
    one_rare_word = math.log(1 + 100)
    for words, by_question, by_remark in ((0.7, True, False), (0.9, True, True)):
        given: dict[str, Any] = {"words": {40: words * one_rare_word}, "shares": {40: 1.0}}
        assert bool(chosen(QUESTION, **given)) is by_question
        assert bool(chosen(REMARK, **given)) is by_remark


def test_a_question_with_words_of_one_place_is_not_about_the_whole_text() -> None:
    """Also where its meaning is near to no passage or to all: then its words decide."""
    flat: dict[str, Any] = {"cosines": dict.fromkeys(range(30, 50), 0.35), "other": 0.3, "shares": {40: 0.5}}
    one_rare_word = math.log(1 + 100)
    assert 0 not in chosen(**flat, words={40: 1.3 * one_rare_word})
    assert 0 in chosen(**flat, words={40: 1.1 * one_rare_word})


def test_a_question_about_the_whole_text_gets_its_beginning_its_end_and_the_best_between() -> None:
    flat = chosen(cosines=dict.fromkeys(range(30, 50), 0.35), other=0.3, shares=dict.fromkeys(range(30, 50), 0.5))
    assert flat[:4] == [30, 0, 31, 1]
    assert 99 in flat
    assert len(flat) == LIMIT
    vague = chosen(VAGUE, cosines={60: 0.32})
    assert vague[:2] == [0, 1]
    assert vague[-1] == 99
    assert chosen(VAGUE, cosines={60: 0.2}) == []
    assert chosen(QUESTION, cosines={60: 0.32}) == [], "it has words of its own, which the text has not"


@pytest.mark.parametrize("limit", [1, 2, 4, LIMIT])
@pytest.mark.parametrize("documents", [1, 3, 20])
def test_the_best_passage_is_taken_however_many_documents_there_are(documents: int, limit: int) -> None:
    size, best = 30, 30 * documents - 12
    found = chosen(sizes=(size,) * documents, limit=limit, cosines={best: 0.39}, other=0.3, shares={best: 0.9})
    assert best in found
    assert len(found) == len(set(found)) <= limit
    if limit == LIMIT and documents == 20:
        beginnings = [n * size for n in range(8)]
        assert [number for number in found if number in beginnings] == beginnings, "of as many documents as possible"


def test_without_passages_none_is_chosen() -> None:
    assert chosen(sizes=()) == []
    assert chosen(sizes=(0,)) == []
