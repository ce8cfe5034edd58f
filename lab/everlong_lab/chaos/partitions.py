"""Faults of a `SentinelCluster`: hosts that do not reach each other, and failovers. Each is repaired before it returns."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from everlong_lab.chaos.network import Host
from everlong_lab.chaos.processes import LEASE_SECONDS
from everlong_lab.chaos.sentinels import DOWN_SECONDS, HostReplica, RedisNode, SentinelCluster

_ELECTION_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """What a fault works with."""

    cluster: SentinelCluster
    rng: random.Random

    async def away(self) -> None:
        """Sleep: half of the times long enough for a failover."""
        await asyncio.sleep(self.rng.choice((self.rng.uniform(0.2, DOWN_SECONDS), DOWN_SECONDS + self.rng.uniform(1, 2 * _ELECTION_SECONDS))))  # fmt: skip

    async def parted(self, some: list[Host], others: list[Host]) -> None:
        """Part two groups of hosts for a while."""
        self.cluster.network.part(some, others)
        await self.away()
        self.cluster.network.mend()

    def replica(self) -> HostReplica:
        """Return a random replica."""
        return self.rng.choice(self.cluster.replicas)

    def servers(self) -> list[Host]:
        """Return the hosts of the replicas in random order."""
        hosts = [replica.host for replica in self.cluster.replicas]
        return self.rng.sample(hosts, len(hosts))

    async def nodes(self) -> tuple[RedisNode, list[RedisNode]]:
        """Return the master and the other nodes in random order. The master is a guess if the Sentinels disagree."""
        master = await self.cluster.master() or self.cluster.nodes[0]
        others = [node for node in self.cluster.nodes if node is not master]
        return master, self.rng.sample(others, len(others))


async def master_alone(context: PartitionContext) -> None:
    """Part the master from everything."""
    master, others = await context.nodes()
    await context.parted([master.host], [*(node.host for node in others), *context.servers()])


async def master_with_one_server(context: PartitionContext) -> None:
    """Part the master and one server from the rest, so that this server still reaches it."""
    master, others = await context.nodes()
    one, *rest = context.servers()
    await context.parted([master.host, one], [*(node.host for node in others), *rest])


async def master_from_redis(context: PartitionContext) -> None:
    """Part the master from the other nodes and their Sentinels; every server reaches every node."""
    master, others = await context.nodes()
    await context.parted([master.host], [node.host for node in others])


async def majority_with_one_server(context: PartitionContext) -> None:
    """Part one copy and all servers but one from the rest, which has the master and a copy."""
    master, (near, far) = await context.nodes()
    one, *rest = context.servers()
    await context.parted([master.host, near.host, one], [far.host, *rest])


async def server_from_redis(context: PartitionContext) -> None:
    """Part a server from all nodes."""
    await context.parted(context.servers()[:1], [node.host for node in context.cluster.nodes])


async def server_from_master(context: PartitionContext) -> None:
    """Part a server from the master only; it reaches the Sentinels of the others."""
    master, _ = await context.nodes()
    await context.parted(context.servers()[:1], [master.host])


async def master_unheard(context: PartitionContext) -> None:
    """Lose what the master sends to the other nodes. It still hears them."""
    master, others = await context.nodes()
    for node in others:
        master.host.lose(node.host)
    await context.away()
    context.cluster.network.mend()


async def server_unheard(context: PartitionContext) -> None:
    """Lose what the nodes send to a server: what it asks for happens, and it does not learn it."""
    (server, *_) = context.servers()
    for node in context.cluster.nodes:
        node.host.lose(server)
    await context.away()
    context.cluster.network.mend()


async def master_killed(context: PartitionContext) -> None:
    """Kill the master; it starts again after a while."""
    master, _ = await context.nodes()
    master.kill("redis")
    await context.away()
    master.launch("redis")


async def master_stops(context: PartitionContext) -> None:
    """Stop the master (SIGSTOP), mostly until there is another, and continue it: it takes itself for the master."""
    master, _ = await context.nodes()
    master.signal(signal.SIGSTOP)
    await context.away()
    master.signal(signal.SIGCONT)


async def failover(context: PartitionContext) -> None:
    """Tell a Sentinel to choose another master."""
    node = context.rng.choice(context.cluster.nodes)
    await node.sentinel.execute_command("SENTINEL", "FAILOVER", "everlong")


async def servers_killed(context: PartitionContext) -> None:
    """Kill every replica with SIGKILL."""
    for replica in context.cluster.replicas:
        await replica.kill()
    for replica in context.cluster.replicas:
        await context.cluster.restart(replica)


async def server_stalls(context: PartitionContext) -> None:
    """Stop a replica (SIGSTOP) until others have taken over its leases, then continue it."""
    replica = context.replica()
    replica.signal(signal.SIGSTOP)
    await asyncio.sleep(LEASE_SECONDS * context.rng.uniform(1.2, 2))
    replica.signal(signal.SIGCONT)


PARTITIONS: dict[str, Callable[[PartitionContext], Awaitable[None]]] = {
    "master parted from all": master_alone,
    "master and a server parted from the rest": master_with_one_server,
    "master parted from Redis and Sentinels, not from servers": master_from_redis,
    "a copy and two servers parted from the rest": majority_with_one_server,
    "server parted from Redis": server_from_redis,
    "server parted from the master": server_from_master,
    "nobody hears the master": master_unheard,
    "server does not hear Redis": server_unheard,
    "master killed": master_killed,
    "master stopped and continued": master_stops,
    "failover by command": failover,
    "all servers killed": servers_killed,
    "server stopped past its lease": server_stalls,
}
