"""Run Redis with replicas and Sentinels, and Redis Cluster, as real processes."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from everlong_lab.harness.ports import free_port
from everlong_server.store.redis import keys
from everlong_server.store.redis.embedded import redis_server
from tests.process import wait_for


class Node:
    """One Redis process. `flags`: its role."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.port = free_port()
        folder.mkdir(parents=True)
        self.client = redis.Redis(port=self.port, socket_timeout=5)
        self._command = [redis_server(), *flags, "--port", str(self.port), "--dir", str(folder)]
        self._log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Node:
        """Start the process and wait until it answers."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_for(self.answers, 30, f"for a Redis: {self._log.read_text()[-1000:]}")
        return self

    def answers(self) -> bool:
        """Return whether it answers."""
        with contextlib.suppress(redis.RedisError):
            return bool(self.client.ping())
        return False

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None


_DOWN_MS = 5000  # long enough to be seen, and not to be taken for a machine that stalls
AOF = ("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--maxmemory-policy", "noeviction")


@contextmanager
def sentinels(folder: Path) -> Iterator[tuple[str, list[Node]]]:
    """Yield the URL and the nodes: a master and two replicas, watched by three Sentinels."""
    master = Node(folder / "0", *AOF).start()
    nodes = [master]
    watchers: list[Node] = []
    try:
        for number in (1, 2):
            nodes.append(Node(folder / str(number), *AOF, "--replicaof", "127.0.0.1", str(master.port)).start())
        for number in range(3):
            config = folder / f"sentinel{number}.conf"
            config.write_text(
                f"sentinel monitor everlong 127.0.0.1 {master.port} 2\n"
                f"sentinel down-after-milliseconds everlong {_DOWN_MS}\n"
                "sentinel failover-timeout everlong 5000\n"
            )
            watchers.append(Node(folder / f"s{number}", str(config), "--sentinel").start())
        wait_for(lambda: master.client.info("replication")["connected_slaves"] == 2, 30, "for the replicas")
        for watcher in watchers:
            wait_for(lambda watcher=watcher: _knows(watcher), 30, "for the Sentinels to know each other")
        hosts = ",".join(f"127.0.0.1:{watcher.port}" for watcher in watchers)
        yield f"redis+sentinel://{hosts}/everlong", nodes
    finally:
        for node in (*watchers, *nodes):
            node.kill()


def _knows(watcher: Node) -> bool:
    state = watcher.client.sentinel_master("everlong")
    return bool(state["num-other-sentinels"] == 2 and state["num-slaves"] == 2)


@contextmanager
def cluster(folder: Path, replicas: int = 0) -> Iterator[tuple[str, list[Node]]]:
    """Yield the URL and the nodes: three masters with a third of the slots each, and `replicas` of the one with our slot.
    The URL is of another master."""
    flags = (
        "--cluster-enabled",
        "yes",
        "--cluster-node-timeout",
        str(_DOWN_MS),
        "--cluster-replica-validity-factor",
        "0",
        *AOF,
    )
    nodes = [Node(folder / str(number), *flags).start() for number in range(3 + replicas)]
    masters = nodes[:3]
    try:
        for number, node in enumerate(masters):
            node.client.execute_command("CLUSTER ADDSLOTS", *range(number * 16384 // 3, (number + 1) * 16384 // 3))
        for number, node in enumerate(nodes):
            node.client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for node in nodes[1:]:
            nodes[0].client.execute_command("CLUSTER MEET", "127.0.0.1", node.port)
        for node in nodes:
            wait_for(lambda node=node: node.client.cluster("INFO")["cluster_state"] == "ok", 30, "for the cluster")
        slot = masters[0].client.execute_command("CLUSTER KEYSLOT", keys.FENCE)
        ours = masters[slot * 3 // 16384]
        for node in nodes[3:]:
            master = ours.client.execute_command("CLUSTER MYID").decode()
            wait_for(lambda node=node, master=master: _follows(node, master), 30, "for a node to know its master")
        wait_for(lambda: ours.client.info("replication")["connected_slaves"] == replicas, 30, "for the replicas")
        other = next(node for node in masters if node is not ours)
        yield f"redis+cluster://127.0.0.1:{other.port}", nodes
    finally:
        for node in nodes:
            node.kill()


def _follows(node: Node, master: str) -> bool:
    with contextlib.suppress(redis.ResponseError):  # it has not heard of the master yet
        return bool(node.client.execute_command("CLUSTER REPLICATE", master))
    return False
