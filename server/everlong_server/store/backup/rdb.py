"""Snapshots of a whole Redis: `snapshot` takes one while Redis serves, as a Redis replica does; `loaded` starts a Redis with one."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis as blocking
from redis.asyncio import RedisCluster

from everlong_server.store.backup.running import BackupError
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.embedded import redis_server

_SILENCE_SECONDS = 60.0  # Redis sends a byte at least every 10 seconds while it prepares a snapshot
_LOAD_SECONDS = 600.0
_PIECE = 1 << 20


def database(redis: Client) -> int:
    """Return the number of the database that has everlong's keys. A cluster has one."""
    return 0 if isinstance(redis, RedisCluster) else int(redis.connection_pool.connection_kwargs.get("db") or 0)


async def snapshot(redis: Client) -> AsyncIterator[bytes]:
    """Yield the content of an RDB file: everything that Redis holds at one moment. Raises `BackupError`."""
    connection = await _connection(redis)
    try:
        await connection.send_command("SYNC")
        async for data in _payload(connection._reader):
            yield data
    except (OSError, EOFError, TimeoutError) as error:
        raise BackupError(
            f"the connection to Redis broke during the snapshot: {type(error).__name__} {error}"
        ) from None
    finally:
        await connection.disconnect(nowait=True)  # it is a replica's connection now


async def _connection(redis: Client) -> Any:
    """Return a new connection to the Redis that has everlong's keys."""
    if isinstance(redis, RedisCluster):
        await redis.initialize()
        node: Any = redis.get_node_from_key(keys.FENCE)
        connection: Any = node.connection_class(**node.connection_kwargs)
    else:
        pool = redis.connection_pool
        connection = pool.make_connection()
    await connection.connect()
    return connection


async def _payload(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the snapshot that Redis sends after SYNC: `$SIZE`, or `$EOF:` and 40 bytes that also end it."""
    line = b""
    while not line.strip():
        async with asyncio.timeout(_SILENCE_SECONDS):
            line = await reader.readline()
        if not line:
            raise EOFError("Redis closed it")
    if not line.startswith(b"$"):
        raise BackupError(
            f"Redis refuses SYNC, which a backup needs: {line.decode(errors='replace').strip()[:200]}. Back up Redis with the "
            "tools of its host, and then the blob store"
        )
    size = line[1:].strip()
    mark = size.removeprefix(b"EOF:") if size.startswith(b"EOF:") else None
    left, held = (0, b"") if mark else (int(size), b"")
    while mark or left:
        async with asyncio.timeout(_SILENCE_SECONDS):
            data = await reader.read(_PIECE if mark else min(left, _PIECE))
        if not data:
            raise EOFError("Redis closed it")
        if mark is None:
            left -= len(data)
            yield data
            continue
        held += data
        if held.endswith(mark):
            yield held[: -len(mark)]
            return
        yield held[: -len(mark)]
        held = held[-len(mark) :]


@contextlib.contextmanager
def loaded(folder: Path, filename: str) -> Iterator[str]:
    """Yield the URL of a temporary Redis with the content of an RDB file. Raises `BackupError` and `EmbeddedRedisError`."""
    # A socket's path must be short, and the folder's may be long.
    with tempfile.TemporaryDirectory(prefix="everlong-") as short, (Path(short) / "log").open("w+b") as log:
        socket = Path(short) / "redis.sock"
        process = subprocess.Popen(
            [
                redis_server(), "--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700", "--dir", str(folder),
                "--dbfilename", filename, "--appendonly", "no", "--save", "", "--daemonize", "no",
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            _wait(process, socket, Path(log.name))
            yield f"unix://{quote(str(socket))}"
        finally:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    """Wait until Redis has loaded its file."""
    deadline = time.monotonic() + _LOAD_SECONDS
    with blocking.Redis(unix_socket_path=str(socket)) as client:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                client.ping()
                return
            except blocking.exceptions.RedisError:  # not listening yet, or loading
                time.sleep(0.02)
    raise BackupError(
        f"{redis_server()} cannot load the backup's Redis data. If it is older than the Redis of the backup, install that version or "
        f"a newer one. The end of its log: {log.read_text(errors='replace')[-300:]}"
    )
