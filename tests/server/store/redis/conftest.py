"""A Redis server of a test's own, which the test can kill."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from everlong_lab.harness.ports import free_port
from everlong_server.store.redis.embedded import redis_server
from tests.process import wait_for


class OwnRedis:
    """A Redis server of the test's own, on a port, with its append-only file."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._command = [
            redis_server(), "--port", str(self.port), "--dir", str(folder), "--appendonly", "yes", "--appendfsync", "always", "--save", "",
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)

        def answers() -> bool:
            with contextlib.suppress(redis.RedisError):
                return bool(redis.Redis(port=self.port).ping())
            return False

        wait_for(answers)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[OwnRedis]:
    server = OwnRedis(tmp_path)
    server.start()
    yield server
    server.kill()
