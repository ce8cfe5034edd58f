"""`PrefillBatch`: the next segments of documents and of long prompts, read side by side as far as the device has room."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from everlong_models import MemoryState, ReadGraphs
from everlong_models.memories.base import SegmentReader
from everlong_server.engine.device.requests import AnswerRequest, PrefillRequest

log = logging.getLogger(__name__)

Reading = PrefillRequest | AnswerRequest


class PrefillBatch:
    """Of one memory on one device. `rows`: how many are read in one pass at most; fewer once that had no room. `graphs`: of the
    memory's reading, where it is to be recorded."""

    def __init__(
        self, memory: SegmentReader, device: torch.device, rows: int, graphs: ReadGraphs | None = None
    ) -> None:
        self._memory = memory
        self._device = device
        self._graphs = graphs
        self.rows = rows

    def prefill(self, items: Sequence[Reading]) -> Iterator[tuple[Reading, MemoryState | Exception]]:
        """The state of each with its next segment, or what was wrong with it alone, one after the other.

        Raises `AcceleratorError`, after which the device can compute nothing.
        """
        half = 0
        if len(items) > 1:
            try:
                states = self._together(items)
            except torch.AcceleratorError:
                raise
            except torch.OutOfMemoryError as error:
                half = self.rows = len(items) // 2
                log.warning("%d segments have no room side by side, %d from now on: %s", len(items), half, error)
            except Exception as error:  # whose fault it is (a damaged state, say) shows when each is read alone
                log.warning("%d segments could not be read side by side: %s", len(items), error)
            else:
                yield from zip(items, states, strict=True)
                return
        if half:  # behind the handler, which holds on to what had no room
            yield from self.prefill(items[:half])
            yield from self.prefill(items[half:])
            return
        for item in items:
            try:
                state = self.read_segments(self._next(item)[None], item.state)
            except torch.AcceleratorError:
                raise
            except Exception as error:
                yield item, error
            else:
                yield item, state

    def _together(self, items: Sequence[Reading]) -> list[MemoryState]:
        states = MemoryState.stack([item.state.to(self._device) for item in items])
        return self.read_segments(torch.stack([self._next(item) for item in items]), states).split()

    def read_segments(self, segments: Tensor, state: MemoryState) -> MemoryState:
        """The state behind the rows' `segments` (B, S), on the device."""
        read = self._graphs or self._memory.read
        return read(segments.to(self._device), state.to(self._device))

    def _next(self, item: Reading) -> Tensor:
        """The next S tokens: of a document, or of what lies before an answer, where there is more than one segment."""
        S = self._memory.segment_length
        if isinstance(item, PrefillRequest):
            return item.tokens[item.at : item.at + S]
        return torch.tensor((item.open + item.prompt[item.at : item.at + S])[:S], dtype=torch.int64)
