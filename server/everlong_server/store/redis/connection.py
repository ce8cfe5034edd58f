"""The one place that makes connections to Redis: to one server, to what Sentinel says is the master, to a cluster."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import AbstractConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException
from redis.exceptions import TimeoutError as RedisTimeoutError

from everlong_server.store.redis.keys import PREFIX

# redis.asyncio.Redis or RedisCluster. Their annotations are unions over sync, async, bytes and str that no caller can narrow.
Client = Any

_PORTS = {"sentinel": 26379, "cluster": 6379}


@dataclass(frozen=True, slots=True)
class Address:
    """Where Redis is. `hosts`: of some Sentinels, or of some nodes of a cluster. `service`: what Sentinel calls the
    master."""

    kind: Literal["single", "sentinel", "cluster"]
    hosts: tuple[tuple[str, int], ...] = ()
    service: str = ""
    options: tuple[tuple[str, Any], ...] = ()

    @staticmethod
    def of(url: str) -> Address:
        """`redis://`, `rediss://` and `unix://` as redis-py has them; `redis+sentinel://[USER:PASSWORD@]HOST:PORT,…/SERVICE[/DB]`;
        `redis+cluster://[USER:PASSWORD@]HOST:PORT,…`; with `rediss+` over TLS. Raises `ValueError`, without the password.
        """
        scheme, _, rest = url.partition("://")
        transport, _, kind = scheme.partition("+")
        if not kind:
            parse_url(url)
            return Address("single")
        if transport not in ("redis", "rediss") or kind not in ("sentinel", "cluster"):
            raise ValueError(f"unknown scheme {scheme!r}; there are redis, rediss, unix, redis+sentinel, redis+cluster")
        where, *path = rest.split("/")
        login, _, hosts = where.rpartition("@")
        options: dict[str, Any] = {"ssl": True} if transport == "rediss" else {}
        user, _, password = login.partition(":")
        options |= {name: unquote(part) for name, part in (("username", user), ("password", password)) if part}
        service, db = ([*map(unquote, path), "", ""])[:2]
        if kind == "sentinel" and not service:
            raise ValueError("after Sentinel's hosts the URL names the service: redis+sentinel://HOST:26379/SERVICE")
        if (db and not db.isdecimal()) or len(path) > 2 or (kind == "cluster" and any(path)):
            raise ValueError(
                f"unexpected /{'/'.join(path)}; a cluster has one database, Sentinel's are /SERVICE/NUMBER"
            )
        if db:
            options["db"] = int(db)
        found = tuple(_host(host, _PORTS[kind]) for host in hosts.split(","))
        return Address("sentinel" if kind == "sentinel" else "cluster", found, service, tuple(options.items()))


def _host(text: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")  # knows [::1]:6379
    if not parts.hostname:
        raise ValueError(f"{text!r} is no HOST:PORT")
    return parts.hostname, parts.port or port


def connect(url: str, copies: int | None = None) -> Client:
    """A client of the Redis at `url` (`Address.of`); connections are made when they are needed. Raises `ValueError`.

    `copies`: so many replicas of Redis must have what a script has written before it has an answer (`Scripts`); None: one
    where there is failover, which would lose what only the server had that is gone. A command is retried for about a second when the connection breaks. Every script of ours checks a version or a
    token, so that one that was carried out although its answer got lost is refused the second time, not repeated.
    """
    usual: dict[str, Any] = {
        "decode_responses": False,  # states are bytes
        "socket_connect_timeout": 2.0,
        "socket_timeout": 10.0,
        "health_check_interval": 15,
        "retry": Retry(ExponentialBackoff(cap=0.4, base=0.05), retries=4),
        "retry_on_error": [RedisConnectionError, RedisTimeoutError],
    }
    address = Address.of(url)
    options = usual | dict(address.options)
    client: Client
    if address.kind == "single":
        client = _Single.from_url(url, **usual)
    elif address.kind == "cluster":
        client = _Cluster(startup_nodes=[ClusterNode(*host) for host in address.hosts], **options)
    else:
        client = _master(address, options)
    client.copies = int(address.kind != "single") if copies is None else copies
    return client


def _master(address: Address, options: dict[str, Any]) -> _Single:
    asking: dict[str, Any] = {name: options[name] for name in ("socket_connect_timeout", "ssl") if name in options}
    # The next one is asked at once instead.
    asking |= {"socket_timeout": 2.0, "retry": Retry(NoBackoff(), 0)}
    sentinel: Any = Sentinel(list(address.hosts), sentinel_kwargs=asking, **options)  # type: ignore[no-untyped-call]
    return sentinel.master_for(address.service, redis_class=_Single)


def _send(send: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """`send` of a connection that was closed meanwhile. redis-py does not know what that looks like: from uvloop a
    RuntimeError; an AttributeError where another task, which saw the node gone, took the writer away.

    And a task that is cancelled while it sends ends. With Python 3.11 it would go on if it had just sent all: redis-py sends
    within `asyncio.wait_for`, which returns then as if nothing had been. Loops around Redis went on for ever."""

    @functools.wraps(send)
    async def sent(connection: Any, *args: Any, **kwargs: Any) -> None:
        task = asyncio.current_task()
        cancelled = task.cancelling() if task else 0
        try:
            await send(connection, *args, **kwargs)
            if task and task.cancelling() > cancelled:
                await connection.disconnect(nowait=True)  # nobody waits for the answer
                raise asyncio.CancelledError
        except (RuntimeError, AttributeError) as error:
            if isinstance(error, AttributeError) and connection._writer is not None:
                raise
            raise RedisConnectionError("the connection was closed") from error

    return sent


# The class that all kinds of connections have in common; which of them is made, redis-py decides by URL and cluster.
AbstractConnection.send_packed_command = _send(AbstractConnection.send_packed_command)  # type: ignore[method-assign, assignment]


class _Single(Redis):
    """One server at a time."""

    copies: int


class _Cluster(RedisCluster):
    """All keys of everlong are in one slot (`keys.PREFIX`), so everything that works on one server works here."""

    copies: int

    async def initialize(self, *args: Any, **kwargs: Any) -> RedisCluster:
        """Asks the nodes who has what."""
        return await _away(super().initialize(*args, **kwargs))

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """At the node that has the slot now."""
        return await _away(super().execute_command(*args, **kwargs))


async def all_keys(redis: Client, pattern: str) -> list[bytes]:
    """All keys of that pattern that were there all the time, of one process of Redis: where a SCAN stands means nothing to
    another, which would leave keys out. If there was another at the end, all are looked for again."""
    while True:
        process = await _process(redis)
        found = [key async for key in redis.scan_iter(pattern, count=1000)]
        if await _process(redis) == process:
            return found


async def _process(redis: Client) -> str:
    where = {}
    if isinstance(redis, RedisCluster):
        await redis.initialize()
        where = {"target_nodes": redis.get_node_from_key(PREFIX)}
    return str((await redis.info("server", **where))["run_id"])


async def _away(work: Coroutine[Any, Any, Any]) -> Any:
    """A cluster that nobody can be asked about is a Redis that is away: for redis-py it is no error of Redis."""
    try:
        return await work
    except RedisClusterException as error:
        raise RedisConnectionError(str(error)) from error
