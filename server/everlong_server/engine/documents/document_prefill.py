"""`DocumentPrefill`: prefills the tokens of one document into a state, and counts its progress in a cursor."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from everlong_models import MemoryState
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.documents.token_stream import TokenBlock
from everlong_server.observability.metrics import Metrics
from everlong_server.store.records import Cursor, Document
from everlong_server.store.snapshot import Snapshot

_MAX_SEGMENTS = 64
"""Maximum number of segments in one request to the engine. Fewer requests mean fewer round trips through the event loop."""


class DocumentPrefill:
    """The prefill of one document. A checkpoint stores its progress: `state`, `open`, `position` and `cursor`."""

    def __init__(
        self,
        engine: Engine,
        metrics: Metrics,
        tenant: str,
        state: MemoryState,
        start: Snapshot,
        cursor: Cursor,
        *,
        request_seconds: float,
    ) -> None:
        """`start`: where to continue; `state`: its memory. `request_seconds`: time that one request to the engine should
        take, so that little is lost with it."""
        self.state = state
        self.open = start.open
        self.position = start.position
        self.cursor = cursor
        self._engine = engine
        self._metrics = metrics
        self._tenant = tenant
        self._request_seconds = request_seconds
        self._segments_per_request = 1
        self._block = TokenBlock(0, 0, [], [])
        self._done = 0
        """Number of tokens of the block that are read."""
        self._skip = cursor.skip
        """Number of tokens that an earlier turn has read, from the first block on."""
        self._earlier_seconds = cursor.seconds
        self._started = time.monotonic()

    def start_block(self, block: TokenBlock) -> None:
        """Continue with `block`, which follows the one before."""
        self._block, self._done = block, self._skip
        self._skip = max(0, self._skip - len(block.tokens))

    @property
    def has_tokens(self) -> bool:
        """Whether the block has tokens that are not read."""
        return self._done < len(self._block.tokens)

    async def read_next(self) -> None:
        """Prefill the next segments of the block, and keep the tokens after the last full segment open."""
        S, block, cursor = self._engine.model.segment_length, self._block, self.cursor
        taken = block.tokens[self._done : self._done + self._segments_per_request * S - len(self.open)]
        tokens = [*self.open, *taken]
        full = len(tokens) // S * S
        if full:
            await self._prefill(tokens[:full])
        self.open, self.position, self._done = tuple(tokens[full:]), self.position + len(taken), self._done + len(taken)
        self._metrics.tokens_read.inc(len(taken))
        self.cursor = replace(
            cursor, offset=block.offset, skip=self._done, tokens=cursor.tokens + len(taken),
            segments=cursor.segments + full // S,
            bytes=block.offset + (block.end - block.offset) * self._done // len(block.tokens),
            seconds=self._seconds(),
        )  # fmt: skip

    async def _prefill(self, tokens: list[int]) -> None:
        """Prefill full segments, and fit the size of the next request to the time that they take."""
        start = time.perf_counter()
        self.state = await self._engine.prefill(self.state, torch.tensor(tokens), self._tenant)
        segment_seconds = (time.perf_counter() - start) * self._engine.model.segment_length / len(tokens)
        self._metrics.segment_seconds.observe(segment_seconds)
        self._segments_per_request = max(1, min(_MAX_SEGMENTS, int(self._request_seconds / segment_seconds)))

    def end(self, document: Document) -> Cursor:
        """Move the cursor to the end of the document and return it."""
        size = document.text_offset + document.bytes
        self.cursor = replace(self.cursor, offset=size, skip=0, bytes=size, seconds=self._seconds())
        return self.cursor

    def _seconds(self) -> float:
        """Return the seconds spent on the document, those of earlier turns included."""
        return self._earlier_seconds + time.monotonic() - self._started
