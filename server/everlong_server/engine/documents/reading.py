"""`Reader`: does the jobs. Reads a document from its blob into a state, checkpointing as it goes.

Everything that a reading has learnt is in its record: state and cursor change together or not at all. So whoever takes
the job over, after any kind of end, goes on at the last checkpoint and arrives at the same state, bit for bit.
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
from everlong_server.engine.documents.token_stream import pieces
from everlong_server.errors import Damaged, Unavailable
from everlong_server.observability.metrics import Metrics
from everlong_server.observability.tracing import Tracing
from everlong_server.pools import Pool
from everlong_server.store.documents import Documents
from everlong_server.store.jobs import Job, Jobs, entry_of_claimant
from everlong_server.store.readings import ReadingClaim, StaleClaim
from everlong_server.store.records import Cursor, Document, Reading
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.passages import Passages

log = logging.getLogger(__name__)

_MOST_SEGMENTS = 64
"""Handed to the engine at once, where they are read quickly: each time costs a round through the event loop."""
_READING = Pool("everlong-reading", max(4, os.cpu_count() or 4))
"""Texts are checked and encoded in threads of their own: answers wait for none of that."""
_MAX_ATTEMPTS = 8
_RETRY_SECONDS = 0.5
_LONGEST_PAUSE = 30.0
_BACK_SECONDS = 5.0
"""Before a job is given back that cannot be done here, so that others are at it in the meantime."""


class Reader:
    """Takes jobs until it is stopped. Several of them may run beside each other."""

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
        """`passages`: None if they are not wanted. `turn_seconds`: after so long a document lets others be read that wait,
        and goes on behind them: short ones don't wait for long ones."""
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
        """Until cancelled. Redis being away is waited out."""
        try:
            while True:
                await self._next()
        finally:
            await _ended(list(self._indexing))

    async def _next(self) -> None:
        try:
            job = await self._jobs.next(wait_ms=1000)
            if job is not None:
                if job.redelivered:
                    self._metrics.redeliveries.labels("readings").inc()
                await self._do(job)
        except RedisError as error:
            log.warning("redis is away, reading waits: %s", type(error).__name__)
            await asyncio.sleep(_RETRY_SECONDS)
            if isinstance(error, ResponseError) and "NOGROUP" in str(error):  # Redis has lost its data
                with contextlib.suppress(RedisError):
                    await self._jobs.prepare(alone=False)

    async def _do(self, job: Job) -> None:
        """One job, to its end; also one that was begun elsewhere or before."""
        pause, by = _RETRY_SECONDS, job.claimant()
        claim: ReadingClaim | None = None
        lost: ReadingClaim | None = None
        end: Callable[[], Awaitable[None]] | None = None
        while self._engine.alive:
            try:
                if lost is not None:
                    end = await self._left(job, lost)
                    lost = None
                if end is None:
                    claim = await self._documents.readings.claim(job.id, by)
                    over = claim is None or await self._read(job.id, claim)
                    end = partial(self._jobs.done if over else self._jobs.requeue, job)
                await end()
                return
            except StaleClaim as reason:
                log.info("reading stops: %s", reason)
                lost, by = claim, job.claimant()
            except RedisError as error:
                # Nothing is lost: the next try starts at the last checkpoint. What has failed is not this one.
                log.warning("redis is away, reading waits: %s", type(error).__name__)
                await asyncio.sleep(_RETRY_SECONDS)
            except (OSError, Unavailable) as error:
                # The blob store is away or full, or this one text cannot be read: no reason to give the document up, nor to
                # let others wait behind it. Or a key is missing that another replica may have.
                log.warning("reading %s is given back: %r", job.id, error)
                await asyncio.sleep(_BACK_SECONDS)
                end = partial(self._back, job, claim)
            except Exception:
                # A device out of memory. The tries without progress are counted with the claim, and end this.
                log.exception("reading %s broke off, trying again in %.1f s", job.id, pause)
                await asyncio.sleep(pause)
                pause, by = min(2 * pause, _LONGEST_PAUSE), job.claimant()
        # The device is gone: the job stays, for this server's next start or for another replica.
        log.error("the engine has failed, reading %s waits for a restart", job.id)
        await asyncio.Event().wait()

    async def _back(self, job: Job, claim: ReadingClaim | None) -> None:
        """Others may do the job; that it could not be done here was no try."""
        if claim is not None:
            await self._documents.readings.reset_attempts(job.id, claim)
        await self._jobs.requeue(job)

    async def _left(self, job: Job, lost: ReadingClaim) -> Callable[[], Awaitable[None]] | None:
        """How the job ends here if somebody else has claimed its reading; None: it is to be claimed again, since it is over,
        or what came between was a late write of our own."""
        holder = await self._documents.readings.holder(job.id)
        if holder is None or holder[0] == lost.token:
            return None
        self._metrics.lease_losses.labels("reading").inc()
        return partial(self._jobs.drop, job, entry_of_claimant(holder[1]))

    async def _read(self, reading_id: str, claim: ReadingClaim) -> bool:
        """Whether it is over; False if it has to go on later."""
        reading = await self._documents.readings.get(reading_id, with_state=True)
        if reading is None:
            return True
        try:
            if claim.attempts > _MAX_ATTEMPTS:
                raise ReadingError("too_many_attempts", f"given up after {_MAX_ATTEMPTS} tries without progress")
            with self._tracing.span(
                "read", "consumer", parent=reading.trace, everlong__document=reading.documents[-1],
                everlong__model=self._engine.model.name, everlong__attempt=claim.attempts,
            ) as span:  # fmt: skip
                read, over = await self._advance(reading, claim)
                span.set(everlong__tokens__read=read.tokens, everlong__segments=read.segments)
                return over
        except (ReadingError, EverlongModelError, Damaged, FileNotFoundError, UnicodeDecodeError) as error:
            if isinstance(error, FileNotFoundError) and await asyncio.to_thread(self._blobs.store_id) is None:
                raise  # not this text alone is missing
            code = error.code if isinstance(error, ReadingError | Damaged) else "reading_failed"
            log.warning("reading %s failed: %s", reading_id, error)
            current = await self._documents.readings.get(reading_id)
            if current is not None:
                failure = {"message": str(error), "code": code}
                await self._documents.readings.checkpoint(
                    current, claim, current.cursor, None, status="failed", error=failure
                )
            return True

    async def _begin(self, reading: Reading) -> tuple[MemoryState, Cursor]:
        """Where this reading stands, or starts: behind the documents before the last, or the chat format's head."""
        model = self._engine.model
        if reading.state is not None:
            return await asyncio.to_thread(decode_state, reading.state, model.fingerprint), reading.cursor
        if reading.parent is None:
            return model.memory.initial_state(1).to("cpu"), Cursor(open=model.chat.head, position=len(model.chat.head))
        parent = await self._documents.readings.get(reading.parent, with_state=True)
        if parent is None or parent.status != "ready" or parent.state is None:
            why = parent.error["message"] if parent is not None and parent.error else "it is not there"
            raise ReadingError("document_failed", f"the document before it could not be read: {why}")
        before = parent.cursor
        cursor = Cursor(open=before.open + model.chat.separator, position=before.position + len(model.chat.separator))
        return await asyncio.to_thread(decode_state, parent.state, model.fingerprint), cursor

    def _made(self, index: asyncio.Task[None]) -> None:
        self._indexing.discard(index)
        if not index.cancelled() and (error := index.exception()) is not None:  # the next turn makes it, or says so
            log.info("an index broke off: %r", error)

    @asynccontextmanager
    async def _indexed(self, document: Document) -> AsyncIterator[asyncio.Task[None]]:
        """Makes the document's passages beside the block, on a thread of their own: a task to wait for at the text's end. It goes on
        when only a turn is over, and ends with a reading that fails."""

        async def make() -> None:
            if self._passages is not None:
                await self._passages.ensure(document)

        index = asyncio.create_task(make())
        self._indexing.add(index)
        index.add_done_callback(self._made)
        try:
            yield index
        except BaseException:
            await _ended([index])
            raise

    async def _advance(self, reading: Reading, claim: ReadingClaim) -> tuple[Cursor, bool]:
        """To the end of its last document, or until its turn is over and others wait. How far; whether that is the end."""
        model = self._engine.model
        S = model.segment_length
        document: Document = await self._documents.get(reading.documents[-1])
        state, cursor = await self._begin(reading)
        start = saved = time.monotonic()
        began, at_once = cursor.seconds - start, 1

        size = document.text_offset + document.bytes
        if reading.state is None and (
            damage := await _READING.run(self._blobs.check, document.id, size, document.digest)
        ):
            raise ReadingError("document_damaged", f"the stored text is damaged: {damage}")
        offset = max(cursor.offset, document.text_offset)
        async with AsyncExitStack() as stack:
            file = stack.enter_context(await _READING.run(self._blobs.open, document.id, offset))
            index = await stack.enter_async_context(self._indexed(document))
            checkpoints = await stack.enter_async_context(_Checkpoints(self._documents, self._metrics, reading, claim))
            source = pieces(file, model.tokenizer, offset)
            skip, places = cursor.skip, array("q")
            # The next piece is encoded while the device reads this one.
            upcoming = asyncio.create_task(_READING.run(next, source, None))
            try:
                while (piece := await upcoming) is not None:
                    upcoming = asyncio.create_task(_READING.run(next, source, None))
                    places.extend(chain.from_iterable(piece.places))
                    done, skip = skip, max(0, skip - len(piece.tokens))
                    while done < len(piece.tokens):
                        taken = piece.tokens[done : done + at_once * S - len(cursor.open)]
                        tokens, full = list(cursor.open) + taken, (len(cursor.open) + len(taken)) // S * S
                        if full:
                            begin = time.perf_counter()
                            state = await self._engine.read(state, torch.tensor(tokens[:full]), reading.tenant)
                            each = (time.perf_counter() - begin) * S / full
                            self._metrics.segment_seconds.observe(each)
                            # Of what may be lost and read again, a quarter.
                            at_once = max(1, min(_MOST_SEGMENTS, int(self._checkpoint_seconds / 4 / each)))
                        done += len(taken)
                        self._metrics.tokens_read.inc(len(taken))
                        cursor = replace(
                            cursor, offset=piece.offset, skip=done, open=tuple(tokens[full:]),
                            tokens=cursor.tokens + len(taken), position=cursor.position + len(taken),
                            segments=cursor.segments + full // S,
                            bytes=piece.offset + (piece.end - piece.offset) * done // len(piece.tokens),
                            seconds=began + time.monotonic(),
                        )  # fmt: skip
                        if time.monotonic() - saved >= self._checkpoint_seconds:
                            await checkpoints.add(state, cursor)
                            saved = time.monotonic()
                            if saved - start >= self._turn_seconds and await self._jobs.has_waiting():
                                await checkpoints.written()
                                return cursor, False
                await checkpoints.written()
                await index
                await self._token_offsets.keep(document, places if offset == document.text_offset else None)
            finally:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)
        cursor = replace(cursor, offset=size, skip=0, bytes=size, seconds=began + time.monotonic())
        await checkpoints.add(state, cursor, status="ready", state_digest=await asyncio.to_thread(state.digest))
        await checkpoints.written()
        return cursor, True


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancels them, and waits for that."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Checkpoints:
    """Writes where a reading stands, one after the other, while the device goes on."""

    def __init__(self, documents: Documents, metrics: Metrics, reading: Reading, claim: ReadingClaim) -> None:
        self._documents = documents
        self._metrics = metrics
        self._reading = reading
        self._claim = claim
        self._writing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """What is not written by then is not wanted."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    async def add(self, state: MemoryState, cursor: Cursor, **end: object) -> None:
        """Begins to write, once the one before is written. Raises what that has failed with, as `StaleClaim`."""
        await self.written()
        self._writing = asyncio.create_task(self._write(state, cursor, end))

    async def written(self) -> None:
        """All that was added is in Redis. Raises as `add` does."""
        if self._writing is not None:
            await self._writing

    async def _write(self, state: MemoryState, cursor: Cursor, end: dict[str, Any]) -> None:
        blob = await asyncio.to_thread(encode_state, state, self._reading.model)
        with self._metrics.checkpoint_seconds.time():
            version = await self._documents.readings.checkpoint(
                self._reading, self._claim, cursor, blob, state_bytes=state.nbytes, **end
            )
        self._reading = replace(self._reading, version=version)


class ReadingError(Exception):
    """A document that cannot be read; `code` for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
