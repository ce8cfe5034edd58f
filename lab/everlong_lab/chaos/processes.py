"""`Cluster`: several replicas, one Redis and one blob store, as real processes that can be killed, stopped and cut off."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import httpx
import psutil
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from everlong_lab.chaos import clock
from everlong_lab.chaos.clock import Clock
from everlong_lab.chaos.faulty_proxy import FaultyProxy
from everlong_lab.chaos.forkserver import ForkServer
from everlong_lab.harness.ports import free_port
from everlong_server.store.redis import keys
from everlong_server.store.redis.embedded import redis_server

LEASE_SECONDS = 2.0
START_SECONDS = 1800.0  # a busy machine takes minutes to start a server
_SPOOL_BYTES = 64 << 20
_END_SECONDS = 60.0
_PROBE_SECONDS = 1000.0
_PROBE_WAIT_SECONDS = 10.0


R = TypeVar("R", bound="Replica")


class ClusterError(Exception):
    """A process did not start or end in time."""


async def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Return the first true value of the coroutine function `condition`. Raises `ClusterError` after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = await condition()
        if value:
            return value
        await asyncio.sleep(0.02)
    raise ClusterError(f"timed out after {seconds:.0f} s waiting for {what}")


class RedisProcess:
    """A Redis with an append-only file synced at every write, as recommended for deployments."""

    def __init__(self, folder: Path, program: str | None = None) -> None:
        self.port = free_port()
        self.clock = Clock(folder.parent / "redis-clock")
        self.clock_settable = False
        self._command = [
            program or redis_server(), "--port", str(self.port), "--dir", str(folder), "--appendonly", "yes",
            "--appendfsync", "always", "--save", "", "--maxmemory-policy", "noeviction", "--daemonize", "no",
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        # Not through a proxy, and without retries: a missing answer is a result here.
        self.client: Any = redis.asyncio.Redis(port=self.port, socket_timeout=5.0, retry=Retry(NoBackoff(), 0))

    async def try_clock(self) -> None:
        """Find out whether this Redis uses `clock`; a static build, or one whose allocator asks for the time, may not.
        Must be called before the first `start`."""
        self.clock_settable = clock.settable()
        if not self.clock_settable:
            return
        self.clock.jump(_PROBE_SECONDS)
        self._launch()
        self.clock_settable = False
        with contextlib.suppress(ClusterError, RedisError):
            # A Redis with jemalloc hangs.
            await until(self._answers_or_ended, _PROBE_WAIT_SECONDS, "Redis")
            if self._runs():
                seconds, _ = await self.client.time()
                self.clock_settable = seconds - time.time() > _PROBE_SECONDS / 2
        self.clock.jump(0)
        self.kill()

    async def start(self) -> None:
        """Start Redis and wait until it has loaded its file."""
        # redis-py would reuse connections to a killed server as long as maintenance notifications are enabled (default).
        await self.client.connection_pool.disconnect(inuse_connections=False)
        self._launch()
        await until(self._answers, START_SECONDS, "Redis")

    async def _answers(self) -> bool:
        with contextlib.suppress(RedisError, OSError):
            return bool(await self.client.ping())
        return False

    async def _answers_or_ended(self) -> bool:
        return not self._runs() or await self._answers()

    def _runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _launch(self) -> None:
        command = [*(self.clock.prefix if self.clock_settable else []), *self._command]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        """Kill Redis with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def signal(self, number: int) -> None:
        """Send a signal, such as SIGSTOP or SIGCONT."""
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def process(self) -> psutil.Process:
        """The process, to measure its memory."""
        assert self._process is not None
        return psutil.Process(self._process.pid)


class Replica:
    """One `everlong serve`. `id`: its name in Redis. `namespace`: file of the network namespace that it runs in."""

    def __init__(self, number: int, url: str, flags: list[str], log: Path, fork_server: ForkServer) -> None:
        self.number, self.url, self.log = number, url, log
        self._flags, self._nursery = flags, fork_server
        self.environment: Mapping[str, str] = {}
        self.namespace: str | None = None
        self.pid: int | None = None
        self.id = ""

    async def start(self) -> None:
        """Start the replica and wait until it is ready."""
        self.pid = self._nursery.fork(self._flags, self.log, self.environment, self.namespace)
        async with httpx.AsyncClient(base_url=self.url, timeout=5) as http:

            async def ready() -> bool:
                if not self.runs:
                    raise ClusterError(f"a replica ended: {self.log.read_text(errors='replace')[-1000:]}")
                with contextlib.suppress(httpx.TransportError):
                    return (await http.get("/readyz")).status_code == 200
                return False

            await until(ready, START_SECONDS, "a replica")

    @property
    def runs(self) -> bool:
        """Whether the process exists."""
        return self.pid is not None and psutil.pid_exists(self.pid)

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        assert self.pid is not None
        os.kill(self.pid, number)

    async def wait_ended(self) -> None:
        """Wait until the process has ended."""

        async def ended() -> bool:
            return not self.runs

        await until(ended, _END_SECONDS, f"the end of replica {self.number}")

    async def kill(self) -> None:
        """Kill the replica with SIGKILL, and wait for its end."""
        self.signal(signal.SIGKILL)
        await self.wait_ended()


class LocalReplica(Replica):
    """A replica with a proxy before Redis and a clock of its own."""

    def __init__(
        self, number: int, proxy: FaultyProxy, own_clock: Clock, flags: list[str], log: Path, fork_server: ForkServer
    ) -> None:
        self.port = free_port()
        own_flags = [*flags, "--port", str(self.port), "--redis-url", f"redis://127.0.0.1:{proxy.port}/0"]
        super().__init__(number, f"http://127.0.0.1:{self.port}", own_flags, log, fork_server)
        self.proxy, self.clock = proxy, own_clock
        self.environment = own_clock.own


class Fleet(Generic[R]):
    """Several replicas."""

    def __init__(self) -> None:
        self.replicas: list[R] = []

    async def add(self, replica: R) -> None:
        """Start one more replica."""
        self.replicas.append(replica)
        await self.restart(replica)

    async def restart(self, replica: R) -> None:
        """Start a replica that has ended."""
        await replica.start()


class Cluster(Fleet[LocalReplica]):
    """The processes of a campaign, started by `start_cluster`."""

    def __init__(self, folder: Path, redis_process: RedisProcess, *, bounded: bool) -> None:
        super().__init__()
        self.folder, self.redis, self.bounded = folder, redis_process, bounded

    @property
    def spool(self) -> Path:
        """The folder of the blob store; on a small file system of its own if `bounded`."""
        return self.folder / "spool"

    async def reading(self) -> dict[str, int]:
        """Return the number of reading jobs of each replica, by its id."""
        found: dict[str, int] = {}
        async for stream in self.redis.client.scan_iter(keys.jobs("*")):
            for item in await self.redis.client.xpending_range(stream, keys.READERS, "-", "+", count=100):
                owner = item["consumer"].decode()
                found[owner] = found.get(owner, 0) + 1
        return found

    async def restart(self, replica: LocalReplica) -> None:
        """Start a replica that has ended. Start one at a time, so that its id can be found."""
        before = await self._ids()
        await replica.start()
        new = await self._ids() - before
        if len(new) == 1:  # otherwise a replica that was considered dead came back at this moment
            replica.id = new.pop()

    async def _ids(self) -> set[str]:
        """Return the ids of the replicas that Redis knows."""
        found = [key async for key in self.redis.client.scan_iter(f"{keys.REPLICA}*")]
        return {key.decode().removeprefix(keys.REPLICA) for key in found}


def serve_flags(model: Path | str, documents: Path, data: Path, **flags: object) -> list[str]:
    """Return the options of `everlong serve` that all clusters have, and `flags`. `data`: a folder of this replica alone."""
    return [
        "--model", str(model), "--blob-url", f"file://{documents}", "--data-dir", str(data), "--threads", "1",
        "--lease-seconds", str(LEASE_SECONDS), "--checkpoint-seconds", "0.1", "--drain-seconds", "20",
        "--recall-tokens", "200", "--idempotency-seconds", "300",
        "--upload-seconds", "30",  # after this, unfinished uploads of killed replicas are removed
        *[part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", str(value))],
    ]  # fmt: skip


@asynccontextmanager
async def start_cluster(
    model: Path | str, replicas: int, *, program: str | None = None, redis_clock: bool = False, **flags: object
) -> AsyncIterator[Cluster]:
    """Run a cluster in a temporary folder. `redis_clock`: make the clock of Redis settable, if possible; finding out may take
    ten seconds. `flags`: further options of `everlong serve`."""
    folder = Path(tempfile.mkdtemp(prefix="evl"))
    for name in ("redis", "spool", "data"):
        (folder / name).mkdir()
    bounded = _mount(folder / "spool")
    fork_server = ForkServer(Clock(folder / "clock").prefix)
    redis_process = RedisProcess(folder / "redis", program)
    proxies: list[FaultyProxy] = []
    cluster = Cluster(folder, redis_process, bounded=bounded)
    try:
        if redis_clock:
            await redis_process.try_clock()
        await redis_process.start()
        for number in range(replicas):
            proxy = FaultyProxy(redis_process.port)
            await proxy.start()
            proxies.append(proxy)
            arguments = serve_flags(model, folder / "spool", folder / "data" / str(number), **flags)
            own_clock, log = Clock(folder / f"clock{number}"), folder / f"replica{number}.log"
            await cluster.add(LocalReplica(number, proxy, own_clock, arguments, log, fork_server))
        yield cluster
    finally:
        fork_server.close()
        for proxy in proxies:
            await proxy.stop()
        await redis_process.client.aclose()
        redis_process.kill()
        if bounded:
            _unmount(folder / "spool")
        shutil.rmtree(folder, ignore_errors=True)


def _mount(folder: Path) -> bool:
    """Mount a small file system at `folder`; return False if this user may not."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={_SPOOL_BYTES}", "everlong", str(folder)]
    return (
        shutil.which("mount") is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", str(folder)], check=False)
