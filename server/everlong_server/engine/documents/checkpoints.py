"""`Checkpoints`: writes the checkpoints of a reading to Redis."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Self

from everlong_models import MemoryState
from everlong_server.engine.documents.document_prefill import DocumentPrefill
from everlong_server.engine.snapshots import encode_snapshot
from everlong_server.observability.metrics import Metrics
from everlong_server.store.documents import Documents
from everlong_server.store.jobs import Claim
from everlong_server.store.records import Cursor, Reading
from everlong_server.tasks import cancel


class Checkpoints:
    """Writes the checkpoints of a reading one after the other, while the device continues."""

    def __init__(self, documents: Documents, metrics: Metrics, reading: Reading, claim: Claim) -> None:
        self._documents = documents
        self._metrics = metrics
        self._reading = reading
        self._claim = claim
        self._writing: asyncio.Task[None] | None = None
        self._last = time.monotonic()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel a write that is still running."""
        if self._writing is not None:
            await cancel(self._writing)

    async def add(self, prefill: DocumentPrefill, *, ready: bool = False) -> None:
        """Start to write a checkpoint once the previous one is written. Raises that one's error, such as `StaleClaim`.

        `ready`: the document is read to its end.
        """
        await self.written()
        self._writing = asyncio.create_task(
            self._write(prefill.state, prefill.open, prefill.position, prefill.cursor, ready)
        )
        self._last = time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since the last checkpoint was added, or since the reading started here."""
        return time.monotonic() - self._last

    async def written(self) -> None:
        """Wait until the last checkpoint is in Redis. Raises as `add` does."""
        if self._writing is not None:
            await self._writing

    async def _write(
        self, state: MemoryState, open: tuple[int, ...], position: int, cursor: Cursor, ready: bool
    ) -> None:
        snapshot = await encode_snapshot(state, self._reading.model, open, position, digest=ready)
        with self._metrics.checkpoint_seconds.time():
            version = await self._documents.readings.checkpoint(
                self._reading, self._claim, cursor, snapshot, status="ready" if ready else None
            )
        self._reading = replace(self._reading, version=version)
