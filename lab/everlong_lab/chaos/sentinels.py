"""`SentinelCluster`: replicas and three Redis servers with Sentinels, each on a host of its own in a `Network`."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from everlong_lab.chaos.clock import Clock
from everlong_lab.chaos.forkserver import ForkServer
from everlong_lab.chaos.network import Host, Network, network
from everlong_lab.chaos.processes import START_SECONDS, Fleet, Replica, serve_flags, until
from everlong_server.store.redis.embedded import redis_server

DOWN_SECONDS = 3.0
"""A Redis that does not answer a Sentinel for so long is down."""
_REDIS_PORT, _SENTINEL_PORT, _SERVE_PORT = 6379, 26379, 8080
_REDIS = f"""
port {_REDIS_PORT}
bind 0.0.0.0
protected-mode no
appendonly yes
appendfsync always
save ""
maxmemory-policy noeviction
repl-ping-replica-period 1
repl-timeout 5
repl-diskless-sync-delay 0
"""
_SENTINEL = f"""
port {_SENTINEL_PORT}
bind 0.0.0.0
protected-mode no
sentinel monitor everlong {{master}} {_REDIS_PORT} 2
sentinel down-after-milliseconds everlong {int(DOWN_SECONDS * 1000)}
sentinel failover-timeout everlong 6000
"""


class RedisNode:
    """A Redis with a copy of everything or as master, and a Sentinel, on one host."""

    def __init__(self, host: Host, folder: Path, master: str) -> None:
        folder.mkdir(parents=True)
        self.host = host
        self._folder = folder
        follows = "" if host.address == master else f"replicaof {master} {_REDIS_PORT}\n"
        # Sentinel rewrites both files: a Redis that starts again has the role that it was given last.
        (folder / "redis.conf").write_text(_REDIS + follows)
        (folder / "sentinel.conf").write_text(_SENTINEL.format(master=master))
        options: dict[str, Any] = {"host": host.address, "socket_timeout": 2.0, "socket_connect_timeout": 2.0}
        options |= {"retry": Retry(NoBackoff(), 0), "decode_responses": True}
        self.client: Any = redis.asyncio.Redis(port=_REDIS_PORT, **options)
        self.sentinel: Any = redis.asyncio.Redis(port=_SENTINEL_PORT, **options)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def launch(self, *names: str) -> None:
        """Start `redis` or `sentinel`, without waiting."""
        for name in names:
            mode = ["--sentinel"] if name == "sentinel" else []
            # Redis must not outlive this process, which may be killed.
            command = [
                *self.host.prefix,
                "setpriv",
                "--pdeathsig",
                "KILL",
                redis_server(),
                str(self._folder / f"{name}.conf"),
                *mode,
            ]
            with (self._folder / f"{name}.log").open("ab") as log:
                self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)

    def signal(self, number: int) -> None:
        """Send a signal to Redis."""
        self._processes["redis"].send_signal(number)

    def kill(self, *names: str) -> None:
        """Kill `redis` or `sentinel` with SIGKILL."""
        for name in names:
            self._processes[name].send_signal(signal.SIGKILL)
            self._processes.pop(name).wait()

    async def close(self) -> None:
        """Kill both."""
        self.kill(*self._processes)
        await self.client.aclose()
        await self.sentinel.aclose()


class HostReplica(Replica):
    """A replica on a host of its own."""

    def __init__(self, number: int, host: Host, flags: list[str], log: Path, fork_server: ForkServer) -> None:
        own_flags = [*flags, "--host", host.address, "--port", str(_SERVE_PORT), "--auth", "off"]
        super().__init__(number, f"http://{host.address}:{_SERVE_PORT}", own_flags, log, fork_server)
        self.host = host
        self.namespace = host.namespace


class SentinelCluster(Fleet[HostReplica]):
    """Replicas, Redis nodes and their network."""

    def __init__(self, net: Network, nodes: list[RedisNode]) -> None:
        super().__init__()
        self.network, self.nodes = net, nodes

    async def master(self) -> RedisNode | None:
        """Return the node that a majority of the Sentinels call master, or None."""
        named = []
        for node in self.nodes:
            with contextlib.suppress(RedisError, OSError):
                address, _ = await node.sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "everlong")
                named.append(address)
        for node in self.nodes:
            if named.count(node.host.address) > len(self.nodes) // 2:
                return node
        return None

    async def copies(self) -> int:
        """Return how many other nodes have all that the master has, or nearly; 0 if there is no master."""
        with contextlib.suppress(RedisError, OSError):
            if (master := await self.master()) is not None:
                found = await master.client.info("replication")
                return sum(found.get(f"slave{n}", {}).get("state") == "online" for n in range(8)) * (
                    found["role"] == "master"
                )
        return 0

    async def whole(self) -> None:
        """Wait until the master has all others as copies. Raises `ClusterError`."""

        async def complete() -> bool:
            return await self.copies() == len(self.nodes) - 1

        await until(complete, START_SECONDS, "the Redis replicas")

    async def known(self) -> None:
        """Wait until each Sentinel knows the others and the master's copies, without which it cannot choose another master.

        Sentinel learns of the copies from the master, which it asks every 10 s. Raises `ClusterError`.
        """
        others = len(self.nodes) - 1

        async def complete() -> bool:
            with contextlib.suppress(RedisError, OSError):
                seen = [await node.sentinel.execute_command("SENTINEL", "MASTER", "everlong") for node in self.nodes]
                return all(int(state["num-slaves"]) == int(state["num-other-sentinels"]) == others for state in seen)
            return False

        await until(complete, START_SECONDS, "the Sentinels to know each other and the replicas")

    async def failovers(self) -> int:
        """Return how often the Sentinels have chosen another master."""
        epochs = [0]
        for node in self.nodes:
            with contextlib.suppress(RedisError, OSError):
                state = await node.sentinel.execute_command("SENTINEL", "MASTER", "everlong")
                epochs.append(int(state["config-epoch"]))
        return max(epochs)


@asynccontextmanager
async def start_sentinel_cluster(model: Path | str, replicas: int) -> AsyncIterator[SentinelCluster]:
    """Run a cluster in a temporary folder and a network of its own. Raises `ClusterError`."""
    folder = Path(tempfile.mkdtemp(prefix="evl"))
    with network() as net:
        hosts = [net.add() for _ in range(3)]
        nodes = [RedisNode(host, folder / f"redis{n}", hosts[0].address) for n, host in enumerate(hosts)]
        cluster = SentinelCluster(net, nodes)
        fork_server = ForkServer(Clock(folder / "clock").prefix)
        try:
            for node in nodes:
                node.launch("redis", "sentinel")
            await cluster.whole()
            await cluster.known()
            url = f"redis+sentinel://{','.join(f'{host.address}:{_SENTINEL_PORT}' for host in hosts)}/everlong"
            for number in range(replicas):
                arguments = serve_flags(model, folder / "documents", folder / "data" / str(number), redis_url=url)
                log = folder / f"replica{number}.log"
                await cluster.add(HostReplica(number, net.add(), arguments, log, fork_server))
            yield cluster
        finally:
            fork_server.close()
            for node in nodes:
                await node.close()
            shutil.rmtree(folder, ignore_errors=True)
