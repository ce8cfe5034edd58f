"""`Reader`: works on reading jobs. It prefills a document from its blob into a state, with checkpoints.

The record of a reading holds all of its progress: state and cursor change together or not at all. So any replica can take
the job over at any time, resumes at the last checkpoint and arrives at the same state: bit for bit where segments are prefilled
one by one, as on a CPU. In a batch, as on a GPU, the last bits can depend on the other documents.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from itertools import chain
from typing import Self

from redis.exceptions import RedisError

from everlong_models import EverlongModelError
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.documents.checkpoints import Checkpoints
from everlong_server.engine.documents.document_prefill import DocumentPrefill
from everlong_server.engine.documents.token_offsets import TokenOffsets
from everlong_server.engine.documents.token_stream import TokenBlock, token_blocks
from everlong_server.engine.jobs import CannotDoHere, JobWorker
from everlong_server.engine.snapshots import decode_snapshot
from everlong_server.errors import Damaged, NotFound, Unavailable
from everlong_server.observability.metrics import Metrics
from everlong_server.observability.tracing import Tracing
from everlong_server.pools import Pool
from everlong_server.store.documents import Documents
from everlong_server.store.jobs import Claim, Jobs
from everlong_server.store.records import Cursor, Document, Reading
from everlong_server.store.search.passages import Passages
from everlong_server.store.snapshot import Snapshot
from everlong_server.store.texts.blobs import Blobs
from everlong_server.tasks import cancel

log = logging.getLogger(__name__)

_TEXT_THREADS = Pool("everlong-reading", max(4, os.cpu_count() or 4))
"""Threads that check and encode texts, so that answers do not wait for that."""

_COUNT_SECONDS = 2.0
"""Time to note that work has ended, so that a server can stop while Redis is unavailable."""


class ReadingError(Exception):
    """The document cannot be read. `code`: the reason, for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Reader(JobWorker):
    """Works on reading jobs, up to `max_jobs` at the same time, until it is cancelled.

    A document may kill the process, for example by taking all of its memory. Redis counts how often the work on a reading
    began and did not end (`Claim.starts`), and the reading fails when that is `max_deaths`. Readings with a count are
    suspects: they are worked on one after the other, so that one does not add to the counts of the others. A suspect writes a
    checkpoint as soon as its index exists and it has read anything, which clears it.
    """

    noun = "reading"
    queue = "readings"
    max_tries = 8
    max_deaths = 3
    remedy = "upload the document again"

    def __init__(
        self,
        engine: Engine,
        documents: Documents,
        blobs: Blobs,
        passages: Passages | None,
        token_offsets: TokenOffsets,
        jobs: Jobs,
        metrics: Metrics,
        tracing: Tracing,
        checkpoint_seconds: float,
        turn_seconds: float,
        max_jobs: int = 1,
    ) -> None:
        """`passages`: None to index none. `turn_seconds`: after this time a document yields to waiting ones and continues
        after them, so that short documents do not wait for long ones."""
        super().__init__(engine, jobs, metrics, max_jobs)
        self._suspects = asyncio.Lock()
        self._documents = documents
        self._blobs = blobs
        self._passages = passages
        self._token_offsets = token_offsets
        self._tracing = tracing
        self._checkpoint_seconds = checkpoint_seconds
        self._turn_seconds = turn_seconds
        self._indexing: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Take jobs and work on them until cancelled."""
        try:
            await super().run()
        finally:
            await cancel(*self._indexing)

    async def claim(self, id: str, by: str) -> Claim | None:
        """Claim the reading. Returns None if it has ended."""
        return await self._documents.readings.claim(id, by)

    async def reset_tries(self, id: str, claim: Claim) -> None:
        """Set the reading's count of tries back to zero."""
        await self._documents.readings.set_counters(id, claim, attempts=0)

    async def holder(self, id: str, claim: Claim) -> str | None:
        """Return the claimant that has taken the reading over.

        None if the reading is over, or if a late write of `claim` itself has changed the reading.
        """
        return await self._documents.readings.holder(id, claim)

    async def fail(self, id: str, claim: Claim, code: str, message: str) -> None:
        """Store that the document cannot be read."""
        log.warning("reading %s failed: %s", id, message)
        current = await self._documents.readings.get(id)
        if current is not None:
            failure = {"message": message, "code": code}
            await self._documents.readings.checkpoint(
                current, claim, current.cursor, current.snapshot, status="failed", error=failure
            )

    async def perform(self, id: str, claim: Claim) -> bool:
        """Read and return whether the reading is over; False if its turn is."""
        if claim.starts >= self.max_deaths:
            message = f"the server's process died {claim.starts} times in a row while it read this document"
            await self.fail(id, claim, "reading_killed", message)
            return True
        try:
            async with AsyncExitStack() as suspect_lock:
                if claim.starts:
                    await suspect_lock.enter_async_context(self._suspects)
                async with self._counted(id, claim):
                    return await self._read(id, claim, suspect_lock)
        except (OSError, Unavailable) as error:
            # The blob store is unavailable or full, this text cannot be read, or this replica lacks an encryption key that
            # another may have. The document may be readable later; other documents must not wait for it.
            raise CannotDoHere(repr(error)) from error

    @asynccontextmanager
    async def _counted(self, id: str, claim: Claim) -> AsyncIterator[None]:
        """Count that the work on the reading begins. Takes this back if it ends, in whatever way. A stop of the server is no
        attempt, either."""
        counters = self._documents.readings.set_counters
        await counters(id, claim, starts=claim.starts + 1)
        ended = {"starts": 0}
        try:
            yield
        except asyncio.CancelledError:
            ended["attempts"] = 0
            raise
        finally:
            with suppress(RedisError, TimeoutError):
                async with asyncio.timeout(_COUNT_SECONDS):
                    await counters(id, claim, **ended)

    async def _read(self, id: str, claim: Claim, suspect_lock: AsyncExitStack) -> bool:
        """Read, and fail the reading if its document cannot be read. `suspect_lock`: holds `_suspects` if the reading is a suspect, until its first checkpoint."""
        reading = await self._documents.readings.get(id, with_state=True)
        if reading is None:
            return True
        try:
            with self._tracing.span(
                "read", "consumer", parent=reading.trace, everlong__document=reading.documents[-1],
                everlong__model=self._engine.model.name, everlong__attempt=claim.attempts,
            ) as span:  # fmt: skip
                cursor, over = await self._advance(reading, claim, suspect_lock)
                span.set(everlong__tokens__read=cursor.tokens, everlong__segments=cursor.segments)
                return over
        except NotFound:  # the document was deleted meanwhile, and its readings with it
            return True
        except (ReadingError, EverlongModelError, Damaged, FileNotFoundError, UnicodeDecodeError) as error:
            if isinstance(error, FileNotFoundError) and await asyncio.to_thread(self._blobs.store_id) is None:
                raise  # the whole blob store is missing, not only this text
            code = error.code if isinstance(error, ReadingError | Damaged) else "reading_failed"
            await self.fail(id, claim, code, str(error))
            return True

    async def _advance(self, reading: Reading, claim: Claim, suspect_lock: AsyncExitStack) -> tuple[Cursor, bool]:
        """Read to the end of the last document, or until the turn is over and others wait.

        Returns the cursor, and whether it is the end.
        """
        document: Document = await self._documents.get(reading.documents[-1])
        prefill = await self._begin(reading)
        started = time.monotonic()
        if reading.snapshot.state is None:
            await self._check_text(document)
        offset = max(reading.cursor.offset, document.text_offset)
        resume_points = array("q")
        async with AsyncExitStack() as stack:
            file = stack.enter_context(await _TEXT_THREADS.run(self._blobs.open, document.id, offset))
            index = await stack.enter_async_context(self._indexing_passages(document))
            checkpoints = await stack.enter_async_context(Checkpoints(self._documents, self._metrics, reading, claim))
            blocks = token_blocks(file, self._engine.model.tokenizer, offset)
            encoded = await stack.enter_async_context(_Prefetch(blocks))
            due = self._checkpoint_seconds
            if claim.starts:
                await index
                due = 0.0
            while (block := await encoded.next()) is not None:
                resume_points.extend(chain.from_iterable(block.resume_points))
                prefill.start_block(block)
                while prefill.has_tokens:
                    await prefill.read_next()
                    if checkpoints.age >= due:
                        await checkpoints.add(prefill)
                        if claim.starts:
                            await checkpoints.written()
                            await suspect_lock.aclose()  # it is no suspect any more
                        due = self._checkpoint_seconds
                        if await self._turn_is_over(started):
                            await checkpoints.written()
                            return prefill.cursor, False
            await checkpoints.written()
            await index
            await self._token_offsets.ensure(document, resume_points if offset == document.text_offset else None)
            cursor = prefill.end(document)
            await checkpoints.add(prefill, ready=True)
            await checkpoints.written()
        return cursor, True

    async def _check_text(self, document: Document) -> None:
        """Raise `ReadingError` if the stored text is not the one that was uploaded."""
        size = document.text_offset + document.bytes
        if damage := await _TEXT_THREADS.run(self._blobs.check, document.id, size, document.digest):
            raise ReadingError("document_damaged", f"the stored text is damaged: {damage}")

    async def _turn_is_over(self, started: float) -> bool:
        """Return whether the reading has used its turn and other jobs wait."""
        return time.monotonic() - started >= self._turn_seconds and await self._jobs.has_waiting()

    async def _begin(self, reading: Reading) -> DocumentPrefill:
        """Return the prefill of the reading's last document, at its last checkpoint or its start."""
        start = await self._start(reading)
        state = await asyncio.to_thread(decode_snapshot, start, self._engine.model)
        return DocumentPrefill(
            self._engine, self._metrics, reading.tenant, state, start, reading.cursor,
            request_seconds=self._checkpoint_seconds / 4,
        )  # fmt: skip

    async def _start(self, reading: Reading) -> Snapshot:
        """Return the snapshot of the last checkpoint or, without one, of the start: after the preceding documents, or the chat
        format's head."""
        chat = self._engine.model.chat
        if reading.snapshot.state is not None:
            return reading.snapshot
        if reading.parent is None:
            return Snapshot(open=chat.head, position=len(chat.head))
        parent = await self._documents.readings.get(reading.parent, with_state=True)
        if parent is None or parent.status != "ready" or parent.snapshot.state is None:
            why = parent.error["message"] if parent is not None and parent.error else "it does not exist"
            raise ReadingError("document_failed", f"the preceding document could not be read: {why}")
        before, separator = parent.snapshot, chat.separator
        return replace(before, open=before.open + separator, position=before.position + len(separator))

    def _index_done(self, index: asyncio.Task[None]) -> None:
        self._indexing.discard(index)
        if not index.cancelled() and (error := index.exception()) is not None:
            # The next turn indexes again, or raises the error.
            log.info("indexing a document failed: %r", error)

    @asynccontextmanager
    async def _indexing_passages(self, document: Document) -> AsyncIterator[asyncio.Task[None]]:
        """Index the document's passages during the block, on another thread. Yields the task, to await at the end of the text.

        The task continues after the block if only the reading's turn is over, and is cancelled if the reading fails.
        """

        async def index_passages() -> None:
            if self._passages is not None:
                await self._passages.ensure(document)

        index = asyncio.create_task(index_passages())
        self._indexing.add(index)
        index.add_done_callback(self._index_done)
        try:
            yield index
        except BaseException:
            await cancel(index)
            raise


class _Prefetch:
    """Encodes the next block of tokens on a thread while the device reads the current one."""

    def __init__(self, blocks: Iterator[TokenBlock]) -> None:
        self._blocks = blocks
        self._next: asyncio.Task[TokenBlock | None] = asyncio.create_task(_TEXT_THREADS.run(next, blocks, None))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel(self._next)

    async def next(self) -> TokenBlock | None:
        """Return the next block, or None at the end of the text."""
        block = await self._next
        if block is not None:
            self._next = asyncio.create_task(_TEXT_THREADS.run(next, self._blocks, None))
        return block
