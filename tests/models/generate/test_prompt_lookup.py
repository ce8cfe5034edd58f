"""Guesses are what followed the last tokens where they stood before; how many are verified depends on how often they were right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong_models.generate.prompt_lookup import MAX_CONTEXT, Chances, PromptLookup, best_width

CONTEXT = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19]


def guesses(context: list[int], count: int = 3) -> list[int]:
    return PromptLookup(context, Chances()).guesses(count)


def test_tokens_that_followed_the_last_ones_before_are_guessed() -> None:
    assert guesses([*CONTEXT, 13, 14]) == [15, 16, 17]
    assert guesses([*CONTEXT, 1, 2]) == []
    assert guesses([*CONTEXT, 14]) == [], "one token is not enough"
    assert guesses([]) == guesses([5]) == []


def test_the_longest_match_wins_and_of_equal_ones_the_last() -> None:
    assert guesses([1, 2, 3, 50, 9, 2, 3, 60, 1, 2, 3], 1) == [50]
    assert guesses([2, 3, 50, 9, 2, 3, 60, 8, 2, 3], 1) == [60]


def test_guesses_beyond_the_end_go_on_as_they_began() -> None:
    assert guesses([7, 8, 7, 8], 5) == [7, 8, 7, 8, 7]
    assert guesses([4, 4, 4], 4) == [4, 4, 4, 4]


def test_a_quotation_is_followed_to_where_it_ends() -> None:
    lookup = PromptLookup([*CONTEXT, 1], Chances())
    lengths = []
    for token in (10, 11, 12, 13, 14, 15, 16, 17, 18):
        lookup.feed(token)
        lengths.append(lookup.matched)
    assert lengths == [0, 2, 3, 4, 5, 6, 7, 8, 8]
    assert lookup.guesses(1) == [19]
    lookup.feed(99)
    assert (lookup.guesses(3), lookup.matched) == ([], 0)


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 8))
def test_a_guess_is_what_followed_an_earlier_match(tokens: list[int], count: int) -> None:
    lookup = PromptLookup([], Chances())
    for token in tokens:
        lookup.feed(token)
    found, end = lookup.guesses(count), tuple(tokens[-2:])
    earlier = [at for at in range(2, len(tokens)) if tuple(tokens[at - 2 : at]) == end]
    assert bool(found) == bool(earlier)
    if found:
        assert len(found) == count
        assert found[0] in {tokens[at] for at in earlier}


def test_only_the_newest_tokens_of_a_long_context_are_searched() -> None:
    assert guesses([1, 2, 3, *range(10, 10 + MAX_CONTEXT), 1, 2]) == []


def test_chances_follow_how_often_guesses_were_right_verified_or_not() -> None:
    chances = Chances()
    before = chances.expected(2, 1)[1]
    for _ in range(300):
        chances.record(2, right=False)
    assert chances.expected(2, 1)[1] < 1.01 < before
    for _ in range(300):
        chances.record(2, right=True)
    assert chances.expected(2, 1)[1] > 1.99
    # The second guess is right only if the first one is.
    assert chances.expected(8, 2)[2] == pytest.approx(1 + 0.9 + 0.9 * 0.9)
    assert PromptLookup([], chances).expected(2) == [1.0, 1.0, 1.0]


def test_guesses_are_verified_only_where_they_pay() -> None:
    sure, unsure, none = [1 + n for n in range(8)], [1.0, 1.2, 1.25, 1.26], [1.0]
    assert best_width([none], row_cost=0.0, most=8) == 1
    assert best_width([sure], row_cost=0.3, most=8) == 8
    assert best_width([sure], row_cost=0.3, most=7) == 4, "a power of two"
    assert best_width([sure], row_cost=0.3, most=1) == 1
    assert best_width([unsure], row_cost=0.3, most=4) == 1
    assert best_width([unsure], row_cost=0.05, most=4) == 2
    # In a batch, every row gets as many positions as the one with guesses, and waits for them.
    assert best_width([sure, sure], row_cost=0.3, most=8) == 8
    assert best_width([sure, none], row_cost=0.3, most=8) == 1
    assert best_width([sure, none], row_cost=0.05, most=8) == 8
    assert best_width([sure, *[none] * 15], row_cost=0.05, most=8) == 1
