"""`everlong eval grounded`: scoring, and which questions are asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlong_lab.eval.answer_scores import squad
from everlong_lab.eval.grounded import grounded
from everlong_lab.eval.grounded.hiding import DocumentQuestion, HaystackDocument, Novels, rank, stated
from everlong_lab.eval.grounded.questions import Question, SourceText
from everlong_lab.eval.grounded.report import GroundedScores
from everlong_lab.eval.grounded.scores import Mean, declines, holds, mean, ratio


def test_f1_and_exact_match_are_squads() -> None:
    assert squad("The cat sat.", ["a cat sat down", "dogs"]) == pytest.approx((0.8, 0))
    assert squad("", ["a cat"]) == (0, 0)
    assert squad("cat cat", ["cat"]) == pytest.approx((2 / 3, 0))
    assert squad("The  Cat!", ["dog", "cat"]) == (1, 1)


def test_an_answer_may_hold_a_reference() -> None:
    assert holds("It was the big cat.", ["dog", "A big cat"]) == 1
    assert holds("It was a scat.", ["cat", "."]) == 0


def test_an_answer_may_say_that_the_text_has_none() -> None:
    assert declines("The text does not say.") == declines("the text does not say who") == 1
    assert declines("It does not say.") == declines("") == 0


def test_an_interval_holds_its_mean_and_shrinks() -> None:
    few, many = (mean([0.0, 1.0] * n, [str(k) for k in range(2 * n)]) for n in (10, 1000))
    assert few.low < few.value == many.value == 0.5 < few.high
    assert many.high - many.low < 0.2 * (few.high - few.low) + 0.02
    assert (few.count, mean([], []).count) == (20, 0)
    # The same ten questions a hundred times over are ten.
    repeated = mean([0.0, 1.0] * 1000, [str(k % 20) for k in range(2000)])
    assert (repeated.low, repeated.high) == (few.low, few.high)


def test_a_ratio_is_of_sums_and_what_is_alike_in_both_cancels() -> None:
    below = [1.0, 2.0, 4.0, 0.0]
    half = ratio([0.5, 1.0, 2.0, 0.0], below, "abcd")
    assert half.value == half.low == half.high == 0.5
    assert ratio([1.0, 0.0, 0.0, 0.0], below, "abcd").value == pytest.approx(1 / 7)
    assert ratio([1.0], [0.0], "a") == Mean(0.0, 0.0, 0.0, 1)


async def test_no_question_is_asked_twice(tmp_path: Path) -> None:
    """All questions are used before the documents end."""
    (tmp_path / "novel.txt").write_text("\n\n".join(f"A paragraph of words, number {n}." for n in range(2000)))
    words = [f"text {n} has words of its own" for n in range(3)]
    texts = [
        SourceText(f"t{n}", text, False, (Question(f"q{n}", ("words",), ((0, 4),), ()),) * 2)
        for n, text in enumerate(words)
    ]
    texts.append(SourceText("t3", "nothing", False, (Question("q?", (), ((0, 4),), ()),)))
    novels = Novels([tmp_path / "novel.txt"], lambda text: len(text.split()))
    for answerable, wanted in ((True, ["q0", "q1", "q2"]), (False, ["q?"])):
        made = grounded._new(
            texts, novels, GroundedScores("x", 300), lambda text: len(text.split()), 0, answerable=answerable
        )
        assert sorted(asked.question for _, new in [item async for item in made] for asked in new) == wanted


async def test_questions_that_no_document_holds_end(tmp_path: Path) -> None:
    (tmp_path / "novel.txt").write_text("A paragraph of words.\n\n" * 2000)
    long = "word " * 1000
    text = SourceText("t", long, True, (Question("q", ("word",), ((0, 4), (4000, 4004)), ()),))
    novels = Novels([tmp_path / "novel.txt"], lambda text: len(text.split()))
    made = grounded._new([text], novels, GroundedScores("x", 100), lambda text: len(text.split()), 0, answerable=True)
    assert [item async for item in made] == []


def test_evidence_holds_an_answer_in_one_piece_within_the_right_part() -> None:
    text = "Paris. " * 20 + "Anna left Rome in May, and Paris saw her again in June."
    start = text.index("Anna")
    place = (text.index("Paris saw"), text.index("Paris saw") + 5)
    hidden = HaystackDocument(text, 0, ())
    verbatim = DocumentQuestion("", "", ("Paris",), ((start, len(text)),), (place,))
    assert rank(hidden, verbatim, [(0, 100), (start, place[1])]) == 2
    assert rank(hidden, verbatim, [(0, 100)]) is None, "the same word elsewhere is another Paris"
    assert rank(hidden, verbatim, [(start, place[0] + 2), (place[0] + 2, len(text))]) is None
    own_words = DocumentQuestion("", "", ("She went away from Rome in spring, in May",), ((start, len(text)),), ())
    assert rank(hidden, own_words, [(0, 60), (start - 30, len(text))]) == 2
    assert rank(hidden, own_words, [(place[0], len(text))]) is None
    felt = DocumentQuestion("", "", ("Devastated.",), ((start, len(text)),), ())
    assert rank(hidden, felt, [(start, len(text))]) is None, "no word of it says so"
    assert [stated(hidden, asked) for asked in (verbatim, own_words, felt)] == [True, True, False]
    either = DocumentQuestion("", "", ("Devastated.", "Sad to leave Rome."), ((start, len(text)),), ())
    assert rank(hidden, either, [(start, len(text))]) == 1
    assert rank(hidden, either, [(place[0], len(text))]) is None
