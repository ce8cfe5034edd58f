"""`StepGraphs`: a memory's step as one CUDA graph, where it would be hundreds of kernels.

A GPU is done with a small model's kernels sooner than Python launches them. What a step launches depends on nothing but how
many rows there are, and rows have fixed places (`Slots`); so it is recorded once for each size of a batch, with the
addresses that it works at, and launched as a whole from then on. A step of any memory can be: it asks the device nothing
(a law of all of them, tests/models/laws.py).

The sizes are powers of two. Places behind the rows are stepped as well, at length 0, which is valid whatever they hold; a row
depends on no other, and nobody looks at these.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from everlong_models.cache import Cache, Slots

log = logging.getLogger(__name__)

Step = Callable[[Cache, Tensor], Tensor]
Record = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
"""Of what is computed: how it is computed again, and where its result is then."""


@dataclass(frozen=True, slots=True)
class _Graph:
    """A recorded step: `replay` reads the rows' `tokens` (B,) and leaves `logits` (B, V)."""

    tokens: Tensor
    logits: Tensor
    replay: Callable[[], None]


class CUDAGraphs:
    """Records what one device is told; the graphs share their memory, since only the newest one's result is wanted."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._anchor: torch.cuda.CUDAGraph | None = None
        """A graph of nothing that is never dropped: a pool whose graphs are all gone cannot be used again."""

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """See `Record`. What `run` does is not done meanwhile. Raises `RuntimeError` for what cannot be recorded."""
        if self._anchor is None:
            self._anchor, _ = self._captured(lambda: torch.zeros(1, device=self._device))
        graph, result = self._captured(run)
        return graph.replay, result

    def _captured(self, run: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile, as long as this one does what can be recorded.
        with (
            torch.cuda.device(self._device),
            torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
        ):
            result = run()
        return graph, result


class StepGraphs:
    """Stands for `step` of a memory, for the rows of one `Slots` whose places stay (`kept`)."""

    def __init__(self, step: Step, record: Record) -> None:
        self._step = step
        self._record = record
        self._places: Cache | None = None
        self._graphs: dict[int, _Graph | None] = {}
        """By the number of rows, of `_places`; None: this many cannot be recorded."""

    def __call__(self, slots: Slots, tokens: Tensor) -> Tensor:
        """One token a row, `tokens` (B,); the logits (B, V) after it, which the next call overwrites.

        What cannot be recorded (for want of memory, say) is said in the log once, and done as it would be without graphs.
        """
        rows, places = len(slots), slots.places
        if places is not self._places:  # they were moved: what is recorded works where they were
            self._graphs, self._places = {}, places
        size = min(1 << (rows - 1).bit_length(), places.rows)
        places.lengths[rows:size].zero_()
        if size not in self._graphs:
            self._graphs[size] = self._recorded(places.slots(0, size))
        graph = self._graphs[size]
        if graph is None:
            return self._step(slots.rows, tokens.to(places.lengths.device))
        graph.tokens[:rows].copy_(tokens)
        graph.replay()
        return graph.logits[:rows]

    def _recorded(self, places: Cache) -> _Graph | None:
        tokens = torch.zeros_like(places.lengths)
        try:
            # What kernels and libraries do at their first use cannot be recorded; a copy, so that nothing happens to the rows.
            scratch = Cache({name: tensor.clone() for name, tensor in places.tensors.items()}, places.lengths.clone())
            scratch.lengths.zero_()
            self._step(scratch, tokens)
            del scratch
            replay, logits = self._record(lambda: self._step(places, tokens))
        except RuntimeError as error:  # also OutOfMemoryError; a device that is lost fails at its next use, too
            log.warning("a step of %d rows is not recorded as a CUDA graph: %s", places.rows, error)
            return None
        return _Graph(tokens, logits, replay)
