"""Choosing: which passages of a ranking are taken, and when none or those that cover the texts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from everlong_server.store.search.choosing import Chosen, choose
from everlong_server.store.search.query import Query
from everlong_server.store.search.ranking import Indexed, Ranking

LIMIT = 16
QUESTION = Query("?", {"a": 1.0, "b": 1.0, "c": 1.0})
REMARK = Query(".", QUESTION.words, asks=False)


def chosen(
    query: Query = QUESTION, *, sizes: tuple[int, ...] = (100,), limit: int = LIMIT, cosines: dict[int, float] | None = None,
    other: float = 0.05, words: dict[int, float] | None = None, shares: dict[int, float] | None = None, whole: float = 0.0,
    without_vectors: int = 0,
) -> Chosen:  # fmt: skip
    """Choose among passages with these cosines (None: no vectors), BM25 scores and shares of the words; `other`: all other cosines;
    `whole`: cosine of the query with what a question about a whole text means; `without_vectors`: so many passages at the end."""
    count, first = sum(sizes), np.cumsum([0, *sizes])

    def filled(given: dict[int, float] | None, rest: float = 0.0) -> Any:
        values = np.full(count, rest, np.float32)
        for number, value in (given or {}).items():
            values[number] = value
        return values

    similarities = filled(cosines, 0.0 if cosines is None else other)
    compared = np.full(count, cosines is not None)
    if without_vectors:
        compared[-without_vectors:], similarities[-without_vectors:] = False, 0
    by_words = filled(words)
    ranking = Ranking(by_words + similarities, filled(shares), similarities, compared, by_words, first)
    return choose(query, [Indexed(None, size, 400 * size, "en") for size in sizes], ranking, limit, whole)


def test_passages_that_stand_out_are_taken_best_first_and_weak_ones_are_not() -> None:
    assert chosen(cosines={40: 0.7, 60: 0.8, 70: 0.5, 80: 0.3}) == Chosen([60, 40, 70])
    assert chosen(cosines={40: 0.7, 60: 0.8, 70: 0.5}, limit=2) == Chosen([60, 40])
    found = chosen(words={40: 9.0, 60: 10.0, 80: 1.0}, shares={40: 0.9, 60: 1.0})
    assert found == Chosen([60, 40])


@pytest.mark.parametrize(
    ("cosine", "share", "passages", "found"),
    [
        (0.5, 0.0, 100, True),
        (0.48, 0.0, 100, False),
        (0.4, 0.15, 100, True),
        (0.4, 0.15, 1000, False),
        (0.38, 0.0, 13, True),
        (0.16, 0.5, 100, True),
        (0.11, 1.0, 100, False),
    ],
)
def test_texts_are_about_a_query_by_meaning_and_words_and_fewer_passages_need_less(
    cosine: float, share: float, passages: int, found: bool
) -> None:
    given: dict[str, Any] = {"sizes": (passages,), "cosines": {5: cosine}, "words": {5: 5.0}, "shares": {5: share}}
    assert bool(chosen(QUESTION, **given).best) == found
    everyday = replace(QUESTION, everyday=True)
    assert bool(chosen(everyday, **given).best) == (found and share == 0.0), "everyday words tell nothing"


def test_a_question_that_hardly_fits_short_texts_is_left_to_the_model_s_probe() -> None:
    doubtful = chosen(QUESTION, sizes=(50,), cosines={5: 0.2, 6: 0.3}, other=0.0)
    assert doubtful.doubtful
    assert doubtful.best[:2] == [6, 5]
    assert not chosen(QUESTION, sizes=(50,), cosines={5: 0.6}).doubtful
    for query, size in ((QUESTION, 100), (REMARK, 50), (replace(QUESTION, everyday=True), 50)):
        assert chosen(query, sizes=(size,), cosines={5: 0.2}) == Chosen()
    assert chosen(QUESTION, sizes=(50,)) == Chosen(), "without vectors, words alone decide"


@pytest.mark.parametrize(
    ("cosine", "share", "found"), [(0.46, 0.0, True), (0.35, 0.3, True), (0.35, 0.2, False), (0.29, 0.9, False)]
)
def test_a_remark_is_answered_from_the_texts_only_if_they_are_surely_about_it(
    cosine: float, share: float, found: bool
) -> None:
    given: dict[str, Any] = {"sizes": (10,), "cosines": {5: cosine}, "words": {5: 5.0}, "shares": {5: share}}
    assert bool(chosen(REMARK, **given).best) is found


@pytest.mark.parametrize(
    ("cosine", "share", "by_everyday_words", "by_remark"),
    [
        (0.2, 0.0, True, False),
        (0.1, 0.0, False, False),
        (0.1, 0.3, False, False),
        (0.35, 0.0, True, True),
        (0.1, 0.6, True, True),
    ],
)
def test_for_a_question_a_short_text_is_taken_whole(
    cosine: float, share: float, by_everyday_words: bool, by_remark: bool
) -> None:
    given: dict[str, Any] = {"sizes": (3,), "cosines": {1: cosine}, "shares": {1: share}}
    assert chosen(QUESTION, **given) == Chosen([1, 0, 2])
    assert chosen(replace(QUESTION, everyday=True), **given) == Chosen([1, 0, 2] if by_everyday_words else ())
    assert chosen(REMARK, **given) == Chosen([1, 0, 2] if by_remark else ())
    assert chosen(QUESTION, sizes=(3,)) == Chosen([0, 1, 2]), "until it has vectors"


def test_by_words_alone_a_remark_needs_rare_words() -> None:
    one_rare_word = math.log(1 + 100)
    for words, by_question, by_remark in ((0.7, True, False), (0.9, True, True)):
        given: dict[str, Any] = {"words": {40: words * one_rare_word}, "shares": {40: 1.0}}
        assert bool(chosen(QUESTION, **given).best) is by_question
        assert bool(chosen(REMARK, **given).best) is by_remark


def test_a_passage_whose_vector_is_being_built_is_found_by_words_alone() -> None:
    given: dict[str, Any] = {"cosines": {}, "without_vectors": 10, "words": {95: 4.5}, "shares": {95: 0.3}}
    assert chosen(QUESTION, **given).best[0] == 95
    assert chosen(REMARK, **given).best[0] == 95, "its words are rare"
    assert chosen(REMARK, **given | {"words": {95: 3.0}}) == Chosen()
    assert chosen(QUESTION, **given | {"shares": {95: 0.2}}) == Chosen()
    assert chosen(QUESTION, **given | {"without_vectors": 1}) == Chosen(), "it was compared"


def test_a_query_is_about_the_whole_text_if_it_is_nearer_to_such_a_question_than_to_any_passage() -> None:
    near: dict[str, Any] = {"cosines": {40: 0.5}, "shares": {40: 0.5}}
    assert chosen(**near, whole=0.45) == Chosen([40])
    found = chosen(**near, whole=0.55)
    assert found.best == [40], "the question may be about a place after all"
    assert found.cover[:2] == [0, 1]
    assert found.cover[7:] == [99, 98, 97], "the end"
    assert [number // 20 for number in found.cover[2:7]] == [0, 1, 2, 3, 4], "a passage of each fifth"
    assert chosen(cosines={40: 0.1}, whole=0.35) == Chosen(), "small talk is near to neither"
    assert chosen(REMARK, cosines={40: 0.1}, whole=0.6).cover, "“Summarise it.” is no question"


def test_before_a_text_has_vectors_meaning_or_words_tell_that_a_query_is_about_all_of_it() -> None:
    one_rare_word = math.log(1 + 100)
    assert chosen(whole=0.6).cover == [0, 1, 10, 30, 50, 70, 90, 99, 98, 97]
    assert chosen(words={40: 0.5 * one_rare_word}, shares={40: 1.0}).cover
    assert not chosen(words={40: 0.7 * one_rare_word}, shares={40: 1.0}).cover
    assert not chosen(words={4: 0.5 * math.log(11)}, shares={4: 1.0}, sizes=(10,)).cover, "the text is short"


@pytest.mark.parametrize("limit", [1, 2, 4, LIMIT])
@pytest.mark.parametrize("documents", [1, 3, 20])
def test_the_best_passage_is_taken_however_many_documents_there_are(documents: int, limit: int) -> None:
    size, best = 30, 30 * documents - 12
    everything = chosen(
        sizes=(size,) * documents, limit=limit, cosines={best: 0.39}, other=0.3, shares={best: 0.9}, whole=0.6
    )
    found = everything.in_turns(limit)
    assert found[0] == best
    assert len(found) == len(set(found)) <= limit
    if limit == LIMIT and documents == 20:
        beginnings = [n * size for n in range(8)]
        assert [number for number in found if number in beginnings] == beginnings, "of as many documents as possible"


def test_without_passages_none_is_chosen() -> None:
    assert chosen(sizes=()) == Chosen()
    assert chosen(sizes=(0,)) == Chosen()
