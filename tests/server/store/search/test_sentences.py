"""Tests for sentences.py: passages are cut into sentences without gaps, and those nearest to a query come first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from everlong_server.store.search.ranking import Indexed
from everlong_server.store.search.sentences import cut, ordered
from everlong_server.store.texts.passage import Passage

WORDS = Indexed(None, 9, 4000, "en")
VECTORS = Indexed(None, 9, 4000, "en", np.zeros((9, 2), np.float16))


def passage(text: str, start: int = 0, document: str = "doc_a") -> Passage:
    return Passage(document, start, start + len(text), start, start + len(text.encode()), text)


def texts(found: Sequence[Passage]) -> list[str]:
    return [sentence.text.strip() for sentence in found]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("The boat is old and green. It belongs to Mr. Quill, the baker.", 2),
        ("“Where is the boat now?” she asked. Nobody had an answer to that.", 2),
        ("No! The boat was sold years ago to a baker.", 1),  # too short to stand by itself
        ("- oars for eight rowers, new\n- one rudder that is bent\n", 2),
        ("The club owns fourteen boats\nand keeps them in the shed.", 1),  # a line that is wrapped
        ("Opening hours of the club house\n\nFrom six to ten, every single day", 2),
        (
            "这艘船又旧又绿，停在河边的船坞里已经很多年了，没有人用过它。它属于面包师，他每个星期天都会来看一看它，然后回家。",
            2,
        ),
        ("", 0),
    ],
)
def test_a_text_is_cut_into_sentences(text: str, sentences: int) -> None:
    assert len(list(cut(text))) == sentences


@given(st.text(alphabet="aB. !?\n-|“”。é", max_size=300))
def test_the_sentences_of_a_text_leave_no_gap(text: str) -> None:
    assert "".join(text[start:end] for start, end in cut(text)) == text


def test_sentences_keep_their_places() -> None:
    text = "The café is closed on Sundays. The boat belongs to the baker’s wife. Nobody rows it in winter months."
    found = ordered([passage(text, 40)], {"baker": 1.0}, None, {"doc_a": WORDS})
    assert "baker" in found[0].text
    for sentence in found:
        assert text[sentence.start - 40 : sentence.end - 40] == sentence.text
        assert text.encode()[sentence.start_byte - 40 : sentence.end_byte - 40].decode() == sentence.text
    assert [sentence.score for sentence in found] == [1.0, 0.5, 0.333]


def test_inflected_and_rare_words_of_the_query_weigh_more() -> None:
    boats = [passage("The boats are kept in the shed over winter. ", 500 * n) for n in range(3)]
    bakery = passage("The baker sells fourteen kinds of bread here. ", 5000)
    found = ordered([*boats, bakery], {"boat": 1.0, "bakers": 1.0}, None, {"doc_a": WORDS})
    assert found[0].start == bakery.start


def test_meaning_is_compared_in_documents_with_vectors() -> None:
    asked: list[Sequence[str]] = []

    def similarity(compared: Sequence[str]) -> NDArray[np.float32]:
        asked.append(compared)
        return np.array([0.9 if "vessel" in text else 0.1 for text in compared], np.float32)

    with_vectors = passage("It rained for the whole of June. The vessel belongs to the baker. ")
    without = passage("A boat lies in the shed behind the house. ", document="doc_b")
    found = ordered([with_vectors, without], {"ship": 1.0}, similarity, {"doc_a": VECTORS, "doc_b": WORDS})
    assert texts(found)[0] == "The vessel belongs to the baker."
    assert asked == [["It rained for the whole of June.", "The vessel belongs to the baker."]]


def test_a_reranker_orders_sentences_that_were_compared_and_leaves_the_others_between_them() -> None:
    first = replace(passage("It rained for the whole of June. The vessel belongs to the baker. "), score=1.0)
    second = replace(passage("Nobody was paid for all of it. It went on for a week, they say. ", 500), score=0.5)
    without = passage("A boat lies in the shed behind the house. ", document="doc_b")
    asked = []

    def answering(found: Sequence[str], spans: Sequence[Sequence[tuple[int, int]]]) -> list[NDArray[np.float32]]:
        asked.append([text[start:end].strip() for text, of in zip(found, spans, strict=True) for start, end in of])
        return [
            np.array([8.0 if "paid" in text[a:b] else -4.0 for a, b in of], np.float32)
            for text, of in zip(found, spans, strict=True)
        ]

    def similarity(compared: Sequence[str]) -> NDArray[np.float32]:
        raise AssertionError("vectors of sentences are not needed")

    parts = {"doc_a": VECTORS, "doc_b": WORDS}
    found = ordered([second, without, first], {"ship": 1.0}, similarity, parts, answering=answering)
    assert texts(found)[0] == "Nobody was paid for all of it."
    assert asked == [
        [
            "It rained for the whole of June.",
            "The vessel belongs to the baker.",
            "Nobody was paid for all of it.",
            "It went on for a week, they say.",
        ]
    ]
    places = [sentence.document for sentence in found]
    assert 0 < places.index("doc_b") < len(places) - 1, "neither better nor worse"
    assert ordered([without], {"boat": 1.0}, similarity, parts, answering=answering)[0].document == "doc_b"
    assert len(asked) == 1


def test_the_sentence_beside_a_near_one_comes_before_a_distant_one() -> None:
    found = ordered(
        [
            passage("Who owns the green boat in the shed? The baker owns it, they say. "),
            passage("Rain fell on the town all week. It went on in the next week, too. ", 500),
        ],
        {"boat": 1.0, "shed": 1.0}, None, {"doc_a": WORDS},
    )  # fmt: skip
    assert texts(found)[:2] == ["Who owns the green boat in the shed?", "The baker owns it, they say."]


def test_the_beginning_of_the_document_comes_after_the_two_nearest_sentences() -> None:
    title = "# Boats and bakers of our town\n\n## By Ada Quill, who lives there\n\n"
    beginning = passage(title + "It was a cold and rainy day in the old town by the river. " * 4)
    near = passage("The baker owns a boat with eight oars. A boat is never clean. It has a green sail, too. ", 2000)
    found = ordered([near, beginning], {"boat": 1.0}, None, {"doc_a": WORDS}, beginning)
    assert [s.text.strip() for s in found[2:4]] == [
        "# Boats and bakers of our town",
        "## By Ada Quill, who lives there",
    ]
    assert [s.score for s in found[2:4]] == [0.0, 0.0]
    assert len({s.start for s in found}) == len(found), "none is there twice"
    assert ordered([near], {"boat": 1.0}, None, {"doc_a": WORDS})[0].document == "doc_a"
