"""`PrefillBatch`: prefills the next segments of documents and long prompts, in as large a batch as fits the device."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from everlong_models import MemoryState, ReadGraphs
from everlong_models.memories.base import SegmentReader
from everlong_server.engine.device.requests import AnswerRequest, PrefillRequest

log = logging.getLogger(__name__)

Prefillable = PrefillRequest | AnswerRequest


class PrefillBatch:
    """Prefills segments with one memory on one device."""

    def __init__(
        self, memory: SegmentReader, device: torch.device, rows: int, graphs: ReadGraphs | None = None
    ) -> None:
        """`rows`: the largest batch; it shrinks when a batch runs out of memory. `graphs`: CUDA graphs of the memory's prefill."""
        self._memory = memory
        self._device = device
        self._graphs = graphs
        self.rows = rows

    def prefill(self, requests: Sequence[Prefillable]) -> Iterator[tuple[Prefillable, MemoryState | Exception]]:
        """Yield each request with the state after its next segment, or with the error of that request alone.

        Raises `AcceleratorError`, after which the device can compute nothing.
        """
        half = 0
        if len(requests) > 1:
            try:
                states = self._prefill_together(requests)
            except torch.AcceleratorError:
                raise
            except torch.OutOfMemoryError as error:
                half = self.rows = len(requests) // 2
                log.warning(
                    "out of memory prefilling %d segments in one batch; the limit is now %d: %s",
                    len(requests), half, error,
                )  # fmt: skip
            except Exception as error:  # one row's fault, such as a damaged state: prefill each alone to find it
                log.warning(
                    "prefilling a batch of %d segments failed; prefilling each segment separately: %s",
                    len(requests),
                    error,
                )
            else:
                yield from zip(requests, states, strict=True)
                return
        if half:  # outside the handler, which would keep the failed batch's tensors alive
            yield from self.prefill(requests[:half])
            yield from self.prefill(requests[half:])
            return
        for request in requests:
            try:
                state = self.read_segments(self._next_segment(request)[None], request.state)
            except torch.AcceleratorError:
                raise
            except Exception as error:
                yield request, error
            else:
                yield request, state

    def _prefill_together(self, requests: Sequence[Prefillable]) -> list[MemoryState]:
        states = MemoryState.stack([request.state.to(self._device) for request in requests])
        return self.read_segments(torch.stack([self._next_segment(request) for request in requests]), states).split()

    def read_segments(self, segments: Tensor, state: MemoryState) -> MemoryState:
        """Return the state after `segments` (B, S), a segment for each row, on the device."""
        read = self._graphs or self._memory.read
        return read(segments.to(self._device), state.to(self._device))

    def _next_segment(self, request: Prefillable) -> Tensor:
        """Return the request's next S tokens (S,): of the document, or of the open segment and a prompt that exceeds it."""
        S = self._memory.segment_length
        if isinstance(request, PrefillRequest):
            return request.tokens[request.tokens_read : request.tokens_read + S]
        prompt = request.prompt[request.prompt_read : request.prompt_read + S]
        return torch.tensor((request.open + prompt)[:S], dtype=torch.int64)
