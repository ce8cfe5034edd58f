"""Hide texts ("needles") in noise, as token ids: all at once for training, or as a stream of any length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from everlong_lab.corpora.text import Noise
from everlong_models.errors import TokenError

_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class Haystack:
    """`before`, then `room` tokens of `noise` from `start` with the `needles` inserted at `places` (0 … room), then `after`."""

    before: Sequence[int]
    needles: Sequence[Sequence[int]]
    after: Sequence[int]
    noise: Noise
    start: int
    room: int
    places: Sequence[int]

    def __len__(self) -> int:
        return len(self.before) + self.room + sum(map(len, self.needles)) + len(self.after)

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield all tokens, piece by piece."""
        yield np.array(self.before, dtype=np.int64)
        done = 0
        for place, needle in zip(self.places, self.needles, strict=True):
            yield from self._noise(done, place)
            yield np.array(needle, dtype=np.int64)
            done = place
        yield from self._noise(done, self.room)
        yield np.array(self.after, dtype=np.int64)

    def ends(self) -> list[int]:
        """Return the end position of each needle, in tokens from the beginning."""
        lengths = np.cumsum([len(needle) for needle in self.needles])
        return [len(self.before) + place + int(length) for place, length in zip(self.places, lengths, strict=True)]

    def ids(self) -> np.ndarray:
        """Return all tokens."""
        return np.concatenate(list(self.pieces()))

    def _noise(self, start: int, end: int) -> Iterator[np.ndarray]:
        for at in range(start, end, _PIECE):
            yield self.noise.cut(self.start + at, self.start + min(end, at + _PIECE))


def hide(
    random: np.random.Generator,
    noise: Noise,
    *,
    before: Sequence[int],
    needles: Sequence[Sequence[int]],
    after: Sequence[int],
    length: int | None,
) -> Haystack:
    """Hide `needles`, in order, in noise that starts with a sentence; `length` tokens in all, or None without noise.

    Each needle is inserted at the end of the sentence nearest to a uniformly random position. Raises `TokenError` if the
    needles do not fit.
    """
    least = len(before) + sum(map(len, needles)) + len(after)
    room = 0 if length is None else length - least
    if room < 0:
        raise TokenError(f"length must be at least {least} tokens to hold the facts, got {length}")
    start = noise.start(random)
    positions = np.sort(random.integers(0, room + 1, len(needles)))
    places = [_border(noise, start, room, int(position)) for position in positions]
    return Haystack(before, needles, after, noise, start, room, places)


def _border(noise: Noise, start: int, room: int, position: int) -> int:
    """Return the position nearest to `position` that is the end of a sentence, or the start or end of the noise."""
    nearest = noise.nearest(start + position) - start
    choices = [nearest if 0 <= nearest <= room else 0, room]
    return min(choices, key=lambda at: abs(at - position))
