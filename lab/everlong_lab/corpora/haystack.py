"""Texts hidden in order in noise, as token ids: at once for training, or as a stream of any length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from everlong_lab.corpora.text import Noise
from everlong_models.errors import TokenError

_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class Haystack:
    """`before`, then `room` tokens of `noise` from `start` on, with `told` at `places` (0 … room) in it, then `after`."""

    before: Sequence[int]
    told: Sequence[Sequence[int]]
    after: Sequence[int]
    noise: Noise
    start: int
    room: int
    places: Sequence[int]

    def __len__(self) -> int:
        return len(self.before) + self.room + sum(map(len, self.told)) + len(self.after)

    def pieces(self) -> Iterator[np.ndarray]:
        """All tokens, a piece at a time."""
        yield np.array(self.before, dtype=np.int64)
        done = 0
        for place, told in zip(self.places, self.told, strict=True):
            yield from self._noise(done, place)
            yield np.array(told, dtype=np.int64)
            done = place
        yield from self._noise(done, self.room)
        yield np.array(self.after, dtype=np.int64)

    def ends(self) -> list[int]:
        """Where each of `told` ends, in tokens from the beginning."""
        lengths = np.cumsum([len(told) for told in self.told])
        return [len(self.before) + place + int(length) for place, length in zip(self.places, lengths, strict=True)]

    def ids(self) -> np.ndarray:
        """All tokens at once."""
        return np.concatenate(list(self.pieces()))

    def _noise(self, start: int, end: int) -> Iterator[np.ndarray]:
        for at in range(start, end, _PIECE):
            yield self.noise.cut(self.start + at, self.start + min(end, at + _PIECE))


def hide(
    random: np.random.Generator,
    noise: Noise,
    *,
    before: Sequence[int],
    told: Sequence[Sequence[int]],
    after: Sequence[int],
    length: int | None,
) -> Haystack:
    """`told` in noise that begins with a sentence; `length` tokens in all, None is without noise.

    Each text stands where a sentence ends, the one nearest to a point drawn uniformly; their order stays. Raises
    `TokenError` if they do not fit.
    """
    least = len(before) + sum(map(len, told)) + len(after)
    room = 0 if length is None else length - least
    if room < 0:
        raise TokenError(f"{length} tokens do not hold what is told in {least}")
    start = noise.start(random)
    drawn = np.sort(random.integers(0, room + 1, len(told)))
    places = [_border(noise, start, room, int(place)) for place in drawn]
    return Haystack(before, told, after, noise, start, room, places)


def _border(noise: Noise, start: int, room: int, place: int) -> int:
    """The end of a sentence, of all the noise, or its beginning, that is nearest to `place`."""
    found = noise.nearest(start + place) - start
    choices = [found if 0 <= found <= room else 0, room]
    return min(choices, key=lambda at: abs(at - place))
