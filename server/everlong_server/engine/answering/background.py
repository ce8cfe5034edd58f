"""`BackgroundResponses`: answers queued responses. If a replica dies over one, another answers it from the start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from redis.exceptions import RedisError, ResponseError

from everlong_server.engine.answering.responses import ResponseTurn, ResponseTurns, Store
from everlong_server.engine.device.engine import Engine
from everlong_server.errors import Conflict, DocumentNotReady, Overloaded, RateLimited, ServerError, Unavailable
from everlong_server.observability.metrics import Metrics
from everlong_server.observability.tracing import Tracing
from everlong_server.store.jobs import Job, Jobs
from everlong_server.store.responses import Claim, Response, Responses

log = logging.getLogger(__name__)

_MAX_ATTEMPTS = 5
_RETRY_SECONDS = 0.5
_MAX_RETRY_SECONDS = 30.0
_GIVE_BACK_SECONDS = 5.0
"""Pause before giving back a job that this replica cannot do, so that other jobs and replicas go first."""
_CANCEL_POLL_SECONDS = 0.2
"""Interval at which a running answer checks whether its response was cancelled, deleted or taken over."""


class BackgroundResponses:
    """Works on response jobs until it is stopped.

    `response_turns`: returns those of a tenant. `store`: the responses of all tenants. `max_jobs`: number of jobs worked on
    at once, including those that wait for their documents.
    """

    def __init__(
        self, engine: Engine, response_turns: Callable[[str], ResponseTurns], store: Responses, jobs: Jobs, tracing: Tracing, metrics: Metrics,
        max_jobs: int,
    ) -> None:  # fmt: skip
        self._engine = engine
        self._response_turns = response_turns
        self._store = store
        self._jobs = jobs
        self._tracing = tracing
        self._metrics = metrics
        self._job_slots = asyncio.Semaphore(max_jobs)

    async def run(self) -> None:
        """Run until cancelled. Waits while Redis is unavailable."""
        async with asyncio.TaskGroup() as tasks:
            while not self._engine.draining:
                await self._job_slots.acquire()
                job = await self._next()
                if job is None:
                    self._job_slots.release()
                else:
                    if job.redelivered:
                        self._metrics.redeliveries.labels("responses").inc()
                    tasks.create_task(self._do(job))
            await asyncio.Event().wait()

    async def _next(self) -> Job | None:
        try:
            return await self._jobs.next(wait_ms=1000)
        except RedisError as error:
            log.warning("redis is unavailable, background responses wait: %s", type(error).__name__)
            await asyncio.sleep(_RETRY_SECONDS)
            if isinstance(error, ResponseError) and "NOGROUP" in str(error):  # Redis has lost its data
                with contextlib.suppress(RedisError):
                    await self._jobs.prepare(alone=False)
            return None

    async def _do(self, job: Job) -> None:
        """Work on a job until it ends here. It may have been started before, here or by another replica."""
        pause, by = _RETRY_SECONDS, job.claimant()
        end: Callable[[], Awaitable[None]] | None = None
        try:
            while self._engine.alive:
                try:
                    if end is None:
                        claim = await self._store.claim(job.id, by)
                        over = claim is None or await self._answer(job.id, claim)
                        end = partial(self._jobs.done if over else self._jobs.again, job)
                    await end()
                    return
                except RedisError as error:  # not counted as a try
                    log.warning("redis is unavailable, response %s waits: %s", job.id, type(error).__name__)
                    await asyncio.sleep(_RETRY_SECONDS)
                except (
                    Unavailable
                ) as error:  # this server is stopping: keep the job for its next start or another replica
                    log.info("response %s is left for the next start or another replica: %s", job.id, error)
                    return
                except Exception:
                    log.exception("response %s failed, retrying in %.1f s", job.id, pause)
                    await asyncio.sleep(pause)
                    pause, by = min(2 * pause, _MAX_RETRY_SECONDS), job.claimant()
        finally:
            self._job_slots.release()

    async def _answer(self, response_id: str, claim: Claim) -> bool:
        """Answer the response and return whether it is over; False if it must wait."""
        try:
            if claim.attempts > _MAX_ATTEMPTS:
                raise Conflict(
                    f"given up after {_MAX_ATTEMPTS} tries; create the response again", code="too_many_attempts"
                )
            response = await self._store.get(response_id)
            with self._tracing.span("respond", "consumer", parent=response.trace, everlong__response=response.id):
                return await self._respond(response, claim)
        except (OSError, Unavailable) as error:
            stopping = isinstance(error, Unavailable) and (self._engine.draining or not self._engine.alive)
            if stopping or isinstance(error, FileNotFoundError):
                raise
            # This replica lacks an encryption key that another may have, the blob store is unavailable or full, or one of its
            # texts cannot be read.
            log.warning("response %s is given back: %r", response_id, error)
            return await self._postpone(response_id, claim, _GIVE_BACK_SECONDS)
        except _ResponseAbandoned as error:
            log.info("%s", error)
        except ServerError as error:
            log.warning("response %s failed: %s", response_id, error)
            failure = json.dumps({"code": error.code, "message": error.message})
            await self._store.write(response_id, claim, {"status": "failed", "error": failure})
        return True

    async def _respond(self, response: Response, claim: Claim) -> bool:
        response_turns = self._response_turns(response.tenant)
        previous = await response_turns.previous(response.previous) if response.previous else None
        try:
            response_turn = await response_turns.begin(response, previous, self._store_answer(response_turns, claim))
        except (Overloaded, RateLimited, DocumentNotReady) as error:
            if isinstance(error, RateLimited) and error.code != "streams_limit":
                raise  # such as a quota that is used up for the day
            return await self._postpone(response.id, claim, _RETRY_SECONDS)
        await self._finish(response_turn, claim)
        return True

    async def _postpone(self, response_id: str, claim: Claim, seconds: float) -> bool:
        """Pause before the job is queued again behind others, and reset its count of tries. Returns False: it is not over."""
        await self._store.write(response_id, claim, {"attempts": 0})
        await asyncio.sleep(seconds)
        return False

    def _store_answer(self, response_turns: ResponseTurns, claim: Claim) -> Store:
        async def store(answered: Response) -> None:
            await response_turns.count_bytes(answered)
            if not await self._store.write(answered.id, claim, answered.end()):
                await response_turns.recount_bytes(answered.id)  # its answer is not stored
                raise _ResponseAbandoned(f"response {answered.id!r} was cancelled, deleted or taken over")

        return store

    async def _finish(self, response_turn: ResponseTurn, claim: Claim) -> None:
        """Run the answer to its end, or until the response is abandoned."""
        abandoned = asyncio.create_task(self._until_abandoned(response_turn.response.id, claim))
        events = response_turn.events

        async def drain() -> None:
            async for _ in events:
                pass

        answer = asyncio.create_task(drain())
        try:
            await self._store.write(response_turn.response.id, claim, {"status": "in_progress"})
            await asyncio.wait((answer, abandoned), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                await answer
        finally:
            for task in (answer, abandoned):
                task.cancel()
            await asyncio.gather(answer, abandoned, return_exceptions=True)
            await events.aclose()

    async def _until_abandoned(self, response_id: str, claim: Claim) -> None:
        """Return once the response is cancelled, deleted or claimed by another replica."""
        while True:
            await asyncio.sleep(_CANCEL_POLL_SECONDS)
            with contextlib.suppress(RedisError):  # Redis is unavailable, so nobody can have cancelled it
                if not await self._store.write(response_id, claim):
                    return


class _ResponseAbandoned(ServerError):
    """The response was cancelled, deleted or taken over by another replica."""
