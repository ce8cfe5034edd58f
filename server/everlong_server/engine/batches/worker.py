"""`BatchWorker`: answers batches. If a replica dies while it answers one, another replica continues after the stored results."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import Any, Literal

from redis.exceptions import RedisError

from everlong_server.engine.batches.input_file import Limits, check
from everlong_server.engine.batches.output_files import write_output_files
from everlong_server.engine.batches.run import THREADS, Ask, BatchRun
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.device.priority import background_priority
from everlong_server.engine.jobs import CannotDoHere, JobWorker, Stopping
from everlong_server.errors import NotFound, Unavailable
from everlong_server.observability.metrics import Metrics
from everlong_server.observability.tracing import Tracing
from everlong_server.store.backup.running import is_running
from everlong_server.store.batches.batches import Batches, stale_claim
from everlong_server.store.batches.files import BatchFiles
from everlong_server.store.batches.records import Batch, BatchError, Result, encoded_errors
from everlong_server.store.jobs import Claim, Jobs
from everlong_server.store.records import now
from everlong_server.store.redis.connection import Client
from everlong_server.store.texts.blobs import Blobs
from everlong_server.tasks import cancel

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
"""Interval at which a running batch checks whether it was cancelled, has expired or was taken over."""
_JOBS = 4
"""Batches worked on at once, so that one that waits for a quota does not hold up others."""
_UNANSWERED = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "This request was not executed, because the batch was cancelled."),
    "failed": ("batch_failed", "This request was not executed, because the batch failed."),
}
"""The errors of requests that a batch has not answered when it ends."""
_End = Literal["completed", "expired", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """`limits`: of input files. `lines_at_once`: requests of one batch that are answered at once. `turn_seconds`: time after which
    a batch yields to others that wait."""

    limits: Limits
    lines_at_once: int
    turn_seconds: float


class BatchWorker(JobWorker):
    """Works on batches until it is cancelled. `store`, `files`: those of all tenants. `ask`: answers one request."""

    noun = "batch"
    queue = "batches"
    max_tries = 5
    remedy = "create the batch again"

    def __init__(
        self,
        engine: Engine,
        redis: Client,
        store: Batches,
        files: BatchFiles,
        blobs: Blobs,
        jobs: Jobs,
        metrics: Metrics,
        tracing: Tracing,
        settings: BatchSettings,
        ask: Ask,
    ) -> None:
        super().__init__(engine, jobs, metrics, _JOBS)
        self._redis = redis
        self._store = store
        self._files = files
        self._blobs = blobs
        self._tracing = tracing
        self._settings = settings
        self._ask = ask

    @property
    def accepting(self) -> bool:
        """Whether to take further jobs: not while the server is shutting down."""
        return not self._engine.draining

    async def claim(self, id: str, by: str) -> Claim | None:
        """Claim the batch; None if it is over."""
        claim = await self._store.claim(id, by)
        if claim is None:  # the last worker may have been killed before it did this
            await self._delete_parts(id)
        return claim

    async def holder(self, id: str, claim: Claim) -> str | None:
        """Return the claimant that has taken the batch over; None if it is over, or nobody has."""
        return await self._store.holder(id, claim)

    async def reset_tries(self, id: str, claim: Claim) -> None:
        """Set the batch's count of tries back to zero. Raises `StaleClaim`."""
        await self._store.write(id, claim, {"attempts": 0})

    async def fail(self, id: str, claim: Claim, code: str, message: str) -> None:
        """End the batch as failed, with the results that it has."""
        log.warning("batch %s failed: %s", id, message)
        with contextlib.suppress(NotFound):  # it has expired
            await self._end(await self._store.get(id), claim, "failed", (BatchError(code, message),))

    async def perform(self, id: str, claim: Claim) -> bool:
        """Work on the batch and return whether it is over; False if its turn is."""
        try:
            batch = await self._store.get(id)
            with (
                background_priority(),
                self._tracing.span("batch", "consumer", parent=batch.trace, everlong__batch=batch.id),
            ):
                return await self._work_on(batch, claim)
        except NotFound:
            return True
        except FileNotFoundError:
            if await self._files.exists(batch.input_file):
                raise  # counts as a try: the content may be gone for good
            await self.fail(id, claim, "file_not_found", f"the input file {batch.input_file!r} was deleted")
            return True
        except (OSError, Unavailable) as error:
            # The blob store is unavailable or full, or this replica lacks an encryption key that another may have.
            raise CannotDoHere(repr(error)) from error

    async def _work_on(self, batch: Batch, claim: Claim) -> bool:
        end = self._over(batch)
        if end is None and batch.status == "validating":
            errors = await self._check(batch, claim)
            if errors:
                await self._end(batch, claim, "failed", errors)
                return True
            batch = await self._store.get(batch.id)
            end = self._over(batch)
        if end is None and batch.status == "in_progress":
            end = await self._answer(batch, claim)
            if end is None:
                return False
        await self._end(batch, claim, end or "completed")
        return True

    @staticmethod
    def _over(batch: Batch) -> _End | None:
        """Return how the batch ends, if its requests may not be answered any more."""
        if batch.status == "cancelling":
            return "cancelled"
        return "expired" if now() >= batch.expires_at and batch.status != "finalizing" else None

    async def _check(self, batch: Batch, claim: Claim) -> tuple[BatchError, ...]:
        """Check the input file, and begin the batch if nothing is wrong with it. Returns what is wrong."""

        def read() -> tuple[int, list[BatchError]]:
            with self._blobs.open(batch.input_file) as file:
                return check(file, batch.endpoint, self._settings.limits)

        total, errors = await THREADS.run(read)
        if not errors:
            begun = {"status": "in_progress", "in_progress_at": now(), "total": total}
            await self._store.write(batch.id, claim, begun, unless_cancelling=True)
        return tuple(errors)

    async def _answer(self, batch: Batch, claim: Claim) -> _End | None:
        """Answer requests, and return how the batch ends; None if only its turn is over."""
        run = self._run(batch, claim)
        answering = asyncio.create_task(run.answer_lines())
        ending = asyncio.create_task(self._until_over(batch, claim))
        try:
            await asyncio.wait((answering, ending), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                return await ending
            over = await answering
        finally:
            await cancel(answering, ending)
        if over:
            finalizing = {"status": "finalizing", "finalizing_at": now()}
            status = await self._store.write(batch.id, claim, finalizing, unless_cancelling=True)
            return "cancelled" if status == "cancelling" else "completed"
        await self.reset_tries(batch.id, claim)
        await asyncio.sleep(run.pause)
        return None

    async def _until_over(self, batch: Batch, claim: Claim) -> _End:
        """Return once the batch is cancelled or has expired. Raises `StaleClaim`, and `Stopping` when the server shuts down."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            if self._engine.draining:
                raise Stopping("the server is shutting down")
            if now() >= batch.expires_at:
                return "expired"
            with contextlib.suppress(RedisError):  # Redis is unavailable, so nobody can have cancelled it
                if await self._store.write(batch.id, claim) == "cancelling":
                    return "cancelled"

    def _run(self, batch: Batch, claim: Claim) -> BatchRun:
        async def turn_is_over(seconds: float) -> bool:
            return seconds >= self._settings.turn_seconds and await self._jobs.has_waiting()

        def count(result: Result) -> None:
            self._metrics.batch_requests.labels("failed" if result.failed else "completed").inc()

        return BatchRun(
            batch, claim, self._store, self._blobs, self._ask, count, turn_is_over, self._settings.lines_at_once
        )

    async def _end(self, batch: Batch, claim: Claim, end: _End, errors: tuple[BatchError, ...] = ()) -> None:
        """Write the output files and end the batch."""
        batch, unanswered = await self._store.get(batch.id), 0
        if end != "completed" and batch.total:  # otherwise its input was not checked, or is not valid
            run = self._run(batch, claim)
            unanswered, batch = await run.end_lines(*_UNANSWERED[end]), run.batch
        failed = batch.failed + unanswered
        output, error = await THREADS.run(write_output_files, batch, self._blobs, failed)
        outputs = [file for file in (output, error) if file is not None]
        files = self._files.of(batch.tenant)
        fields: dict[str, Any] = {"status": end, f"{end}_at": now(), "failed": failed}
        fields |= {} if output is None else {"output_file": output.id}
        fields |= {} if error is None else {"error_file": error.id}
        fields |= {"errors": encoded_errors(errors)} if errors else {}
        for file in outputs:
            await files.reserve(file, limited=False)
        if not await self._store.of(batch.tenant).end(batch.id, claim, fields, files, outputs):
            for file in outputs:
                await files.release(file.id)
                await self._blobs.delete(file.id)
            raise stale_claim(batch.id)
        await self._delete_parts(batch.id)

    async def _delete_parts(self, batch_id: str) -> None:
        if not await is_running(self._redis):  # a backup may still copy them; a later sweep deletes them
            await self._blobs.delete_all(f"{batch_id}.*")
