"""Grounding: which passages become evidence, and where in the prompt they are."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlong_server.engine.answering.evidence.grounding import select_passages, select_passages_in_window
from everlong_server.engine.answering.evidence.templates import (
    INSTRUCT,
    TEMPLATE,
    follow_up_template,
    whole_template,
)
from everlong_server.engine.answering.turn_context import Exchange
from everlong_server.store.search.overview import Overview
from everlong_server.store.search.splitting import split
from everlong_server.store.texts.passage import Passage
from tests.tinymodel import STORY

ALICE = STORY.read_text()


def passages_of(text: str) -> list[Passage]:
    pieces = split(io.BytesIO(text.encode()))
    return [Passage("doc", p.start, p.end, p.start_byte, p.end_byte, p.text, score=1.0, share=1.0) for p in pieces]


def test_neighbours_are_merged_and_offsets_are_exact() -> None:
    text = "  " + " ".join(f"Ünïcödé 字 wörd {n}." for n in range(150))
    a, b, c, d = passages_of(text)[:4]
    evidence, before = select_passages([d, b, a], "", 100_000, len)
    assert [(e.start, e.end) for e in evidence] == [
        (2, b.end - 1),
        (d.start, d.end - len(d.text) + len(d.text.rstrip())),
    ]
    for e in evidence:
        assert text[e.start : e.end] == e.text
        assert text.encode()[e.start_byte : e.end_byte].decode() == e.text
        assert e.text in before
    assert c.text not in before


def test_the_best_passage_is_the_first_evidence_and_next_to_the_question() -> None:
    a, b, c = (replace(p, score=score) for p, score in zip(passages_of(ALICE)[:5:2], (2.0, 3.0, 1.5), strict=True))
    evidence, before = select_passages([b, a, c], "", 10_000, len)
    assert [e.start for e in evidence] == [b.start, a.start, c.start]
    assert before == TEMPLATE.render([c.text, a.text, b.text])


def test_passages_of_a_whole_text_keep_its_order_between_its_title_and_its_names() -> None:
    a, b, c = (replace(p, score=score) for p, score in zip(passages_of(ALICE)[:5:2], (0.5, 1.0, 0.3), strict=True))
    template = whole_template(Overview(("Alice",), ("Red Queen", "Dinah")))
    evidence, before = select_passages([b, a, c], "", 10_000, len, template)
    assert [e.start for e in evidence] == [b.start, a.start, c.start], "best first, as other evidence"
    assert before.startswith("These passages are from all parts of the text “Alice”.")
    places = [
        before.index(part) for part in (a.text.strip(), b.text.strip(), c.text.strip(), "Red Queen, Dinah", "Question:")
    ]
    assert places == sorted(places)
    nameless = whole_template(Overview((), ())).render(["One."])
    assert nameless.startswith(
        "These passages are from all parts of the text.\n\nOne.\n\nAnswer the question about the whole text in"
    )


def test_sentences_that_stand_near_each_other_are_one_paragraph_in_the_order_of_the_text() -> None:
    def sentence(text: str, start: int, score: float) -> Passage:
        return Passage("doc", start, start + len(text), start, start + len(text), text, score)

    found = [
        sentence("It is hers. ", 300, 1.0), sentence("Far away. ", 5000, 0.5), sentence("The boat is old. ", 0, 0.3),
        sentence("So they say. ", 312, 0.2),
    ]  # fmt: skip
    evidence, text = select_passages(found, "", 100, lambda text: len(text.split()), INSTRUCT)
    assert text.endswith("\n\nFar away.\n\nThe boat is old. … It is hers. So they say.\n\nQuestion: ")
    assert [passage.text for passage in evidence] == ["It is hers. So they say.", "Far away.", "The boat is old."]


def test_the_budget_holds_and_what_is_seen_is_not_repeated() -> None:
    found = passages_of(ALICE)[:9:2]
    for budget in (5, 60, 200, 700, 1500, 5000):
        evidence, before = select_passages(found, "", budget, len)
        assert len(before) <= budget
        assert bool(evidence) == bool(before) == (budget >= 200)
        for e in evidence:
            assert ALICE[e.start : e.end] == e.text
    evidence, before = select_passages(found, ALICE, 5000, len)
    assert len(evidence) == 5, "it rests on them all the same"
    assert before == ""


def test_a_budget_that_holds_a_word_gives_it_and_a_smaller_one_nothing() -> None:
    (first, *_) = passages_of(ALICE)
    template = TEMPLATE.render([""])
    word = first.text.split()[0]
    evidence, before = select_passages([first], "", len(template) + len(word), len)
    assert [e.text for e in evidence] == [word]
    assert before == TEMPLATE.render([word])
    assert select_passages([first], "", len(template) + len(word) - 1, len) == ([], "")
    assert select_passages([], "", 10_000, len) == ([], "")


def test_a_best_passage_that_is_too_long_is_shortened_and_not_replaced() -> None:
    long, short = passages_of("The submarine " + "sank " * 60 + "quickly. Yes. " + "And " * 80)[:2]
    short = replace(short, text=short.text[:5], end=short.start + 5, end_byte=short.start_byte + 5)
    room = len(TEMPLATE.render([long.text])) - 20
    assert len(TEMPLATE.render([short.text])) < room
    (only,), _ = select_passages([long, short], "", room, len)
    assert only.start == 0
    assert long.text.startswith(only.text)
    assert room - len(TEMPLATE.render([only.text])) < len("quickly. ")


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(
    budget=st.integers(0, 3000), window=st.integers(1, 2500), after=st.integers(0, 2600), kept=st.integers(0, 1200),
    between=st.integers(0, 50),
)  # fmt: skip
def test_evidence_is_among_the_last_tokens_that_a_window_keeps(
    budget: int, window: int, after: int, kept: int, between: int
) -> None:
    """In this test a token is a character."""
    found = [replace(p, score=9.0 - n) for n, p in enumerate(passages_of(ALICE)[:6:2])]
    held = [*map(ord, ALICE[:kept])]
    evidence, text = select_passages_in_window(
        found, held, budget, len, lambda ids: "".join(map(chr, ids)), window=window, between=between, after=after
    )
    assert len(text) <= budget
    seen = (ALICE[:kept] + "-" * between + text + "?" * after)[-window:]
    for e in evidence:
        assert e.text in seen
        assert ALICE[e.start : e.end] == e.text
    room = min(budget, window - after)
    assert bool(evidence) or room < len(TEMPLATE.render([found[0].text]))


def test_a_follow_up_repeats_the_question_and_answer_before_it() -> None:
    before = Exchange("Whose offer\nwas accepted?", "Croft Marine's. " + "It costs more. " * 50)
    template = follow_up_template(INSTRUCT, before)
    text = template.render(["A passage."])
    assert text.startswith(INSTRUCT.render(["A passage."]) + "Whose offer was accepted?\nAnswer: Croft Marine's. It")
    assert text.endswith("\nQuestion: ")
    assert len(text) < len(INSTRUCT.render(["A passage."])) + 400
    assert template.render([]) == ""
