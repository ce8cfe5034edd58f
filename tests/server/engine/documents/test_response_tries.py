"""Which failures count as tries of a response in the background: as for readings, errors of the job itself only."""

from __future__ import annotations

import asyncio
from typing import Any

from everlong_server.engine.answering.background import BackgroundResponses
from everlong_server.errors import KeyMissing, Unavailable
from everlong_server.observability.metrics import Metrics
from everlong_server.observability.tracing import Tracing
from everlong_server.store.jobs import Claim, Jobs
from everlong_server.store.records import Message, new_id, now
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.responses import Response, Responses
from everlong_server.store.vault import Vault
from tests.server.engine.documents.tries import MODEL, OUTAGE, engine, failing, redis, replica, taken

__all__ = ["redis"]


class FakeBackgroundResponses(BackgroundResponses):
    """Background responses without a device. `doing`: replaces the answer."""

    def __init__(self, redis: Client, jobs: Jobs) -> None:
        none: Any = None
        self.device = engine()
        super().__init__(self.device, none, Responses(redis, None, 60.0, Vault()), jobs, Tracing(), Metrics(), 1)
        self.tries: list[int] = []

    async def doing(self, response: Response, claim: Claim) -> None:
        """Answers it."""
        await self._store.write(response.id, claim, {"status": "completed"})

    async def _respond(self, response: Response, claim: Any) -> bool:
        self.tries.append(claim.attempts)
        await self.doing(response, claim)
        return True


async def asked(redis: Client) -> Response:
    """Create a response that is queued."""
    request: dict[str, Any] = {}
    said = (Message("user", "Who?"),)
    response = Response(new_id("resp"), MODEL, now(), True, None, (), said, None, request, "queued", tenant="ann")
    await Responses(redis, "ann", 60.0, Vault()).queue(response)
    return response


async def test_response_claims_without_a_redis_replica_do_not_count_as_tries(redis: Client) -> None:
    jobs, answered = await replica(redis, stream=keys.responses), await asked(redis)
    job, work = await taken(jobs), FakeBackgroundResponses(redis, await replica(redis, stream=keys.responses))
    store, refused = work._store.claim, []

    async def claim(id: str, by: str) -> Any:
        refused.append(by)
        redis.copies = int(len(refused) <= OUTAGE)
        return await store(id, by)

    work._store.claim = claim  # type: ignore[method-assign]
    await work.work_on(job)
    assert len(refused) == OUTAGE + 1
    assert work.tries == [1]
    assert await redis.hget(keys.response(answered.id), "status") == b"completed"


async def test_a_response_waits_for_its_blob_store(redis: Client) -> None:
    jobs, response = await replica(redis, stream=keys.responses), await asked(redis)
    work = FakeBackgroundResponses(redis, jobs)
    work.doing = failing(OUTAGE, OSError(5, "Input/output error"), work.doing)  # type: ignore[method-assign]
    while await jobs.length():
        await work.work_on(await taken(jobs))
    assert work.tries == [1] * (OUTAGE + 1)
    assert await redis.hget(keys.response(response.id), "status") == b"completed"
    assert await jobs.length() == 0


async def test_a_response_with_an_unreadable_text_does_not_occupy_a_slot(redis: Client) -> None:
    jobs = await replica(redis, stream=keys.responses)
    broken, other = await asked(redis), await asked(redis)
    work = FakeBackgroundResponses(redis, jobs)
    answer = work.doing

    async def doing(response: Response, claim: Any) -> None:
        if response.id == broken.id:
            raise PermissionError(13, "Permission denied")
        await answer(response, claim)

    work.doing = doing  # type: ignore[method-assign]
    async with asyncio.timeout(30):
        for _ in range(OUTAGE):
            await work.work_on(await taken(jobs))
    assert work.tries == [1] * OUTAGE
    assert await redis.hget(keys.response(other.id), "status") == b"completed"
    assert await redis.hget(keys.response(broken.id), "status") == b"queued"
    assert await jobs.length() == 1


async def test_errors_of_a_response_count_as_tries(redis: Client) -> None:
    jobs, response = await replica(redis, stream=keys.responses), await asked(redis)
    job, work = await taken(jobs), FakeBackgroundResponses(redis, jobs)
    work.doing = failing(OUTAGE, RuntimeError("out of memory"), work.doing)  # type: ignore[method-assign]
    await work.work_on(job)
    assert work.tries == list(range(1, BackgroundResponses.max_tries + 1))
    assert b"too_many_attempts" in await redis.hget(keys.response(response.id), "error")


async def test_a_response_without_its_key_is_given_back(redis: Client) -> None:
    """Another replica has the key, and must get the job although this one is alive."""
    jobs, other = [await replica(redis, name, keys.responses) for name in "ab"]
    response = await asked(redis)
    for _ in range(OUTAGE):
        work = FakeBackgroundResponses(redis, jobs)
        work.doing = failing(1, KeyMissing("encrypted with the key 'two'"), work.doing)  # type: ignore[method-assign]
        await work.work_on(await taken(jobs))
    assert await jobs.length() == 1
    work = FakeBackgroundResponses(redis, other)
    await work.work_on(await taken(other))
    assert work.tries == [1]
    assert await redis.hget(keys.response(response.id), "status") == b"completed"


async def test_a_stopping_server_leaves_its_jobs_to_others(redis: Client) -> None:
    jobs, other = [await replica(redis, name, keys.responses) for name in "ab"]
    await asked(redis)
    job, work = await taken(jobs), FakeBackgroundResponses(redis, jobs)
    work.device.draining = True
    work.doing = failing(1, Unavailable("the server is shutting down"), work.doing)  # type: ignore[method-assign]
    await work.work_on(job)
    assert await jobs.next(10) is None, "it is not tried here again"
    await jobs.deregister()
    assert await other.next(10) == job


async def test_a_response_that_another_replica_took_over_stays_with_it(redis: Client) -> None:
    """If the stalled replica ended the job, and the other then died, the response would stay in progress for ever."""
    jobs, other = [await replica(redis, name, keys.responses) for name in "ab"]
    response = await asked(redis)
    job, work = await taken(jobs), FakeBackgroundResponses(redis, jobs)

    async def stalled(_: Response, claim: Any) -> None:
        await jobs.deregister()
        same = await taken(other)
        assert same == job
        assert await Responses(redis, None, 60.0, Vault()).claim(response.id, same.claimant()) is not None
        assert not await work._store.write(response.id, claim, {"status": "completed"})

    work.doing = stalled  # type: ignore[method-assign]
    await work.work_on(job)
    assert await other.length() == 1
    await other.deregister()
    third = await replica(redis, "c", keys.responses)
    assert await taken(third) == job
