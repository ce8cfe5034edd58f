"""Redis with Sentinel whose hosts are parted: what a cut-off master still says is not served, and histories are recorded."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from redis.exceptions import RedisError

from everlong_lab.chaos.history import HistoryPlan, run
from everlong_lab.chaos.processes import until
from everlong_lab.chaos.sentinels import SentinelCluster, start_sentinel_cluster
from everlong_lab.harness.retries import send_until_final
from everlong_server.store.redis.connection import connect
from everlong_server.store.redis.scripts import STORE

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"),
        reason="network namespaces need root, ip and unshare",
    ),
]
SECONDS = 120


async def send(method: str, url: str, **body: object) -> httpx.Response:
    async with httpx.AsyncClient(timeout=30) as http:
        answer, _ = await send_until_final(http, method, lambda: url, lambda: None, **body)
    return answer


def with_cluster(model: Path, act: Callable[[SentinelCluster], Awaitable[None]], servers: int = 2) -> None:
    async def main() -> None:
        async with start_sentinel_cluster(model, servers) as cluster:
            await act(cluster)

    asyncio.run(main())


def test_a_server_with_a_master_that_was_cut_off_serves_nothing_stale(tiny_model: Path) -> None:
    async def act(cluster: SentinelCluster) -> None:
        near, far = cluster.replicas
        master = await cluster.master()
        assert master is not None
        others = [node for node in cluster.nodes if node is not master]
        session = (await send("POST", f"{near.url}/v1/sessions", json={})).json()["id"]
        path = f"/v1/sessions/{session}/messages"
        body = {"content": "One.", "max_tokens": 1, "temperature": 0}
        assert (await send("POST", f"{near.url}{path}", json=body)).status_code == 200
        cluster.network.part([master.host, near.host], [*(node.host for node in others), far.host])

        async def moved() -> bool:
            return (await cluster.master()) in others

        await until(moved, SECONDS, "another master")
        assert (await send("POST", f"{far.url}{path}", json=body | {"content": "Two."})).status_code == 200
        assert (await master.client.info("replication"))["role"] == "master", "the old one knows nothing of it"
        async with httpx.AsyncClient(timeout=60) as http:
            stale = await http.get(f"{near.url}{path}")
            missing = await http.get(f"{near.url}/v1/sessions/ses_00000000000000000000000000000000")
        assert (stale.status_code, stale.json()["error"]["code"]) == (503, "store_unavailable")
        assert missing.status_code == 503, "it may have been made elsewhere"
        cluster.network.mend()
        await cluster.whole()
        found = (await send("GET", f"{near.url}{path}")).json()["data"]
        assert [message["content"] for message in found][::2] == ["One.", "Two."]

    with_cluster(tiny_model, act)


def test_a_server_that_reaches_both_sides_goes_on_with_the_new_master(tiny_model: Path) -> None:
    """The old master's Sentinel is the first in the list, and has not heard of the new one."""

    async def act(cluster: SentinelCluster) -> None:
        (server,) = cluster.replicas
        master = await cluster.master()
        assert master is cluster.nodes[0]
        others = [node for node in cluster.nodes if node is not master]
        cluster.network.part([master.host], [node.host for node in others])

        async def moved() -> bool:
            return (await cluster.master()) in others

        await until(moved, SECONDS, "another master")
        assert (await master.client.info("replication"))["role"] == "master", "the old one knows nothing of it"
        made = await send("POST", f"{server.url}/v1/sessions", json={})
        assert made.status_code == 201
        assert (await send("GET", f"{server.url}/v1/sessions/{made.json()['id']}")).status_code == 200
        cluster.network.mend()
        await cluster.whole()

    with_cluster(tiny_model, act, servers=1)


def test_a_failover_by_command_loses_no_acknowledged_write(tiny_model: Path) -> None:
    """Until the old master is told of its successor, it still takes writes, and its other replica still acknowledges them."""

    async def act(cluster: SentinelCluster) -> None:
        hosts = ",".join(f"{node.host.address}:26379" for node in cluster.nodes)
        client = connect(f"redis+sentinel://{hosts}/everlong")
        written, ending = set[str](), asyncio.Event()

        async def write(number: int) -> None:
            for count in itertools.count():
                key = f"{{everlong}}:written:{number}:{count}"
                while not ending.is_set() and key not in written:
                    with contextlib.suppress(RedisError):
                        await client.run_script(STORE, [key], ["", "", "", "count", count])
                        written.add(key)
                if ending.is_set():
                    return

        async def more(than: int) -> bool:
            return len(written) > than

        writing = [asyncio.create_task(write(number)) for number in range(8)]
        await until(lambda: more(500), SECONDS, "writes")
        old = await cluster.master()
        await cluster.nodes[0].sentinel.execute_command("SENTINEL", "FAILOVER", "everlong")

        async def moved() -> bool:
            return (await cluster.master()) not in (old, None)

        await until(moved, SECONDS, "another master")
        before = len(written)
        await until(lambda: more(before + 500), SECONDS, "writes to the new master")
        ending.set()
        await asyncio.gather(*writing)
        master = await cluster.master()
        assert master is not None
        assert await master.client.exists(*written) == len(written)
        await client.aclose()

    with_cluster(tiny_model, act, servers=0)


def test_a_history_is_recorded_and_continued(tiny_model: Path, tmp_path: Path) -> None:
    plan = HistoryPlan(
        tmp_path / "history.jsonl", operations=60, faults=1, minutes=10, clients=4, replicas=2, sentinel=True
    )
    run(plan, print)
    first = [json.loads(line) for line in plan.file.read_text().splitlines()]
    with plan.file.open("a") as file:
        file.write('{"id": "cut o')
    report = run(replace(plan, operations=120, faults=2), print)
    lines = [json.loads(line) for line in plan.file.read_text().splitlines()]
    assert lines[: len(first)] == first
    assert len([line for line in lines if "fault" in line]) == 2
    done = {line["id"] for line in lines if "id" in line and line["return"] is not None}
    assert len(done) >= 120
    assert {line["id"] for line in lines if "id" in line} >= done
    assert all(target.met for target in report.targets)
