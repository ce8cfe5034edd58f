"""`connect`: the only place that makes Redis clients: for one server, for a master found through Sentinel, for a cluster."""

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
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException
from redis.exceptions import TimeoutError as RedisTimeoutError

from everlong_server.store.redis.keys import PREFIX
from everlong_server.store.redis.scripts import run_script
from everlong_server.store.redis.sentinels import Sentinels, SentinelsOfService

# redis.asyncio.Redis or RedisCluster. Any, since their annotations are unions over sync, async, bytes and str.
Client = Any

_PORTS = {"sentinel": 26379, "cluster": 6379}


@dataclass(frozen=True, slots=True)
class Address:
    """Where Redis is. `hosts`: hosts and ports of Sentinels, or of nodes of a cluster. `service`: Sentinel's name of the
    master. `options`: further arguments for the client."""

    kind: Literal["single", "sentinel", "cluster"]
    hosts: tuple[tuple[str, int], ...] = ()
    service: str = ""
    options: tuple[tuple[str, Any], ...] = ()

    @staticmethod
    def of(url: str) -> Address:
        """Parse a URL. Raises `ValueError`, whose text never contains the password.

        `redis://`, `rediss://` and `unix://` are redis-py's own. Also `redis+sentinel://[USER:PASSWORD@]HOST:PORT,…/SERVICE[/DB]`
        and `redis+cluster://[USER:PASSWORD@]HOST:PORT,…`; with `rediss+` they use TLS.
        """
        scheme, _, rest = url.partition("://")
        transport, _, kind = scheme.partition("+")
        if scheme in ("redis", "rediss", "unix"):
            parse_url(url)
            return Address("single")
        if transport not in ("redis", "rediss") or kind not in ("sentinel", "cluster"):
            # Without "://", the "scheme" is the whole URL, with its password.
            problem = f"unknown scheme {scheme!r}" if "://" in url else "the URL begins with no scheme"
            raise ValueError(f"{problem}: use one of redis, rediss, unix, redis+sentinel, redis+cluster")
        authority, *path = rest.split("/")
        login, _, hosts = authority.rpartition("@")
        options: dict[str, Any] = {"ssl": True} if transport == "rediss" else {}
        user, _, password = login.partition(":")
        options |= {name: unquote(part) for name, part in (("username", user), ("password", password)) if part}
        service, db = ([*map(unquote, path), "", ""])[:2]
        if kind == "sentinel" and not service:
            raise ValueError(
                "the URL must have a service name after Sentinel's hosts: redis+sentinel://HOST:26379/SERVICE"
            )
        if (db and not db.isdecimal()) or len(path) > 2 or (kind == "cluster" and any(path)):
            raise ValueError(
                f"unexpected /{'/'.join(path)}: a cluster has only one database; with Sentinel the path is /SERVICE/NUMBER"
            )
        if db:
            options["db"] = int(db)
        addresses = tuple(_host(host, _PORTS[kind]) for host in hosts.split(","))
        return Address("sentinel" if kind == "sentinel" else "cluster", addresses, service, tuple(options.items()))


def _host(text: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")  # also parses [::1]:6379
    if not parts.hostname:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return parts.hostname, parts.port or port


def connect(url: str, copies: int | None = None) -> Client:
    """Return a client of the Redis at `url` (see `Address.of`). It connects when it is first used. Raises `ValueError`.

    `copies`: how many Redis replicas must have a script's writes before the script counts as done (see `run_script`). None: one
    with Sentinel or a cluster, since a failover loses what only the failed master had; else zero.

    A command is retried for about a second when the connection breaks. So a command may run twice, if only its reply was lost.
    Every script of everlong checks a version, a token or a nonce, so that its second run changes nothing.
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
    sentinel_options: dict[str, Any] = {
        name: options[name] for name in ("socket_connect_timeout", "ssl") if name in options
    }
    # No retries: all Sentinels are asked, and one that does not answer must not delay the others.
    sentinel_options |= {"socket_timeout": 2.0, "retry": Retry(NoBackoff(), 0)}
    sentinel: Any = SentinelsOfService(address.hosts, address.service, sentinel_kwargs=sentinel_options, **options)
    master: _Single = sentinel.master_for(address.service, redis_class=_Single)
    master.sentinels = sentinel.asked
    return master


def _send(send: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Wrap a connection's `send` to correct two faults of redis-py.

    A connection that was closed raises a RuntimeError (from uvloop), or an AttributeError (if another task saw the node fail and
    removed the writer). redis-py retries neither; this raises its ConnectionError instead.

    A task that is cancelled while it sends must end. redis-py sends within `asyncio.wait_for`, which on Python 3.11 swallows the
    cancellation if the sending has just finished. A loop around Redis would then never end.
    """

    @functools.wraps(send)
    async def sent(connection: Any, *args: Any, **kwargs: Any) -> None:
        task = asyncio.current_task()
        cancelled = task.cancelling() if task else 0
        try:
            await send(connection, *args, **kwargs)
            if task and task.cancelling() > cancelled:
                await connection.disconnect(nowait=True)  # nobody will read the reply
                raise asyncio.CancelledError
        except (RuntimeError, AttributeError) as error:
            if isinstance(error, AttributeError) and connection._writer is not None:
                raise
            raise RedisConnectionError("the connection was closed") from error

    return sent


# Patched in the base class, since redis-py chooses the connection class by the URL and for a cluster.
AbstractConnection.send_packed_command = _send(AbstractConnection.send_packed_command)  # type: ignore[method-assign, assignment]


class _Single(Redis):
    """A client of one server, or of the current master. `sentinels`: those that name the master."""

    copies: int
    sentinels: Sentinels | None = None
    run_script = run_script


class _Cluster(RedisCluster):
    """A client of a cluster. All keys of everlong are in one slot (`keys.PREFIX`), so scripts and pipelines work unchanged."""

    copies: int
    sentinels = None
    run_script = run_script

    async def initialize(self, *args: Any, **kwargs: Any) -> RedisCluster:
        """Fetch the layout of the cluster."""
        return await _as_connection_error(super().initialize(*args, **kwargs))

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """Execute a command on the node that has the slot now."""
        return await _as_connection_error(super().execute_command(*args, **kwargs))


async def all_keys(redis: Client, pattern: str) -> list[bytes]:
    """Return all keys that match a pattern; keys that are created or deleted meanwhile may be included or not.

    A SCAN cursor is valid for one Redis process only, and after a restart or failover it would skip keys. So the scan is
    repeated if another process answers at its end.
    """
    while True:
        run_id = await _run_id(redis)
        found = [key async for key in redis.scan_iter(pattern, count=1000)]
        if await _run_id(redis) == run_id:
            return found


async def _run_id(redis: Client) -> str:
    """Return the id of the Redis process that answers."""
    where = {}
    if isinstance(redis, RedisCluster):
        await redis.initialize()
        where = {"target_nodes": redis.get_node_from_key(PREFIX)}
    return str((await redis.info("server", **where))["run_id"])


async def _as_connection_error(work: Coroutine[Any, Any, Any]) -> Any:
    """Turn redis-py's error for a cluster that cannot be reached, which is not a RedisError, into a ConnectionError."""
    try:
        return await work
    except RedisClusterException as error:
        raise RedisConnectionError(str(error)) from error
