"""Prompt lookup decoding (Saxena 2023): guesses an answer's next tokens, which the model then verifies in one decode step.

Answers quote their passages. So a good guess is the tokens that followed the previous occurrence of the last few tokens, in the prompt or
in the answer. Verifying n − 1 guesses costs a decode step with n positions, which reads the weights once. A guess counts if it is the
token that would have been sampled, so guesses change the time of an answer, not its tokens.

Every guess is compared with the token that follows, whether it was verified or not. So it costs nothing to learn how often guesses are
right, and they are verified only if that makes answers faster (`best_width`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

MAX_CONTEXT = 16_384
"""The newest tokens of a prompt that are searched."""
_SHORTEST, _LONGEST = 2, 8
"""Tokens that must match before a guess, and how many matching ones are told apart."""
_MEMORY = 64
"""About as many of the newest guesses count, for each length of the match."""
_FIRST_CHANCES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""How often guesses are right, by the length of the match, before anything is known."""


class Chances:
    """How often guesses were right lately, by the number of tokens that matched before them."""

    def __init__(self) -> None:
        self._right = dict(enumerate(_FIRST_CHANCES, _SHORTEST))

    def record(self, matched: int, *, right: bool) -> None:
        """Record whether a guess after `matched` tokens was right."""
        self._right[matched] += (right - self._right[matched]) / _MEMORY

    def expected(self, matched: int, guesses: int) -> list[float]:
        """Return how many tokens a step gives with 0, 1, … `guesses` guesses after `matched` tokens: 1, and the right guesses."""
        tokens, chance = [1.0], 1.0
        for more in range(guesses):
            chance *= self._right[min(matched + more, _LONGEST)]
            tokens.append(tokens[-1] + chance)
        return tokens


class PromptLookup:
    """Guesses the next tokens of one answer."""

    def __init__(self, context: Sequence[int], chances: Chances) -> None:
        """`context`: the prompt, and what the answer attends to before it. `chances`: shared by the answers of a model."""
        self._tokens: list[int] = []
        self._chances = chances
        self._after: dict[tuple[int, ...], int] = {}
        """For the n-grams of the two shortest lengths: the place after the last one that has a token behind it."""
        self._place: int | None = None
        """The place of the next guess in `_tokens`."""
        self.matched = 0
        """How many tokens before the next guess match those at the end, up to `_LONGEST`; 0 without a guess."""
        for token in context[-MAX_CONTEXT:]:
            self._append(token)
        self._find()

    def feed(self, token: int) -> None:
        """Add the answer's next token, which shows whether the guess was right."""
        right = self._place is not None and self._tokens[self._place] == token
        if self._place is not None:
            self._chances.record(self.matched, right=right)
        self._append(token)
        if right and self._place is not None:
            self._place, self.matched = self._place + 1, min(self.matched + 1, _LONGEST)
        else:
            self._find()

    def guesses(self, count: int) -> list[int]:
        """Return the next `count` tokens as guessed, or none."""
        if self._place is None:
            return []
        period = len(self._tokens) - self._place  # beyond the end, the guesses themselves go on
        return [self._tokens[self._place + n % period] for n in range(count)]

    def expected(self, count: int) -> list[float]:
        """Return how many tokens a step is expected to give with 0, 1, … `count` guesses."""
        return [1.0] * (count + 1) if self._place is None else self._chances.expected(self.matched, count)

    def _append(self, token: int) -> None:
        end = len(self._tokens)
        for length in (_SHORTEST, _SHORTEST + 1):
            if end >= length:
                self._after[tuple(self._tokens[end - length :])] = end
        self._tokens.append(token)

    def _find(self) -> None:
        """Find the place after the last occurrence of the longest of the n-grams at the end."""
        self._place, self.matched, tokens = None, 0, self._tokens
        for shortest in (_SHORTEST + 1, _SHORTEST):
            place = self._after.get(tuple(tokens[-shortest:]))
            if place is not None:
                length, most = shortest, min(_LONGEST, place)
                while length < most and tokens[place - length - 1] == tokens[-length - 1]:
                    length += 1
                self._place, self.matched = place, length
                return


def best_width(expected: Sequence[Sequence[float]], *, row_cost: float, most: int) -> int:
    """Return how many positions of each row the next decode step should have: a power of two, at most `most`.

    `expected`: for each row, the tokens that a step gives by the number of guesses (`PromptLookup.expected`). `row_cost`: the time of each
    further position in a batch, as a share of the time of a step with one. The rows' tokens per second are weighed by their product, so
    that rows without guesses are not held up for small gains of others.
    """
    rows = len(expected)

    def gain(width: int) -> float:
        cost = 1 + row_cost * (rows * width - 1)
        return sum(math.log(tokens[min(width, len(tokens)) - 1]) for tokens in expected) - rows * math.log(cost)

    widths = [1 << n for n in range(most.bit_length())]
    return max(widths, key=lambda width: (gain(width), -width))
