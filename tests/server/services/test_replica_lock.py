"""Lock files: a dead server of this machine is known at once, and a living one is never taken for dead."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from everlong_server.services.replica_lock import ReplicaLock
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client


def die(folder: Path) -> None:
    ReplicaLock(folder, "dead").__enter__()  # ends without __exit__


async def alive(redis: Client, *replicas: str) -> list[str]:
    return [replica for replica in replicas if await redis.exists(keys.replica(replica))]


@pytest.mark.long
async def test_only_dead_servers_lose_their_leases(redis: Client, tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=die, args=(tmp_path,))
    process.start()
    process.join()
    folder = tmp_path / "replicas"
    (folder / "another-boot.elsewhere").touch()
    (folder / "another-boot.gone").touch()
    for replica in ("dead", "living", "elsewhere"):
        await redis.set(keys.replica(replica), "model", px=60_000)
    with ReplicaLock(tmp_path, "living"), ReplicaLock(tmp_path, "new") as new:
        await new.end_leases_of_the_dead(redis)
        assert await alive(redis, "dead", "living", "elsewhere") == ["living", "elsewhere"]
        assert {file.name.partition(".")[2] for file in folder.iterdir()} == {"living", "new", "elsewhere"}
    assert {file.name.partition(".")[2] for file in folder.iterdir()} == {"elsewhere"}


async def test_a_folder_that_cannot_be_written_is_no_error(
    redis: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "replicas").touch()  # a file in its place
    with caplog.at_level("INFO"), ReplicaLock(tmp_path, "new") as lock:
        await lock.end_leases_of_the_dead(redis)
    assert "cannot lock a file" in caplog.text
