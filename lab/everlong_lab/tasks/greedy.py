"""Greedy answers of several rows at once, for evaluations: the documents are streams, the memory reads them in blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from everlong_models.errors import TokenError
from everlong_models.memories.base import MemoryModel
from everlong_models.memories.state import MemoryState

_BLOCK = 16_384
"""Tokens of a row that are at hand at once."""


@torch.no_grad()
def read_stream(model: MemoryModel, rows: Sequence[Iterable[np.ndarray]]) -> tuple[MemoryState, Tensor]:
    """Reads rows of one common length, each given as pieces of token ids, in bounded memory.

    Returns the memory after all segments that are followed by a token, and the tokens (B, T), 1 ≤ T ≤ S, that are left.
    Raises `TokenError` if the rows differ in length or are empty.
    """
    S = model.segment_length
    state = model.initial_state(len(rows))
    device = next(iter(state.tensors.values())).device
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
            raise TokenError("rows that are read together must have the same number of tokens, at least one")
        if waiting is not None:
            state = model.read(waiting, state)
        waiting = torch.from_numpy(np.stack(held).astype(np.int64)).to(device)


@torch.no_grad()
def answer(
    model: MemoryModel, state: MemoryState, tokens: Tensor, *, most: int, ends: Collection[int]
) -> list[list[int]]:
    """The likeliest next token again and again, until one of `ends` or `most` tokens; without the end.

    `tokens` (B, T): the open segment, 1 ≤ T ≤ S. At a segment's end the memory is closed and opened anew.
    """
    S, rows = model.segment_length, tokens.shape[0]
    cache, scores = model.open(state, tokens)
    held = tokens.shape[1]
    given: list[list[int]] = [[] for _ in range(rows)]
    open_rows = set(range(rows))
    for count in range(most):
        found = scores.argmax(-1)
        for row in sorted(open_rows):
            token = int(found[row])
            if token in ends:
                open_rows.discard(row)
            else:
                given[row].append(token)
        if not open_rows or count + 1 == most:
            break
        if held == S:
            cache, scores = model.open(model.close(cache), found[:, None])
            held = 1
        else:
            scores = model.step(cache, found)
            held += 1
    return given


def _blocks(pieces: Iterable[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """The same tokens in blocks of `size`; the last one may be shorter."""
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
