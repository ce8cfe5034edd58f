"""`StepGraphs`, `ReadGraphs`, `Recorded`: a step, the reading of a segment, drawing a token as one CUDA graph each, where they would be
hundreds of kernels.

A GPU is done with a small model's kernels sooner than Python launches them. What a step launches depends on nothing but how
many rows there are, and rows have fixed places (`CacheSlots`); so it is recorded once for each size of a batch, with the
addresses that it works at, and launched as a whole from then on. A step of any memory can be: it asks the device nothing
(a law of all of them, tests/models/memory_contract.py).

The sizes are powers of two. Places behind the rows are stepped as well, at length 0, which is valid whatever they hold; a row
depends on no other, and nobody looks at these.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from everlong_models.backbone.cache import Cache, CacheSlots
from everlong_models.kernels.pause import pausing
from everlong_models.memories.base import SegmentReader
from everlong_models.memories.state import MemoryState

log = logging.getLogger(__name__)

Step = Callable[[Cache, Tensor], Tensor]
T = TypeVar("T")


class Record(Protocol):
    """Of what is computed: how it is computed again, and where its result is then."""

    def __call__(self, run: Callable[[], T]) -> tuple[Callable[[], None], T]: ...


@dataclass(frozen=True, slots=True)
class _Graph:
    """A recorded step: `replay` reads the rows' `tokens` (B,) and leaves `logits` (B, V)."""

    tokens: Tensor
    logits: Tensor
    replay: Callable[[], None]


class CUDAGraphs:
    """Records what one device is told. The graphs share their memory: the result of one is wanted only until another is launched."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._anchor: torch.cuda.CUDAGraph | None = None
        """A graph of nothing that is never dropped: a pool whose graphs are all gone cannot be used again."""

    def __call__(self, run: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """See `Record`. What `run` does is not done meanwhile. Raises `RuntimeError` for what cannot be recorded."""
        if self._anchor is None:
            self._anchor, _ = self._captured(lambda: torch.zeros(1, device=self._device))
        graph, result = self._captured(run)
        return graph.replay, result

    def _captured(self, run: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile, as long as this one does what can be recorded.
        with (
            torch.cuda.device(self._device),
            torch.cuda.stream(torch.cuda.current_stream(self._device)),  # which `graph` does not go back to if it fails
            torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
        ):
            result = run()
        return graph, result


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's collector, which may find an old graph just now: to free it is not permitted while another is recorded."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class StepGraphs:
    """Stands for `step` of a memory, for the rows of one `CacheSlots` whose memory stays allocated (`keep_allocated`)."""

    def __init__(self, step: Step, record: Record) -> None:
        self._step = step
        self._record = record
        self._places: Cache | None = None
        self._graphs: dict[int, _Graph | None] = {}
        """By the number of rows, of `_places`; None: this many cannot be recorded."""

    def __call__(self, slots: CacheSlots, tokens: Tensor) -> Tensor:
        """One token a row, `tokens` (B,); the logits (B, V) after it, which the next call overwrites.

        What cannot be recorded (for want of memory, say) is said in the log once, and done as it would be without graphs.
        """
        rows, places = len(slots), slots.allocated
        if places is not self._places:  # they were moved: what is recorded works where they were
            self._graphs, self._places = {}, places
        size = min(_size(rows), places.rows)
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
            with _uncollected():
                replay, logits = self._record(lambda: self._step(places, tokens))
        except RuntimeError as error:  # also OutOfMemoryError; a device that is lost fails at its next use, too
            log.warning("a step of %d rows is not recorded as a CUDA graph: %s", places.rows, error)
            return None
        return _Graph(tokens, logits, replay)


def _size(rows: int) -> int:
    """Rows of the graph that so many take."""
    return 1 << (rows - 1).bit_length()


@dataclass(frozen=True, slots=True)
class _Kept:
    """A recorded call: `replay` reads the `inputs` and leaves the `results`."""

    inputs: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    replay: Callable[[], None]


class Recorded:
    """Stands for `run`, a function of tensors whose first axis is rows, none of which depends on another. It changes no tensor, and does
    not wait for the device."""

    def __init__(self, run: Callable[..., tuple[Tensor, ...]], record: Record, what: str) -> None:
        """`record`: of its own, or another's graphs would work where its results are, and its in theirs. `what`: its name in the log."""
        self._run = run
        self._record = record
        self._what = what
        self._kept: dict[tuple[object, ...], _Kept | None] = {}
        """By the number of rows and the options; None: this cannot be recorded."""

    def __call__(self, *inputs: Tensor, **options: int) -> tuple[Tensor, ...]:
        """As `run`. What cannot be recorded is said in the log once, and done without."""
        rows = len(inputs[0])
        key = (_size(rows), *options.items())
        if key not in self._kept:
            self._kept[key] = self._recorded(inputs, options)
        kept = self._kept[key]
        if kept is None:
            return self._run(*inputs, **options)
        for place, tensor in zip(kept.inputs, inputs, strict=True):
            place[:rows].copy_(tensor)
        kept.replay()
        return tuple(result[:rows].clone() for result in kept.results)

    def _recorded(self, inputs: tuple[Tensor, ...], options: dict[str, int]) -> _Kept | None:
        rows = len(inputs[0])
        size = _size(rows)
        try:
            # Behind the rows stands what is valid: the first one, and later what was a row.
            places = tuple(torch.cat([tensor, *[tensor[:1]] * (size - rows)]) for tensor in inputs)
            with pausing(lambda: None):  # nothing else may be launched in the middle of it
                self._run(*places, **options)  # as for `StepGraphs`
                with _uncollected():
                    replay, results = self._record(lambda: self._run(*places, **options))
        except RuntimeError as error:  # as above
            log.warning("%s of %d rows is not recorded as a CUDA graph: %s", self._what, size, error)
            return None
        return _Kept(places, results, replay)


WORK = 2 * 10**12
"""Products of a weight and a position from which a device takes longer to compute a segment than Python to launch its kernels: two
operations each, some 10 ms of an H200 (docs/lab-notes.md). So answers, which wait for a recorded segment, do not wait long."""


class ReadGraphs:
    """Stands for `read` of a `memory`: a segment of a few rows, if it is `graph_capturable`; all else is read as ever."""

    def __init__(self, memory: SegmentReader, record: Record) -> None:
        """`record`: see `Recorded`."""
        self._memory = memory
        self._names = tuple(memory.initial_state(1))
        self._most = WORK // (sum(weight.numel() for weight in memory.parameters()) * memory.segment_length)
        self._read = Recorded(self._after, record, "a segment")

    def __call__(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        """As `SegmentReader.read`."""
        whole = tokens.dim() == 2 and tokens.shape[1] == self._memory.segment_length
        if not whole or not self._memory.graph_capturable or _size(len(tokens)) > self._most:
            return self._memory.read(tokens, state)
        self._memory.check(tokens, state)
        after = self._read(tokens, *(state[name] for name in self._names))
        return MemoryState(dict(zip(self._names, after, strict=True)))

    def _after(self, tokens: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        after = self._memory.read_unchecked(tokens, MemoryState(dict(zip(self._names, state, strict=True))))
        return tuple(after[name] for name in self._names)
