"""A short campaign of `everlong bench chaos`: every fault occurs, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from everlong_lab.chaos import clock
from everlong_lab.chaos.campaign import CampaignPlan, CampaignResult, campaign, report
from everlong_lab.chaos.faults import FAULTS
from everlong_lab.chaos.processes import RedisProcess
from everlong_lab.harness.retries import PASSING
from everlong_server.store.redis.embedded import redis_servers


async def tried(plan: CampaignPlan, model: Path) -> CampaignResult:
    outcome = await campaign(plan, model, print)
    print(json.dumps(report(outcome, plan).document("test"), indent=1))
    assert outcome.lost == []
    assert outcome.stuck == []
    assert outcome.leaked == []
    return outcome


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_a_replica_is_killed_while_it_generates(tiny_model: Path) -> None:
    plan = CampaignPlan(
        points=1, minutes=12, replicas=2, workers=2, burst=1, faults=["replica killed while generating"]
    )
    outcome = await tried(plan, tiny_model)
    assert outcome.points >= 1
    # Each worker has acted out a script, of two messages at least.
    assert outcome.done["message"] >= outcome.rehearsed["message"] + 2 * plan.workers


@pytest.mark.chaos
@pytest.mark.timeout(1200)  # it ends by itself when every fault has been tried
async def test_every_fault(tiny_model: Path) -> None:
    plan = CampaignPlan(points=8, minutes=12, away=2.0, burst=2)
    outcome = await tried(plan, tiny_model)
    missing = set(FAULTS) - set(outcome.recovery) - set(outcome.impossible)
    assert not missing, f"there was no time for {missing}"


@pytest.mark.chaos
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("program", redis_servers()[1:], ids=lambda path: Path(path).name)
async def test_faults_of_other_redis_programs(tiny_model: Path, program: str) -> None:
    """Redis 6.2 from the wheel (if the machine has Redis 7), and Valkey, whose clock can be set."""
    faults = [name for name in FAULTS if "Redis" in name]
    outcome = await tried(
        CampaignPlan(points=0, minutes=12, away=2.0, program=program, seed=1, faults=faults), tiny_model
    )
    assert set(faults) == set(outcome.recovery) | set(outcome.impossible)
    assert "valkey" not in program or "clock of Redis jumps" not in outcome.impossible or not clock.settable()


@pytest.mark.chaos
@pytest.mark.timeout(1200)
async def test_a_rolling_restart_fails_no_request(tiny_model: Path) -> None:
    """Each request has its own connection: a server may close an idle one just as it is used again."""
    outcome = await tried(CampaignPlan(points=0, minutes=12, faults=["rolling restart"], keep_alive=False), tiny_model)
    refused = {why for why in outcome.again if not why.startswith(("503 ", "409 "))}
    # No connection; or one that the system had made when the server stopped taking them.
    refused -= {"ConnectError", "ConnectTimeout", "ReadError", "RemoteProtocolError", "WriteError"}
    # The word for 503 or 409 where the head of a stream has been sent, and nothing of the answer.
    refused -= {f"stream: {code}" for code in (*PASSING, "draining", "loading", "store_unavailable", "unavailable")}
    assert not refused, outcome.again  # nothing that was begun was broken off


@pytest.mark.chaos
def test_what_is_lost_is_seen(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign reports a Redis that loses data."""

    async def forget(context) -> float:
        await context.cluster.redis.client.flushall()
        return asyncio.get_running_loop().time()

    monkeypatch.setitem(FAULTS, "Redis killed", forget)
    monkeypatch.setattr("everlong_lab.chaos.campaign._CALM_SECONDS", 0.0)  # files are left, of course
    plan = CampaignPlan(points=0, minutes=0.2, replicas=1, workers=2, faults=["Redis killed"])
    outcome = asyncio.run(campaign(plan, tiny_model, print))
    assert outcome.lost


async def test_redis_is_asked_anew_after_it_was_killed(tmp_path: Path) -> None:
    redis_process = RedisProcess(tmp_path)
    await redis_process.start()
    try:
        for _ in range(2):  # all at once: over a connection each
            assert await asyncio.gather(*(redis_process.client.ping() for _ in range(3))) == [True] * 3
            redis_process.kill()
            await redis_process.start()
    finally:
        await redis_process.client.aclose()
        redis_process.kill()
