"""`Reader`: works on reading jobs. It prefills a document from its blob into a state, with checkpoints.

The record of a reading holds all of its progress: state and cursor change together or not at all. So any replica can take
the job over at any time, resumes at the last checkpoint and arrives at the same state, bit for bit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Self

import torch
from redis.exceptions import RedisError, ResponseError

from everlong_models import EverlongModelError, MemoryState, decode_state, encode_state
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.documents.token_offsets import TokenOffsets
from everlong_server.engine.documents.token_stream import token_blocks
from everlong_server.errors import Damaged, Unavailable
from everlong_server.observability.metrics import Metrics
from everlong_server.observability.tracing import Tracing
from everlong_server.pools import Pool
from everlong_server.store.documents import Claim, Documents, Fenced
from everlong_server.store.jobs import Job, Jobs, entry_of
from everlong_server.store.records import Cursor, Document, Reading
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.passages import Passages

log = logging.getLogger(__name__)

_MAX_SEGMENTS = 64
"""Maximum number of segments in one request to the engine. Fewer requests mean fewer round trips through the event loop."""
_READING = Pool("everlong-reading", max(4, os.cpu_count() or 4))
"""Threads that check and encode texts, so that answers do not wait for that."""
_MAX_ATTEMPTS = 8
_RETRY_SECONDS = 0.5
_MAX_RETRY_SECONDS = 30.0
_GIVE_BACK_SECONDS = 5.0
"""Pause before giving back a job that this replica cannot do, so that other jobs and replicas go first."""


class Reader:
    """Works on reading jobs until it is stopped. Several readers may run at the same time."""

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
    ) -> None:
        """`passages`: None to index none. `turn_seconds`: after this time a document yields to waiting ones and continues
        after them, so that short documents do not wait for long ones."""
        self._engine = engine
        self._documents = documents
        self._blobs = blobs
        self._passages = passages
        self._token_offsets = token_offsets
        self._jobs = jobs
        self._metrics = metrics
        self._tracing = tracing
        self._checkpoint_seconds = checkpoint_seconds
        self._turn_seconds = turn_seconds
        self._indexing: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Run until cancelled. Waits while Redis is unavailable."""
        try:
            while True:
                await self._next()
        finally:
            await _cancel_all(list(self._indexing))

    async def _next(self) -> None:
        try:
            job = await self._jobs.next(wait_ms=1000)
            if job is not None:
                if job.redelivered:
                    self._metrics.redeliveries.labels("readings").inc()
                await self._do(job)
        except RedisError as error:
            log.warning("redis is unavailable, reading waits: %s", type(error).__name__)
            await asyncio.sleep(_RETRY_SECONDS)
            if isinstance(error, ResponseError) and "NOGROUP" in str(error):  # Redis has lost its data
                with contextlib.suppress(RedisError):
                    await self._jobs.prepare(alone=False)

    async def _do(self, job: Job) -> None:
        """Work on a job until it ends here. It may have been started before, here or by another replica."""
        pause, by = _RETRY_SECONDS, job.claimant()
        claim: Claim | None = None
        lost: Claim | None = None
        end: Callable[[], Awaitable[None]] | None = None
        while self._engine.alive:
            try:
                if lost is not None:
                    end = await self._after_fenced(job, lost)
                    lost = None
                if end is None:
                    claim = await self._documents.claim(job.id, by)
                    over = claim is None or await self._read(job.id, claim)
                    end = partial(self._jobs.done if over else self._jobs.again, job)
                await end()
                return
            except Fenced as reason:
                log.info("reading %s stops: %s", job.id, reason)
                lost, by = claim, job.claimant()
            except RedisError as error:
                # Not counted as a try. The next one resumes at the last checkpoint.
                log.warning("redis is unavailable, reading waits: %s", type(error).__name__)
                await asyncio.sleep(_RETRY_SECONDS)
            except (OSError, Unavailable) as error:
                # The blob store is unavailable or full, this text cannot be read, or this replica lacks an encryption key that
                # another may have. The document may be readable later; other documents must not wait for it.
                log.warning("reading %s is given back: %r", job.id, error)
                await asyncio.sleep(_GIVE_BACK_SECONDS)
                end = partial(self._give_back, job, claim)
            except Exception:
                # Such as a device out of memory. The claim counts tries without progress, and ends the reading after some.
                log.exception("reading %s failed, retrying in %.1f s", job.id, pause)
                await asyncio.sleep(pause)
                pause, by = min(2 * pause, _MAX_RETRY_SECONDS), job.claimant()
        # Keep the job for this server's next start or for another replica.
        log.error("the engine has failed, reading %s waits for a restart", job.id)
        await asyncio.Event().wait()

    async def _give_back(self, job: Job, claim: Claim | None) -> None:
        """Queue the job again, for any replica, and reset its count of tries."""
        if claim is not None:
            await self._documents.untried(job.id, claim)
        await self._jobs.again(job)

    async def _after_fenced(self, job: Job, lost: Claim) -> Callable[[], Awaitable[None]] | None:
        """Return how to end the job here, if another replica has claimed its reading.

        Returns None to claim it again: the reading is over, or the write that fenced us was a late one of our own.
        """
        holder = await self._documents.holder(job.id)
        if holder is None or holder[0] == lost.token:
            return None
        self._metrics.lease_losses.labels("reading").inc()
        return partial(self._jobs.drop, job, entry_of(holder[1]))

    async def _read(self, reading_id: str, claim: Claim) -> bool:
        """Read and return whether the reading is over; False if it must continue later."""
        reading = await self._documents.reading(reading_id, with_state=True)
        if reading is None:
            return True
        try:
            if claim.attempts > _MAX_ATTEMPTS:
                raise ReadingError(
                    "too_many_attempts",
                    f"given up after {_MAX_ATTEMPTS} tries without progress; upload the document again",
                )
            with self._tracing.span(
                "read", "consumer", parent=reading.trace, everlong__document=reading.documents[-1],
                everlong__model=self._engine.model.name, everlong__attempt=claim.attempts,
            ) as span:  # fmt: skip
                cursor, over = await self._advance(reading, claim)
                span.set(everlong__tokens__read=cursor.tokens, everlong__segments=cursor.segments)
                return over
        except (ReadingError, EverlongModelError, Damaged, FileNotFoundError, UnicodeDecodeError) as error:
            if isinstance(error, FileNotFoundError) and await asyncio.to_thread(self._blobs.word) is None:
                raise  # the whole blob store is missing, not this text alone
            code = error.code if isinstance(error, ReadingError | Damaged) else "reading_failed"
            log.warning("reading %s failed: %s", reading_id, error)
            current = await self._documents.reading(reading_id)
            if current is not None:
                failure = {"message": str(error), "code": code}
                await self._documents.checkpoint(current, claim, current.cursor, None, status="failed", error=failure)
            return True

    async def _begin(self, reading: Reading) -> tuple[MemoryState, Cursor]:
        """Return the state and cursor of the last checkpoint or, without one, of the start: after the preceding documents, or the
        chat format's head."""
        model = self._engine.model
        if reading.state is not None:
            return await asyncio.to_thread(decode_state, reading.state, model.fingerprint), reading.cursor
        if reading.parent is None:
            return model.memory.initial_state(1).to("cpu"), Cursor(open=model.chat.head, position=len(model.chat.head))
        parent = await self._documents.reading(reading.parent, with_state=True)
        if parent is None or parent.status != "ready" or parent.state is None:
            why = parent.error["message"] if parent is not None and parent.error else "it does not exist"
            raise ReadingError("document_failed", f"the preceding document could not be read: {why}")
        before = parent.cursor
        cursor = Cursor(open=before.open + model.chat.separator, position=before.position + len(model.chat.separator))
        return await asyncio.to_thread(decode_state, parent.state, model.fingerprint), cursor

    def _index_done(self, index: asyncio.Task[None]) -> None:
        self._indexing.discard(index)
        if (
            not index.cancelled() and (error := index.exception()) is not None
        ):  # the next turn indexes again, or raises the error
            log.info("an index failed: %r", error)

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
            await _cancel_all([index])
            raise

    async def _advance(self, reading: Reading, claim: Claim) -> tuple[Cursor, bool]:
        """Read to the end of the last document, or until the turn is over and others wait. Return the cursor, and whether it is the
        end."""
        model = self._engine.model
        S = model.segment_length
        document: Document = await self._documents.get(reading.documents[-1])
        state, cursor = await self._begin(reading)
        start = saved = time.monotonic()
        seconds_offset, segments_per_request = cursor.seconds - start, 1

        size = document.text_offset + document.bytes
        if reading.state is None and (
            damage := await _READING.run(self._blobs.check, document.id, size, document.digest)
        ):
            raise ReadingError("document_damaged", f"the stored text is damaged: {damage}")
        offset = max(cursor.offset, document.text_offset)
        async with AsyncExitStack() as stack:
            file = stack.enter_context(await _READING.run(self._blobs.open, document.id, offset))
            index = await stack.enter_async_context(self._indexing_passages(document))
            checkpoints = await stack.enter_async_context(_Checkpoints(self._documents, self._metrics, reading, claim))
            blocks = token_blocks(file, model.tokenizer, offset)
            skip, resume_points = cursor.skip, array("q")
            # A thread encodes the next block while the device reads this one.
            next_block = asyncio.create_task(_READING.run(next, blocks, None))
            try:
                while (block := await next_block) is not None:
                    next_block = asyncio.create_task(_READING.run(next, blocks, None))
                    resume_points.extend(chain.from_iterable(block.resume_points))
                    done, skip = skip, max(0, skip - len(block.tokens))
                    while done < len(block.tokens):
                        taken = block.tokens[done : done + segments_per_request * S - len(cursor.open)]
                        tokens, full = list(cursor.open) + taken, (len(cursor.open) + len(taken)) // S * S
                        if full:
                            begin = time.perf_counter()
                            state = await self._engine.prefill(state, torch.tensor(tokens[:full]), reading.tenant)
                            segment_seconds = (time.perf_counter() - begin) * S / full
                            self._metrics.segment_seconds.observe(segment_seconds)
                            # One request takes a quarter of the time between checkpoints, the work that a crash may lose.
                            segments_per_request = max(
                                1, min(_MAX_SEGMENTS, int(self._checkpoint_seconds / 4 / segment_seconds))
                            )
                        done += len(taken)
                        self._metrics.tokens_read.inc(len(taken))
                        cursor = replace(
                            cursor, offset=block.offset, skip=done, open=tuple(tokens[full:]),
                            tokens=cursor.tokens + len(taken), position=cursor.position + len(taken),
                            segments=cursor.segments + full // S,
                            bytes=block.offset + (block.end - block.offset) * done // len(block.tokens),
                            seconds=seconds_offset + time.monotonic(),
                        )  # fmt: skip
                        if time.monotonic() - saved >= self._checkpoint_seconds:
                            await checkpoints.add(state, cursor)
                            saved = time.monotonic()
                            if saved - start >= self._turn_seconds and await self._jobs.waiting():
                                await checkpoints.written()
                                return cursor, False
                await checkpoints.written()
                await index
                await self._token_offsets.ensure(document, resume_points if offset == document.text_offset else None)
            finally:
                next_block.cancel()
                await asyncio.gather(next_block, return_exceptions=True)
        cursor = replace(cursor, offset=size, skip=0, bytes=size, seconds=seconds_offset + time.monotonic())
        await checkpoints.add(state, cursor, status="ready", state_digest=await asyncio.to_thread(state.digest))
        await checkpoints.written()
        return cursor, True


async def _cancel_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel all tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Checkpoints:
    """Writes the checkpoints of a reading one after the other, while the device continues."""

    def __init__(self, documents: Documents, metrics: Metrics, reading: Reading, claim: Claim) -> None:
        self._documents = documents
        self._metrics = metrics
        self._reading = reading
        self._claim = claim
        self._writing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel a write that is still running."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    async def add(self, state: MemoryState, cursor: Cursor, **end: object) -> None:
        """Start to write a checkpoint once the previous one is written. Raises that one's error, such as `Fenced`."""
        await self.written()
        self._writing = asyncio.create_task(self._write(state, cursor, end))

    async def written(self) -> None:
        """Wait until the last checkpoint is in Redis. Raises as `add` does."""
        if self._writing is not None:
            await self._writing

    async def _write(self, state: MemoryState, cursor: Cursor, end: dict[str, Any]) -> None:
        blob = await asyncio.to_thread(encode_state, state, self._reading.model)
        with self._metrics.checkpoint_seconds.time():
            version = await self._documents.checkpoint(
                self._reading, self._claim, cursor, blob, state_bytes=state.nbytes, **end
            )
        self._reading = replace(self._reading, version=version)


class ReadingError(Exception):
    """The document cannot be read. `code`: the reason, for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
