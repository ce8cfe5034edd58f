"""Ranking: the order of passages by words and by meaning, and passages that represent others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from everlong_lab.harness.search_corpus import SearchCorpus
from everlong_server.store.search.ranking import Indexed, Ranking, rank
from everlong_server.store.search.word_index import opened
from everlong_server.store.texts.blobs import Blobs

WORDS = ("iron", "glass", "paper", "stone", "water", "linen")


def sentence(*words: str) -> str:
    """Return a passage of its own: it is long enough, and ends with a sentence."""
    return f"{' '.join(words)} " + "and so on " * 30 + "for ever. "


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def indexed(folder: Path, stack: ExitStack, *documents: Sequence[str]) -> list[Indexed]:
    """Index documents, each of which is given as its passages."""
    corpus, parts = SearchCorpus(Blobs(f"file://{folder}")), []
    for passages in documents:

        async def put(text: str = "".join(passages)) -> str:
            document = await corpus.put(text)
            await corpus.passages.ensure(document)
            return document.id

        id = asyncio.run(put())
        index = stack.enter_context(opened(stack.enter_context(corpus.blobs.local(f"{id}.passages"))))
        (size,) = index.execute("SELECT count(*) FROM passages").fetchone()
        assert size == len(passages)
        parts.append(Indexed(index, size, 400 * size, "en"))
    return parts


def order(ranking: Ranking) -> list[int]:
    return [int(n) for n in np.argsort(-ranking.scores, kind="stable") if ranking.scores[n] > 0]


def test_a_rare_word_counts_more_than_a_frequent_one(tmp_path: Path, stack: ExitStack) -> None:
    texts = [sentence("iron"), *[sentence("glass")] * 6, sentence("linen")]
    ranking = rank(indexed(tmp_path, stack, texts), {"iron": 1.0, "glass": 1.0}, None)
    assert order(ranking)[0] == 0
    assert ranking.by_words[0] > 2 * ranking.by_words[3] > 0 == ranking.by_words[7]
    assert ranking.shares[0] > 0.5 > ranking.shares[3] > 0
    assert ranking.shares[0] + ranking.shares[3] == pytest.approx(1)


def test_documents_are_ranked_together_but_are_no_neighbours(tmp_path: Path, stack: ExitStack) -> None:
    first, second = [sentence("paper"), sentence("iron")], [sentence("stone"), sentence("water"), sentence("iron")]
    ranking = rank(indexed(tmp_path, stack, first, second), {"iron": 1.0}, None)
    assert ranking.first.tolist() == [0, 2, 5]
    assert np.flatnonzero(ranking.by_words).tolist() == [1, 4]
    assert set(order(ranking)) == {0, 1, 3, 4}, "passage 2 begins another document"
    assert set(order(ranking)[:2]) == {1, 4}


def test_meaning_finds_what_words_do_not_and_both_together_win(tmp_path: Path, stack: ExitStack) -> None:
    (part,) = indexed(tmp_path, stack, [sentence(word) for word in WORDS])
    vectors = np.eye(6, dtype=np.float16)
    with_vectors = Indexed(part.index, part.size, part.bytes, part.language, vectors)
    query = np.array([0, 0, 0, 0, 0.6, 0.8], np.float32)
    ranking = rank([with_vectors], {}, query)
    assert order(ranking) == [5, 4]
    assert ranking.similarities == pytest.approx(query, abs=1e-3)
    both = rank([with_vectors], {"water": 1.0}, query)
    assert order(both)[0] == 4
    assert not rank([part], {}, query).scores.any(), "it has no vectors"


def test_a_document_whose_vectors_are_being_built_does_not_lose_for_that(tmp_path: Path, stack: ExitStack) -> None:
    older, newer = indexed(tmp_path, stack, [sentence("iron"), sentence("glass")], [sentence("water", "stone")])
    older = Indexed(older.index, older.size, older.bytes, older.language, np.eye(2, dtype=np.float16))
    ranking = rank([older, newer], {"water": 1.0, "stone": 1.0, "iron": 1.0}, np.array([0.6, 0.3], np.float32))
    assert order(ranking) == [2, 0, 1]
    assert ranking.compared.tolist() == [True, True, False]
    assert ranking.relevance[2] == pytest.approx(1), "first by all that it can be compared by"


def test_nothing_is_ranked_without_documents() -> None:
    assert rank([], {"iron": 1.0}, None).scores.shape == (0,)
