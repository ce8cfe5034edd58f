"""Greedy answers for several rows at once. Documents are streams that the memory reads in blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from everlong_models.errors import TokenError
from everlong_models.memories.base import SegmentReader
from everlong_models.memories.state import MemoryState

_BLOCK = 16_384
"""Maximum number of tokens of a row held at once."""


@torch.no_grad()
def read_stream(model: SegmentReader, rows: Sequence[Iterable[np.ndarray]]) -> tuple[MemoryState, Tensor]:
    """Read rows of equal length, each given as pieces of token ids, in bounded memory.

    Returns the memory after all segments that are followed by a token, and the remaining tokens (B, T), 1 ≤ T ≤ S.
    Raises `TokenError` if the rows differ in length or are empty.
    """
    S = model.segment_length
    state = model.initial_state(len(rows))
    device = state.device
    step = S * max(1, _BLOCK // S)
    waiting: Tensor | None = None
    streams = [_blocks(row, step) for row in rows]
    while True:
        blocks = [next(stream, None) for stream in streams]
        held = [block for block in blocks if block is not None]
        if not held and waiting is not None:
            full = (waiting.shape[1] - 1) // S * S
            return model.read(waiting[:, :full], state), waiting[:, full:]
        if len(held) != len(rows) or len({len(block) for block in held}) != 1:
            raise TokenError("rows read together must have the same number of tokens, at least one")
        if waiting is not None:
            state = model.read(waiting, state)
        waiting = torch.from_numpy(np.stack(held).astype(np.int64)).to(device)


@torch.no_grad()
def answer(
    model: SegmentReader, state: MemoryState, tokens: Tensor, *, most: int, ends: Collection[int]
) -> list[list[int]]:
    """Generate the likeliest tokens of each row until one of `ends` or `most` tokens; the end is not included.

    `tokens` (B, T): the open segment, 1 ≤ T ≤ S. At the end of a segment the memory is closed and opened again.
    """
    S, rows = model.segment_length, tokens.shape[0]
    cache, scores = model.open(state, tokens)
    filled = tokens.shape[1]
    answers: list[list[int]] = [[] for _ in range(rows)]
    unfinished = set(range(rows))
    for count in range(most):
        likeliest = scores.argmax(-1)
        for row in sorted(unfinished):
            token = int(likeliest[row])
            if token in ends:
                unfinished.discard(row)
            else:
                answers[row].append(token)
        if not unfinished or count + 1 == most:
            break
        if filled == S:
            cache, scores = model.open(model.close(cache), likeliest[:, None])
            filled = 1
        else:
            scores = model.step(cache, likeliest)
            filled += 1
    return answers


def _blocks(pieces: Iterable[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Regroup the pieces into blocks of `size` tokens; the last block may be shorter."""
    held: list[np.ndarray] = []
    count = 0
    for piece in pieces:
        start = 0
        while len(piece) - start >= size - count:
            yield np.concatenate([*held, piece[start : start + size - count]])
            start += size - count
            held, count = [], 0
        held.append(piece[start:])
        count += len(piece) - start
    if count:
        yield np.concatenate(held)
