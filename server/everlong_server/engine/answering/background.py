"""`BackgroundResponses`: answers queued responses. If a replica dies while it answers one, another replica starts the answer again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable

from redis.exceptions import RedisError

from everlong_server.engine.answering.responses import ResponseTurn, ResponseTurns, Store
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.device.priority import background_priority
from everlong_server.engine.jobs import CannotDoHere, JobWorker, Stopping
from everlong_server.errors import DocumentNotReady, Overloaded, RateLimited, ServerError, Unavailable
from everlong_server.observability.metrics import Metrics
from everlong_server.observability.tracing import Tracing
from everlong_server.store.jobs import Claim, Jobs
from everlong_server.store.responses import Response, Responses
from everlong_server.tasks import cancel

log = logging.getLogger(__name__)

_POSTPONE_SECONDS = 0.5
"""Pause before a response that cannot start yet is queued again."""
_CANCEL_POLL_SECONDS = 0.2
"""Interval at which a running answer checks whether its response was cancelled, deleted or taken over."""


class BackgroundResponses(JobWorker):
    """Works on response jobs until it is cancelled.

    `response_turns`: returns those of a tenant. `store`: the responses of all tenants. `max_jobs`: number of jobs worked on
    at once, including those that wait for their documents.
    """

    noun = "response"
    queue = "responses"
    max_tries = 5
    remedy = "create the response again"

    def __init__(
        self,
        engine: Engine,
        response_turns: Callable[[str], ResponseTurns],
        store: Responses,
        jobs: Jobs,
        tracing: Tracing,
        metrics: Metrics,
        max_jobs: int,
    ) -> None:
        super().__init__(engine, jobs, metrics, max_jobs)
        self._response_turns = response_turns
        self._store = store
        self._tracing = tracing

    @property
    def accepting(self) -> bool:
        """Whether to take further jobs: not while the server is shutting down."""
        return not self._engine.draining

    async def claim(self, id: str, by: str) -> Claim | None:
        """Claim the response. Returns None if it has ended."""
        return await self._store.claim(id, by)

    async def reset_tries(self, id: str, claim: Claim) -> None:
        """Set the response's count of tries back to zero."""
        await self._store.write(id, claim, {"attempts": 0})

    async def fail(self, id: str, claim: Claim, code: str, message: str) -> None:
        """Store that the response cannot be answered."""
        log.warning("response %s failed: %s", id, message)
        failure = json.dumps({"code": code, "message": message})
        await self._store.write(id, claim, {"status": "failed", "error": failure})

    async def perform(self, id: str, claim: Claim) -> bool:
        """Answer the response and return whether it is over; False if it must wait."""
        try:
            response = await self._store.get(id)
            with (
                background_priority(),
                self._tracing.span("respond", "consumer", parent=response.trace, everlong__response=response.id),
            ):
                return await self._respond(response, claim)
        except FileNotFoundError:
            raise  # counts as a try: the text may be gone for good
        except (OSError, Unavailable) as error:
            if isinstance(error, Unavailable) and (self._engine.draining or not self._engine.alive):
                raise Stopping(str(error)) from error
            # This replica lacks an encryption key that another may have, the blob store is unavailable or full, or one of its
            # texts cannot be read.
            raise CannotDoHere(repr(error)) from error
        except _ResponseAbandoned as error:
            log.info("%s", error)
        except ServerError as error:
            await self.fail(id, claim, error.code, error.message)
        return True

    async def _respond(self, response: Response, claim: Claim) -> bool:
        response_turns = self._response_turns(response.tenant)
        previous = await response_turns.previous(response.previous) if response.previous else None
        try:
            response_turn = await response_turns.begin(response, previous, self._store_answer(response_turns, claim))
        except (Overloaded, RateLimited, DocumentNotReady) as error:
            if isinstance(error, RateLimited) and error.code != "streams_limit":
                raise  # such as a quota that is used up for the day
            return await self._postpone(response.id, claim)
        await self._run_answer(response_turn, claim)
        return True

    async def _postpone(self, response_id: str, claim: Claim) -> bool:
        """Pause before the job is queued again behind others; that was no try. Returns False: the job is not over."""
        await self.reset_tries(response_id, claim)
        await asyncio.sleep(_POSTPONE_SECONDS)
        return False

    def _store_answer(self, response_turns: ResponseTurns, claim: Claim) -> Store:
        async def store(answered: Response) -> None:
            await response_turns.count_bytes(answered)
            if not await self._store.write(answered.id, claim, answered.result_fields()):
                await response_turns.recount_bytes(answered.id)  # its answer is not stored
                raise _ResponseAbandoned(f"response {answered.id!r} was cancelled, deleted or taken over")

        return store

    async def _run_answer(self, response_turn: ResponseTurn, claim: Claim) -> None:
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
            await cancel(answer, abandoned)
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
