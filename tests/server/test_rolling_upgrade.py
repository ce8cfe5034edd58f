"""Three servers of version 0.1.0 are replaced by today's one after the other, under load: no request fails.

The old servers run from the sources of the commit that made `tests/data/store-0.1.tar.xz`, which need the repository's history.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import random
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from everlong_lab.chaos.load import Load
from everlong_lab.harness.ports import free_port
from everlong_lab.harness.retries import PASSING, send_until_final
from everlong_server.store.redis.embedded import EmbeddedRedis
from tests.process import Server

RELEASE = "874981105ae619017f9aa52f735753bd8bab9574"
ROOT = Path(__file__).parents[2]
SECONDS = 900
"""Time for a server to start, and for the load to do something of everything, on a busy machine."""
PARTS = ("server", "models", "lab", "clients/python")


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of 0.1.0."""
    git = subprocess.run(["git", "archive", RELEASE, *PARTS], cwd=ROOT, capture_output=True, check=False)
    if git.returncode:
        pytest.skip(f"needs the repository's history: {git.stderr.decode().strip()}")
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(fileobj=io.BytesIO(git.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


class Replica:
    """A server on one port, first of the release and then of today."""

    def __init__(self, number: int, environment: dict[str, str], log: Path) -> None:
        self.number, self.port, self.log = number, free_port(), log
        self.url = f"http://127.0.0.1:{self.port}"
        self._environment = environment
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self, sources: Path) -> None:
        path = os.pathsep.join(str(sources / part) for part in PARTS)
        command = [sys.executable, "-m", "everlong_client", "serve", "--port", str(self.port)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=self._environment | {"PYTHONPATH": path}, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        async with httpx.AsyncClient() as http, asyncio.timeout(SECONDS):
            while True:
                assert self.process.poll() is None, self.log.read_text()[-3000:]
                with contextlib.suppress(httpx.TransportError):
                    if (await http.get(f"{self.url}/readyz")).status_code == 200:
                        return
                await asyncio.sleep(0.1)

    async def stop(self) -> None:
        """SIGTERM: running answers finish."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(self.process.wait, 120) == 0, self.log.read_text()[-3000:]

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def replicas(tiny_model: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Replica]]:
    store = EmbeddedRedis(tmp_path_factory.mktemp("r"))
    store.start()
    settings = {
        "MODEL": tiny_model, "REDIS_URL": store.url, "BLOB_URL": f"file://{tmp_path / 'documents'}", "THREADS": 1,
        "RECALL_PASSAGES": 0,  # so that the answers of both versions are the same
        "LEASE_SECONDS": 5,
    }  # fmt: skip
    with Server(tiny_model, tmp_path / "unused") as server:
        inherited = {name: value for name, value in server.environment.items() if not name.startswith("EVERLONG_")}
    common = inherited | {f"EVERLONG_{name}": str(value) for name, value in settings.items()}
    made = [
        Replica(n, common | {"EVERLONG_DATA_DIR": str(tmp_path / f"data{n}")}, tmp_path / f"{n}.log") for n in range(3)
    ]
    try:
        yield made
    finally:
        for replica in made:
            replica.kill()
        store.stop()


class Dialogue:
    """Responses that continue each other, each sent to a random server, over and over. `rounds`: how often it was complete."""

    def __init__(self, replicas: list[Replica]) -> None:
        self._replicas, self._rng = replicas, random.Random(0)
        self.rounds = 0

    async def run(self) -> None:
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_keepalive_connections=0)) as http:
            first = await self._round(http)
            while True:
                assert await self._round(http) == first, "another answer than before"
                self.rounds += 1

    async def _round(self, http: httpx.AsyncClient) -> list[str]:
        said: list[str] = []
        previous = None
        for question in ("Who is there?", "And why?", "Since when?"):
            body = {
                "model": "tiny-rmt", "input": question, "max_output_tokens": 8, "temperature": 0, "previous_response_id": previous
            }  # fmt: skip
            answer = await self._send(http, "POST", "/v1/responses", json=body)
            previous = answer["id"]
            said.append(answer["output"][0]["content"][0]["text"])
            stored = await self._send(http, "GET", f"/v1/responses/{previous}")
            assert stored["output"][0]["content"] == answer["output"][0]["content"]
        return said

    async def _send(self, http: httpx.AsyncClient, method: str, path: str, **body: object) -> dict:
        answer, _ = await send_until_final(
            http, method, lambda: f"{self._rng.choice(self._replicas).url}{path}", lambda: None, **body
        )
        assert answer.status_code == 200, f"{method} {path}: {answer.text}"
        return answer.json()


async def progress(load: Load, dialogue: Dialogue) -> None:
    """Wait until the load has done something of everything."""
    before, rounds = load.ledger.done.copy(), dialogue.rounds
    async with asyncio.timeout(SECONDS):
        while not all(load.ledger.done[name] > before[name] for name in ("upload", "read", "message", "delete")) or (
            dialogue.rounds <= rounds
        ):
            assert not load.ledger.lost + load.ledger.stuck, (load.ledger.lost, load.ledger.stuck)
            await asyncio.sleep(0.1)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
async def test_no_request_fails(release: Path, replicas: list[Replica]) -> None:
    """Each request has its own connection: a server may close an idle one just as it is used again."""
    await asyncio.gather(*(replica.start(release) for replica in replicas))
    load = Load(replicas, 5, 2, scripts=3, keep_alive=False)  # type: ignore[arg-type]
    dialogue = Dialogue(replicas)
    await load.rehearse()
    load.start()
    async with asyncio.TaskGroup() as group:
        talking = group.create_task(dialogue.run())
        await progress(load, dialogue)
        for replica in replicas:
            load.fault = f"server {replica.number} is replaced"
            await replica.stop()
            await replica.start(ROOT)
            await progress(load, dialogue)
        await load.finish()
        talking.cancel()
    await load.caller.close()
    assert not load.ledger.lost, load.ledger.lost
    assert not load.ledger.stuck, load.ledger.stuck
    # Sent again to another server: no connection, or 503 or 409 before anything of the answer.
    passing = {f"stream: {code}" for code in (*PASSING, "draining", "loading", "store_unavailable", "unavailable")}
    passing |= {"ConnectError", "ConnectTimeout", "ReadError", "RemoteProtocolError", "WriteError"}
    broken = {why for why in load.ledger.again if not why.startswith(("503 ", "409 "))} - passing
    assert not broken, load.ledger.again
    for replica in replicas:
        assert "Traceback" not in replica.log.read_text()
    print(load.ledger.done, load.ledger.again, dialogue.rounds, "rounds of responses")
