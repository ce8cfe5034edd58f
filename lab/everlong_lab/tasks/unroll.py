"""Unroll a memory over whole documents and return the loss segment by segment, for any `SegmentReader`.

    for part in unroll(model, tokens, lengths=lengths, loss_mask=answers):
        total, count = total + part.loss.sum(), count + part.targets.sum()

Token i+1 is predicted at position i, so the last position of a segment predicts the first token of the next one. The
first token of a document is never a target. Rows of a batch may have different numbers of segments. A row takes part only
while its own document lasts, so its loss and gradient are the same as if it were alone.

The default is full back-propagation through time. `truncate` cuts the gradient, not the memory, at borders counted
back from each document's last segment: the answer is at the end, and its gradient reaches back over a full stretch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from everlong_models.errors import ConfigError, TokenError
from everlong_models.memories.base import SegmentReader
from everlong_models.memories.state import MemoryState


@dataclass(frozen=True, slots=True)
class SegmentLoss:
    """What one segment contributes to an unroll.

    `loss` (B,): sum of the negative log-likelihoods of the targets that each row predicts from this segment, in float32 or
    better. `auxiliary` (B,): the memory's own loss, see `TrainingSegment`. `targets` (B,): number of targets. `correct`
    (B,): number of targets that are the most likely token. `state`: the memory after the segment; for each row, after its
    own last full segment. `border`: no gradient flows from later segments into this one or earlier ones, so that a
    backward pass now frees everything computed so far.
    """

    loss: Tensor
    auxiliary: Tensor
    targets: Tensor
    correct: Tensor
    state: MemoryState
    border: bool


class _Batch(NamedTuple):
    """At each position (B, T): the token, the next token, whether that is a target, and whether the row has a token there."""

    tokens: Tensor
    following: Tensor
    wanted: Tensor
    inside: Tensor


def unroll(
    model: SegmentReader,
    tokens: Tensor,
    *,
    lengths: Tensor | None = None,
    loss_mask: Tensor | None = None,
    state: MemoryState | None = None,
    truncate: int | None = None,
    checkpointed: bool = False,
    between: Callable[[int, MemoryState], MemoryState] | None = None,
) -> Iterator[SegmentLoss]:
    """Yield the losses of documents `tokens` (B, N), segment by segment.

    `lengths` (B,): tokens of each row's document, default N; the rest is ignored. `loss_mask` (B, N): which tokens are
    targets, default all. `state`: the memory before, default the initial one. `truncate`: segments that a gradient
    reaches back over, default all. `checkpointed`: recompute activations in the backward pass, one segment at a time.
    `between`: called between two segments with the index of the first and the memory after it; returns the memory to
    continue from.

    Documents that the model can predict in `one_pass_tokens` yield one part with the same figures. Raises `TokenError` or
    `ConfigError`, at the call, for arguments that do not fit together.
    """
    if tokens.dim() != 2:
        raise TokenError(f"tokens must have the shape (rows, tokens), got {tuple(tokens.shape)}")
    rows, longest = tokens.shape
    held = [longest] * rows if lengths is None else [int(length) for length in lengths]
    if len(held) != rows or not all(0 <= length <= longest for length in held):
        raise TokenError(f"lengths must be {rows} numbers from 0 to {longest}, got {held}")
    if loss_mask is not None and loss_mask.shape != tokens.shape:
        raise TokenError(
            f"loss_mask has the shape {tuple(loss_mask.shape)}, must be {tuple(tokens.shape)} as the tokens"
        )
    if truncate is not None and truncate < 1:
        raise ConfigError("truncate", truncate, "must be at least 1 segment")
    inside = torch.arange(longest, device=tokens.device) < torch.tensor(held, device=tokens.device)[:, None]
    wanted = inside if loss_mask is None else inside & loss_mask.bool()
    tokens = tokens.masked_fill(~inside, 0)
    following, wanted = (F.pad(x[:, 1:], (0, 1)) for x in (tokens, wanted))  # nothing follows the last token
    whole = state is None and between is None and model.segment_length < max(held, default=0) <= model.one_pass_tokens
    state = model.initial_state(rows) if state is None else state
    batch = _Batch(tokens, following, wanted, inside)
    if whole:
        return iter([_whole(model, batch, held, state, checkpointed=checkpointed)])
    return _parts(model, batch, held, state, truncate=truncate, checkpointed=checkpointed, between=between)


def _whole(
    model: SegmentReader, batch: _Batch, held: list[int], state: MemoryState, *, checkpointed: bool
) -> SegmentLoss:
    """Return the only part of new documents that `model` predicts in one pass."""
    rows, positions = batch.wanted.nonzero(as_tuple=True)
    tokens, targets = batch.tokens[:, : max(held)], batch.following[rows, positions]
    loss, auxiliary, correct = _nothing(batch)
    if len(targets):

        def scored() -> tuple[Tensor, Tensor]:
            return _scored(model.logits_at(tokens, rows, positions), targets)

        losses, right = checkpoint(scored, use_reentrant=False) if checkpointed else scored()
        loss, correct = (x.new_zeros(len(held)).index_add(0, rows, x) for x in (losses, right))
    S = model.segment_length
    read = [model.read(tokens[row : row + 1, : held[row] // S * S], each) for row, each in enumerate(state.split())]
    return SegmentLoss(loss, auxiliary, batch.wanted.sum(1), correct, MemoryState.stack(read), border=True)


def _parts(
    model: SegmentReader,
    batch: _Batch,
    held: list[int],
    state: MemoryState,
    *,
    truncate: int | None,
    checkpointed: bool,
    between: Callable[[int, MemoryState], MemoryState] | None,
) -> Iterator[SegmentLoss]:
    S, rows = model.segment_length, len(held)
    segments = [-(-length // S) for length in held]

    def cut_before(index: int) -> list[int]:
        """Return the rows whose gradient stops between segment `index` and the one before it."""
        if truncate is None:
            return []
        return [row for row, n in enumerate(segments) if 0 < index < n and (n - index) % truncate == 0]

    def border_before(index: int) -> bool:
        return cut_before(index) == [row for row, n in enumerate(segments) if index < n]

    for index in range(max(segments, default=0)):
        # At a border, rows that have ended are detached too: the graph of their states may be freed by then.
        state = _detach(state, list(range(rows)) if border_before(index) else cut_before(index))
        start, end = index * S, (index + 1) * S
        loss, auxiliary, correct = _nothing(batch)
        # Full segments update the memory; a document's partial last segment is predicted but does not.
        full = [row for row, length in enumerate(held) if length >= end]
        tail = [row for row, length in enumerate(held) if start < length < end]
        for some, step in ((full, _full), (tail, _tail)):
            if not some:
                continue
            of = torch.tensor(some, device=loss.device)
            seen = slice(start, min(end, max(held[row] for row in some)))
            arguments = model, _Batch(*(x[of, seen] for x in batch)), _take(state, of)
            result = checkpoint(step, *arguments, use_reentrant=False) if checkpointed else step(*arguments)
            loss = loss + result[0].new_zeros(rows).index_copy(0, of, result[0])
            auxiliary = auxiliary + result[1].new_zeros(rows).index_copy(0, of, result[1])
            correct = correct.index_copy(0, of, result[2])
            state = _put(state, of, result[3])
        yield SegmentLoss(
            loss=loss,
            auxiliary=auxiliary,
            targets=batch.wanted[:, start:end].sum(1),
            correct=correct,
            state=state,
            border=border_before(index + 1),
        )
        if between is not None and index + 1 < max(segments):
            state = between(index, state)


def _full(model: SegmentReader, batch: _Batch, state: MemoryState) -> tuple[Tensor, Tensor, Tensor, MemoryState]:
    """Return loss, auxiliary loss and number of correct predictions, (B,) each, and the memory after one full segment."""
    if bool(batch.wanted.any()) or (model.learns_without_targets and torch.is_grad_enabled()):
        logits, after, auxiliary = model.training_segment(batch.tokens, state)
        loss, correct = _score(logits, batch)
        if not model.learns_without_targets:  # alone, a row without a target would only be read
            auxiliary = auxiliary * batch.wanted.any(1)
        return loss, auxiliary, correct, after
    return *_nothing(batch), model.read(batch.tokens, state)  # segments without targets need no logits


def _tail(model: SegmentReader, batch: _Batch, state: MemoryState) -> tuple[Tensor, Tensor, Tensor, MemoryState]:
    """As `_full`, for segments that are not full and therefore do not change the memory."""
    loss, auxiliary, correct = _nothing(batch)
    if bool(batch.wanted.any()):
        logits, _, own = model.training_segment(batch.tokens, state, batch.inside.sum(1))
        loss, correct = _score(logits, batch)
        if not model.learns_without_targets:  # the auxiliary loss is about vectors that leave a memory; here none do
            auxiliary = own * batch.wanted.any(1)
    return loss, auxiliary, correct, state


def _score(logits: Tensor, batch: _Batch) -> tuple[Tensor, Tensor]:
    """Return loss and number of correct predictions, (B,) each, of logits (B, T, V)."""
    rows, positions = batch.wanted.nonzero(as_tuple=True)
    losses, right = _scored(logits[rows, positions], batch.following[rows, positions])
    loss, correct = (x.new_zeros(len(logits)).index_add(0, rows, x) for x in (losses, right))
    return loss, correct


def _scored(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the negative log-likelihoods of `targets` (n,), in float32 or better, and whether each is the most likely
    token, for logits (n, V)."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets, reduction="none"), (logits.argmax(-1) == targets).long()


def _nothing(batch: _Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return zero loss, auxiliary loss and number of correct predictions, (B,) each."""
    rows, device = len(batch.tokens), batch.tokens.device
    zero = torch.zeros(rows, device=device)
    return zero, zero, torch.zeros(rows, dtype=torch.int64, device=device)


def _take(state: MemoryState, rows: Tensor) -> MemoryState:
    return MemoryState({name: tensor[rows] for name, tensor in state.tensors.items()})


def _put(state: MemoryState, rows: Tensor, new: MemoryState) -> MemoryState:
    """Return `state` with its `rows` replaced by `new`."""
    if len(rows) == state.rows:
        return new
    return MemoryState({name: tensor.index_copy(0, rows, new[name]) for name, tensor in state.tensors.items()})


def _detach(state: MemoryState, rows: list[int]) -> MemoryState:
    """Return `state` without gradient in `rows`."""
    if not rows:
        return state
    of = torch.tensor(rows, device=state.device)
    cut = MemoryState({name: tensor.detach() for name, tensor in _take(state, of).tensors.items()})
    return _put(state, of, cut)
