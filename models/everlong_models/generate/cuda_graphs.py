"""CUDA graphs: launch a decode step, a segment or a sampling call as one graph instead of hundreds of kernels.

For a small model, a GPU executes kernels faster than Python launches them. The launches of a decode step depend only on the number of
rows, and rows have fixed places (`CacheSlots`). So a step is captured once for each batch size, with the addresses that it uses, and
later launched as a whole. Every memory's step can be captured, because it never waits for the device (tests/models/memory_contract.py checks it).

Batch sizes are rounded up to powers of two. The places after the last row are computed as well, at length 0, which is valid whatever
they contain; rows are independent, and the extra results are ignored.
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
from everlong_models.kernels.yield_point import at_yield_points
from everlong_models.memories.base import SegmentReader
from everlong_models.memories.state import MemoryState

log = logging.getLogger(__name__)

Step = Callable[[Cache, Tensor], Tensor]
T = TypeVar("T")


class Capture(Protocol):
    """Captures a function: returns a function that replays it, and the result that every replay overwrites."""

    def __call__(self, run: Callable[[], T]) -> tuple[Callable[[], None], T]: ...


@dataclass(frozen=True, slots=True)
class _CapturedStep:
    """A captured step: `replay` reads `tokens` and overwrites `logits`, of the step's shapes."""

    tokens: Tensor
    logits: Tensor
    replay: Callable[[], None]


class CUDAGraphs:
    """Captures functions on one device. The graphs share memory, so a result is valid only until another graph is launched."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._anchor: torch.cuda.CUDAGraph | None = None
        """A trivial graph that keeps the memory pool alive: a pool without graphs cannot be reused."""

    def __call__(self, run: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """See `Capture`. Capturing executes none of the kernels. Raises `RuntimeError` if `run` cannot be captured."""
        if self._anchor is None:
            self._anchor, _ = self._captured(lambda: torch.zeros(1, device=self._device))
        graph, result = self._captured(run)
        return graph.replay, result

    def _captured(self, run: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device during the capture; only this thread's operations must be capturable. `stream` restores the
        # current stream if the capture fails; `graph` does not.
        with (
            torch.cuda.device(self._device),
            torch.cuda.stream(torch.cuda.current_stream(self._device)),
            torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
        ):
            result = run()
        return graph, result


@contextmanager
def _garbage_collection_off() -> Iterator[None]:
    """Turn off Python's garbage collector: it could free an old graph, which CUDA forbids during a capture."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class StepGraphs:
    """A memory's `step` or `steps`, run as CUDA graphs, for the rows of one `CacheSlots` with fixed places (`kept`)."""

    def __init__(self, step: Step, capture: Capture) -> None:
        self._step = step
        self._capture = capture
        self._places: Cache | None = None
        self._graphs: dict[tuple[int, ...], _CapturedStep | None] = {}
        """By the shape of the tokens, for the tensors of `_places`. None: a step of this size cannot be captured."""

    def __call__(self, slots: CacheSlots, tokens: Tensor) -> Tensor:
        """Append `tokens`, (B,) for `step` or (B, n) for `steps`, and return what it returns. The next call overwrites that.

        If a step cannot be captured (for lack of memory, say), logs a warning once and runs it without a graph.
        """
        rows, places = len(slots), slots.allocated
        if places is not self._places:  # the places were moved: captured graphs still use the old addresses
            self._graphs, self._places = {}, places
        size = min(_size(rows), places.rows)
        places.lengths[rows:size].zero_()
        shape = (size, *tokens.shape[1:])
        if shape not in self._graphs:
            self._graphs[shape] = self._capture_step(places.slots(0, size), shape)
        graph = self._graphs[shape]
        if graph is None:
            return self._step(slots.rows, tokens.to(places.lengths.device))
        graph.tokens[:rows].copy_(tokens)
        graph.replay()
        return graph.logits[:rows]

    def _capture_step(self, places: Cache, shape: tuple[int, ...]) -> _CapturedStep | None:
        tokens = places.lengths.new_zeros(shape)
        try:
            # Kernels and libraries initialise at their first use, which cannot be captured. Run on a copy, to leave the rows unchanged.
            scratch = Cache({name: tensor.clone() for name, tensor in places.tensors.items()}, places.lengths.clone())
            scratch.lengths.zero_()
            self._step(scratch, tokens)
            del scratch
            with _garbage_collection_off():
                replay, logits = self._capture(lambda: self._step(places, tokens))
        except RuntimeError as error:  # includes OutOfMemoryError; a lost device fails again at its next use
            log.warning(
                "cannot capture a decode step of %d rows as a CUDA graph, running it without: %s", places.rows, error
            )
            return None
        return _CapturedStep(tokens, logits, replay)


def _size(rows: int) -> int:
    """Return the batch size of the graph for this many rows: the next power of two."""
    return 1 << (rows - 1).bit_length()


@dataclass(frozen=True, slots=True)
class _CapturedCall:
    """A captured call: `replay` reads `inputs` and overwrites `results`."""

    inputs: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    replay: Callable[[], None]


class GraphedFunction:
    """A function `run`, executed as CUDA graphs.

    The first axis of all its tensors must be rows, and rows must be independent. `run` must not change its inputs, nor wait for the
    device.
    """

    def __init__(self, run: Callable[..., tuple[Tensor, ...]], capture: Capture, what: str) -> None:
        """`capture`: not shared with other graphs, which would overwrite this function's results. `what`: the name for the log."""
        self._run = run
        self._capture = capture
        self._what = what
        self._calls: dict[tuple[object, ...], _CapturedCall | None] = {}
        """By batch size and options. None: this call cannot be captured."""

    def __call__(self, *inputs: Tensor, **options: int) -> tuple[Tensor, ...]:
        """Return copies of what `run` returns. If the call cannot be captured, logs a warning once and runs it without a graph."""
        rows = len(inputs[0])
        key = (_size(rows), *options.items())
        if key not in self._calls:
            self._calls[key] = self._capture_call(inputs, options)
        call = self._calls[key]
        if call is None:
            return self._run(*inputs, **options)
        for place, tensor in zip(call.inputs, inputs, strict=True):
            place[:rows].copy_(tensor)
        call.replay()
        return tuple(result[:rows].clone() for result in call.results)

    def _capture_call(self, inputs: tuple[Tensor, ...], options: dict[str, int]) -> _CapturedCall | None:
        rows = len(inputs[0])
        size = _size(rows)
        try:
            # Fill the extra places with valid data: copies of the first row, and later whatever earlier calls left.
            places = tuple(torch.cat([tensor, *[tensor[:1]] * (size - rows)]) for tensor in inputs)
            with at_yield_points(lambda: None):  # no other work may be launched during the capture
                self._run(*places, **options)  # first use, as in `StepGraphs._capture_step`
                with _garbage_collection_off():
                    replay, results = self._capture(lambda: self._run(*places, **options))
        except RuntimeError as error:  # as in `StepGraphs._capture_step`
            log.warning("cannot capture %s of %d rows as a CUDA graph, running it without: %s", self._what, size, error)
            return None
        return _CapturedCall(places, results, replay)


MAX_CAPTURED_WORK = 2 * 10**12
"""Largest work of a segment that is captured, in products of a weight and a position (two operations each): about 10 ms on an H200
(docs/research/lab-notes.md). A larger segment takes a device longer than Python takes to launch it. The limit also bounds how long answers wait
for a captured segment."""


class ReadGraphs:
    """A memory's `read`, run as CUDA graphs for full segments of a few rows, if the memory is `graph_capturable`. Other calls run without."""

    def __init__(self, memory: SegmentReader, capture: Capture) -> None:
        """`capture`: see `GraphedFunction`."""
        self._memory = memory
        self._names = tuple(memory.initial_state(1))
        self._max_rows = MAX_CAPTURED_WORK // (
            sum(weight.numel() for weight in memory.parameters()) * memory.segment_length
        )
        self._read = GraphedFunction(self._read_tensors, capture, "a segment")

    def __call__(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        """See `SegmentReader.read`."""
        whole = tokens.dim() == 2 and tokens.shape[1] == self._memory.segment_length
        if not whole or not self._memory.graph_capturable or _size(len(tokens)) > self._max_rows:
            return self._memory.read(tokens, state)
        self._memory.check(tokens, state)
        after = self._read(tokens, *(state[name] for name in self._names))
        return MemoryState(dict(zip(self._names, after, strict=True)))

    def _read_tensors(self, tokens: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        after = self._memory.read_unchecked(tokens, MemoryState(dict(zip(self._names, state, strict=True))))
        return tuple(after[name] for name in self._names)
