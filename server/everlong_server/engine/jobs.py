"""`JobWorker`: the one loop that works on jobs of every kind: readings, background responses and batches."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import ClassVar

from redis.exceptions import RedisError, ResponseError

from everlong_server.engine.device.engine import Engine
from everlong_server.observability.metrics import Metrics
from everlong_server.store.jobs import Claim, Job, Jobs, StaleClaim, entry_of_claimant

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5
_MAX_RETRY_SECONDS = 30.0
_GIVE_BACK_SECONDS = 5.0
"""Pause before giving back a job that this replica cannot do, so that other jobs and replicas go first."""


Ending = Callable[[Job, Claim | None], Awaitable[bool]]
"""Ends the work on a job here. Returns False if the job must be claimed again."""


class CannotDoHere(Exception):
    """This replica cannot do the job now, but another or a later one may. Give the job back; it was no try."""


class Stopping(Exception):
    """This server is stopping. The job stays its own, for its next start or for a replica that finds it dead."""


class JobWorker(ABC):
    """Takes jobs from a queue until it is cancelled, and works on up to `max_jobs` of them at once.

    A job is claimed with a fencing token and performed until it is over. Meanwhile the heartbeat of this replica (`Jobs.heartbeat`)
    keeps other replicas from taking it. What happens on the way:

    - Redis is unavailable: wait, and continue with the same claim; that is no try;
    - an error: retry after a pause that doubles; after `max_tries` claims without progress the job fails;
    - `CannotDoHere`: queue the job again behind all others;
    - `StaleClaim`: leave the job to the replica that has claimed it;
    - the device has failed, or `Stopping`: the job stays for this server's next start or for another replica.
    """

    noun: ClassVar[str]
    """What a job is about, for logs and metrics: "reading"."""
    queue: ClassVar[str]
    """The name of its queue in the metrics: "readings"."""
    max_tries: ClassVar[int]
    remedy: ClassVar[str]
    """What the caller can do about a job that has used up its tries."""

    def __init__(self, engine: Engine, jobs: Jobs, metrics: Metrics, max_jobs: int = 1) -> None:
        self._engine = engine
        self._jobs = jobs
        self._metrics = metrics
        self._slots = asyncio.Semaphore(max_jobs)

    @abstractmethod
    async def claim(self, id: str, by: str) -> Claim | None:
        """Claim what the job is about; None if there is nothing to do. The same claimant `by` gets the same claim again."""

    @abstractmethod
    async def perform(self, id: str, claim: Claim) -> bool:
        """Do the job and return whether it is over; False if it must continue later, behind other jobs."""

    @abstractmethod
    async def fail(self, id: str, claim: Claim, code: str, message: str) -> None:
        """Store that the job has failed for good."""

    @abstractmethod
    async def reset_tries(self, id: str, claim: Claim) -> None:
        """Set the count of tries back to zero."""

    async def holder(self, id: str, claim: Claim) -> str | None:
        """Return the claimant that has taken `claim`'s place; None if it is still the newest one or the work is over."""
        return None

    @property
    def accepting(self) -> bool:
        """Whether to take further jobs."""
        return True

    async def run(self) -> None:
        """Take jobs and work on them until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while self.accepting:
                await self._slots.acquire()
                job = await self._next()
                if job is None:
                    self._slots.release()
                else:
                    tasks.create_task(self.work_on(job)).add_done_callback(lambda _: self._slots.release())
            await asyncio.Event().wait()

    async def _next(self) -> Job | None:
        """Take a job, or return None after a second without one. Waits while Redis is unavailable."""
        try:
            job = await self._jobs.next(wait_ms=1000)
        except RedisError as error:
            log.warning("Redis is unavailable; no %s starts until it is back: %s", self.noun, type(error).__name__)
            await asyncio.sleep(_RETRY_SECONDS)
            if isinstance(error, ResponseError) and "NOGROUP" in str(error):  # Redis has lost its data
                with contextlib.suppress(RedisError):
                    await self._jobs.prepare(alone=False)
            return None
        if job is not None and job.redelivered:
            self._metrics.redeliveries.labels(self.queue).inc()
        return job

    async def work_on(self, job: Job) -> None:
        """Work on a job until it ends here. It may have been started before, here or by another replica."""
        pause, by = _RETRY_SECONDS, job.claimant()
        claim: Claim | None = None
        ending: Ending | None = None
        while self._engine.alive:
            try:
                if ending is None:
                    found = await self.claim(job.id, by)
                    if found is None or claim is None or found.token != claim.token:
                        claim = found  # an outage of Redis returns the same claim: keep the old one, so that no try or start is added
                    over = claim is None or await self._try(job.id, claim)
                    ending = self._finish if over else self._requeue
                if await ending(job, claim):
                    return
                ending = None
            except RedisError as error:
                log.warning(
                    "Redis is unavailable; %s %s is paused until it is back: %s",
                    self.noun,
                    job.id,
                    type(error).__name__,
                )
                await asyncio.sleep(_RETRY_SECONDS)
            except Stopping as error:
                log.info(
                    "%s %s was interrupted; this server after a restart, or another replica, will resume it: %s",
                    self.noun,
                    job.id,
                    error,
                )
                return
            except CannotDoHere as error:
                log.warning("released %s %s so that another replica can claim it: %s", self.noun, job.id, error)
                await asyncio.sleep(_GIVE_BACK_SECONDS)
                ending = self._give_back
            except StaleClaim as error:
                log.info("stopped work on %s %s: %s", self.noun, job.id, error)
                ending, by = self._leave_to_holder, job.claimant()
            except Exception:  # such as a device out of memory; the next claim counts one more try
                log.exception("%s %s failed, retrying in %.1f s", self.noun, job.id, pause)
                await asyncio.sleep(pause)
                pause, by = min(2 * pause, _MAX_RETRY_SECONDS), job.claimant()
        log.error("the engine has failed; %s %s is paused until the server is restarted", self.noun, job.id)
        await asyncio.Event().wait()

    async def _try(self, id: str, claim: Claim) -> bool:
        """Perform the job unless it has used up its tries. Returns whether it is over."""
        if claim.attempts <= self.max_tries:
            return await self.perform(id, claim)
        message = f"given up after {self.max_tries} tries without progress; {self.remedy}"
        await self.fail(id, claim, "too_many_attempts", message)
        return True

    # Endings

    async def _finish(self, job: Job, claim: Claim | None) -> bool:
        await self._jobs.done(job)
        return True

    async def _requeue(self, job: Job, claim: Claim | None) -> bool:
        await self._jobs.requeue(job)
        return True

    async def _give_back(self, job: Job, claim: Claim | None) -> bool:
        if claim is not None:
            await self.reset_tries(job.id, claim)
        return await self._requeue(job, claim)

    async def _leave_to_holder(self, job: Job, claim: Claim | None) -> bool:
        """Leave the job to the replica that has claimed it. Returns False if none has: a late write of our own has fenced us."""
        holder = await self.holder(job.id, claim) if claim is not None else None
        if holder is None:
            return False
        await self._jobs.drop(job, entry_of_claimant(holder))
        self._metrics.lease_losses.labels(self.noun).inc()
        return True
