"""`BackgroundResponses`: answers responses that nobody waits for. Whoever dies over one leaves it to another, who begins anew."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from redis.exceptions import RedisError, ResponseError

from everlong_server.engine.answering.responses import Keep, ResponseTurn, ResponseTurns
from everlong_server.engine.device.engine import Engine
from everlong_server.errors import Conflict, DocumentNotReady, Overloaded, RateLimited, ServerError, Unavailable
from everlong_server.observability.metrics import Metrics
from everlong_server.observability.tracing import Tracing
from everlong_server.store.jobs import Job, Jobs
from everlong_server.store.responses import Response, ResponseClaim, Responses

log = logging.getLogger(__name__)

_MAX_ATTEMPTS = 5
_RETRY_SECONDS = 0.5
_LONGEST_PAUSE = 30.0
_BACK_SECONDS = 5.0
"""Before a job is given back that cannot be done here, so that others are at it in the meantime."""
_LOOK_SECONDS = 0.2
"""How often an answer under way looks whether it is still wanted."""


class BackgroundResponses:
    """Takes jobs until it is stopped. `response_turns`: of a tenant. `store`: everybody's responses. `at_once`: so many
    are answered, or wait for their documents."""

    def __init__(
        self, engine: Engine, response_turns: Callable[[str], ResponseTurns], store: Responses, jobs: Jobs, tracing: Tracing, metrics: Metrics,
        at_once: int,
    ) -> None:  # fmt: skip
        self._engine = engine
        self._responding = response_turns
        self._store = store
        self._jobs = jobs
        self._tracing = tracing
        self._metrics = metrics
        self._places = asyncio.Semaphore(at_once)

    async def run(self) -> None:
        """Until cancelled. Redis being away is waited out."""
        async with asyncio.TaskGroup() as tasks:
            while not self._engine.draining:
                await self._places.acquire()
                job = await self._next()
                if job is None:
                    self._places.release()
                else:
                    if job.redelivered:
                        self._metrics.redeliveries.labels("responses").inc()
                    tasks.create_task(self._do(job))
            await asyncio.Event().wait()

    async def _next(self) -> Job | None:
        try:
            return await self._jobs.next(wait_ms=1000)
        except RedisError as error:
            log.warning("redis is away, the background waits: %s", type(error).__name__)
            await asyncio.sleep(_RETRY_SECONDS)
            if isinstance(error, ResponseError) and "NOGROUP" in str(error):  # Redis has lost its data
                with contextlib.suppress(RedisError):
                    await self._jobs.prepare(alone=False)
            return None

    async def _do(self, job: Job) -> None:
        """One job, to its end; also one that was begun elsewhere or before."""
        pause, by = _RETRY_SECONDS, job.claimant()
        end: Callable[[], Awaitable[None]] | None = None
        try:
            while self._engine.alive:
                try:
                    if end is None:
                        claim = await self._store.claim(job.id, by)
                        over = claim is None or await self._answer(job.id, claim)
                        end = partial(self._jobs.done if over else self._jobs.requeue, job)
                    await end()
                    return
                except RedisError as error:  # what has failed is not this try
                    log.warning("redis is away, response %s waits: %s", job.id, type(error).__name__)
                    await asyncio.sleep(_RETRY_SECONDS)
                except Unavailable as error:  # this server ends: the job stays, for its next start or another replica
                    log.info("response %s is left: %s", job.id, error)
                    return
                except Exception:
                    log.exception("response %s broke off, trying again in %.1f s", job.id, pause)
                    await asyncio.sleep(pause)
                    pause, by = min(2 * pause, _LONGEST_PAUSE), job.claimant()
        finally:
            self._places.release()

    async def _answer(self, response_id: str, claim: ResponseClaim) -> bool:
        """Whether it is over; False if it has to wait."""
        try:
            if claim.attempts > _MAX_ATTEMPTS:
                raise Conflict(f"given up after {_MAX_ATTEMPTS} tries", code="too_many_attempts")
            response = await self._store.get(response_id)
            with self._tracing.span("respond", "consumer", parent=response.trace, everlong__response=response.id):
                return await self._respond(response, claim)
        except (OSError, Unavailable) as error:
            ends = isinstance(error, Unavailable) and (self._engine.draining or not self._engine.alive)
            if ends or isinstance(error, FileNotFoundError):
                raise
            # A key that this server has not, say: another replica may have it. Or the blob store is away or full, or one of its
            # texts cannot be read.
            log.warning("response %s is given back: %r", response_id, error)
            return await self._wait(response_id, claim, _BACK_SECONDS)
        except _Unwanted as error:
            log.info("%s", error)
        except ServerError as error:
            log.warning("response %s failed: %s", response_id, error)
            failure = json.dumps({"code": error.code, "message": error.message})
            await self._store.write(response_id, claim, {"status": "failed", "error": failure})
        return True

    async def _respond(self, response: Response, claim: ResponseClaim) -> bool:
        response_turns = self._responding(response.tenant)
        previous = await response_turns.previous(response.previous) if response.previous else None
        try:
            answering = await response_turns.begin(response, previous, self._keep(response_turns, claim))
        except (Overloaded, RateLimited, DocumentNotReady) as error:
            if isinstance(error, RateLimited) and error.code != "streams_limit":
                raise  # what is used up for a day, say
            return await self._wait(response.id, claim, _RETRY_SECONDS)
        await self._through(answering, claim)
        return True

    async def _wait(self, response_id: str, claim: ResponseClaim, seconds: float) -> bool:
        """Before it goes behind others' jobs, which are not to wait with it. It was no try."""
        await self._store.write(response_id, claim, {"attempts": 0})
        await asyncio.sleep(seconds)
        return False

    def _keep(self, response_turns: ResponseTurns, claim: ResponseClaim) -> Keep:
        async def keep(done: Response) -> None:
            await response_turns.count(done)
            if not await self._store.write(done.id, claim, done.result_fields()):
                await response_turns.recount(done.id)  # its answer is not stored
                raise _Unwanted(f"response {done.id!r} is not wanted any more")

        return keep

    async def _through(self, answering: ResponseTurn, claim: ResponseClaim) -> None:
        """To the end of the answer, or until it is not wanted any more."""
        wanted = asyncio.create_task(self._wanted(answering.response.id, claim))
        events = answering.events

        async def whole() -> None:
            async for _ in events:
                pass

        answer = asyncio.create_task(whole())
        try:
            await self._store.write(answering.response.id, claim, {"status": "in_progress"})
            await asyncio.wait((answer, wanted), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                await answer
        finally:
            for task in (answer, wanted):
                task.cancel()
            await asyncio.gather(answer, wanted, return_exceptions=True)
            await events.aclose()

    async def _wanted(self, response_id: str, claim: ResponseClaim) -> None:
        """As long as the response is to be answered, and by us."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            with contextlib.suppress(RedisError):  # away: nobody can have cancelled it
                if not await self._store.write(response_id, claim):
                    return


class _Unwanted(ServerError):
    """It was cancelled, deleted, or taken by another."""
