"""Blobs: sweeps, the store ID, and stores that are no folder."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from everlong_server.store.records import new_id
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import connect
from everlong_server.store.store_id import has_matching_store_id
from everlong_server.store.texts import blobs as blobs_module
from everlong_server.store.texts.blobs import Blobs, BlobStoreError


def test_a_store_whose_package_is_missing_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(
        BlobStoreError, match=r"EVERLONG_BLOB_URL\): cannot open a URL that begins with 's3': Install s3fs to access S3"
    ):
        Blobs("s3://bucket/documents")


@pytest.mark.parametrize("path", ["file", "file/documents"])
def test_a_folder_that_cannot_be_created_is_explained(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BlobStoreError, match=rf"EVERLONG_BLOB_URL\): the folder {tmp_path}/{path} cannot be created: "):
        Blobs(f"file://{tmp_path}/{path}")


async def test_a_sweep_takes_only_our_own_leavings(tmp_path: Path) -> None:
    blobs = Blobs(f"file://{tmp_path}")
    keep, lost = f"doc_{'a' * 32}", f"doc_{'b' * 32}"
    for name in (keep, lost, f".doc_{'c' * 32}.part", "thesis.txt", "doc_short"):
        (tmp_path / name).write_text("x")
    (tmp_path / "folder").mkdir()

    async def known(_: set[str]) -> set[str]:
        return {keep}

    assert await blobs.sweep(known, untouched=3600) == [], "somebody may be at it"
    partial = tmp_path / f".doc_{'c' * 32}.part"
    os.utime(partial, (1, 1))
    assert await blobs.sweep(known, untouched=3600) == [partial.name]
    assert await blobs.sweep(known) == [lost]
    assert {path.name for path in tmp_path.iterdir()} == {keep, "thesis.txt", "doc_short", "folder"}


async def test_a_redis_and_a_blob_store_know_each_other(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = connect(url)
    await redis.flushdb()
    one, other = Blobs(f"file://{tmp_path}/one"), Blobs(f"file://{tmp_path}/other")
    assert await has_matching_store_id(redis, one), "they meet"
    assert await has_matching_store_id(redis, one)
    assert await has_matching_store_id(redis, other), "it never met a Redis"
    assert one.store_id() == other.store_id() is not None
    assert one.names() == []
    assert await one.sweep(set_of()) == []
    await redis.flushdb()
    assert not await has_matching_store_id(redis, one)
    assert not await redis.exists(keys.STORE), "it stays another one"
    await redis.set(keys.STORE, "another")
    assert not await has_matching_store_id(redis, one)
    full = Blobs(f"file://{tmp_path}/full")

    def no_room(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(blobs_module, "_publish", no_room)
    assert not await has_matching_store_id(redis, full), "nobody knows"
    assert list((tmp_path / "full").iterdir()) == []
    await redis.aclose()


async def test_an_empty_folder_in_place_of_the_blob_store_is_none(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A volume that is not mounted. Readings wait for its texts as long as the folder has no store ID."""
    redis, blobs = connect(url), Blobs(f"file://{tmp_path}/blobs")
    await redis.flushall()
    assert await has_matching_store_id(redis, blobs)
    await write(blobs, id := new_id("doc"), b"text")
    await redis.zadd(keys.documents("ann"), {id: 1})
    (tmp_path / "blobs").rename(tmp_path / "volume")
    (tmp_path / "blobs").mkdir()
    for _ in range(2):
        assert not await has_matching_store_id(redis, blobs)
        assert blobs.store_id() is None
    assert "check that its disk is mounted" in caplog.text
    (tmp_path / "blobs").rmdir()
    (tmp_path / "volume").rename(tmp_path / "blobs")
    assert await has_matching_store_id(redis, blobs)
    # An operator who deletes the store ID of a store with texts confirms that the store is the right one.
    await redis.set(keys.STORE, "another")
    assert not await has_matching_store_id(redis, blobs)
    (tmp_path / "blobs" / Blobs.STORE_ID_FILE).unlink()
    assert await has_matching_store_id(redis, blobs)
    # Without documents in Redis, an empty store is a new one.
    await redis.delete(keys.documents("ann"))
    assert await has_matching_store_id(redis, Blobs(f"file://{tmp_path}/new"))
    await redis.aclose()


def set_of(*names: str) -> Any:
    async def known(_: set[str]) -> set[str]:
        return set(names)

    return known


async def test_a_sweep_goes_by_the_clock_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose clock is two hours ahead must not delete what another server is receiving."""

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + timedelta(hours=2)

    async def known(_: set[str]) -> set[str]:
        return set()

    monkeypatch.setattr(blobs_module, "datetime", Ahead)
    monkeypatch.setattr(time, "time", lambda: Ahead.now(UTC).timestamp())
    fresh = tmp_path / f"doc_{'a' * 32}"
    fresh.write_text("x")
    assert await Blobs(f"file://{tmp_path}").sweep(known, untouched=3600) == []
    assert list(tmp_path.iterdir()) == [fresh]


class BucketAwayError(Exception):
    """An error as remote file systems raise it: no OSError."""


class Bucket(MemoryFileSystem):  # type: ignore[misc]
    """Caches listings, like the file system for S3; each instance is another server's. `away`: it cannot be reached."""

    protocol = "everlong-bucket"
    cachable = False
    away = False

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        self._reach()
        if (found := self._ls_from_cache(path)) is None:
            found = self.dircache[path] = super().ls(path, detail=True)
        return found if detail else [entry["name"] for entry in found]

    def info(self, path: str, **kwargs: Any) -> Any:
        self._reach()
        if self._parent(path) in self.dircache and not self._ls_from_cache(path):
            raise FileNotFoundError(path)
        return super().info(path)

    def exists(self, path: str, **kwargs: Any) -> bool:
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if "r" in mode:
            self.info(path)
        self._reach()
        return super()._open(path, mode, **kwargs)

    def cat_file(self, path: str, **kwargs: Any) -> Any:
        self._reach()
        return super().cat_file(path, **kwargs)

    def _reach(self) -> None:
        if Bucket.away:
            raise BucketAwayError("no endpoint")


fsspec.register_implementation(Bucket.protocol, Bucket, clobber=True)


async def write(blobs: Blobs, name: str, text: bytes) -> None:
    writer = await blobs.create(name)
    await writer.write(text)
    await writer.commit()


async def test_what_another_server_puts_into_a_bucket_is_there(tmp_path: Path) -> None:
    one, other = (Blobs(f"{Bucket.protocol}://{tmp_path.name}") for _ in range(2))
    await write(one, first := new_id("doc"), b"text")
    assert await other.sweep(set_of(first)) == []
    await write(one, second := new_id("doc"), b"more")
    assert other.exists(second)
    with other.open(second) as file:
        assert file.read() == b"more"
    assert set(other.names()) == {first, second}


async def test_a_bucket_that_is_away_is_no_error_of_the_text(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis, blobs = connect(url), Blobs(f"{Bucket.protocol}://{tmp_path.name}")
    await redis.flushall()
    assert await has_matching_store_id(redis, blobs)
    await write(blobs, name := new_id("doc"), b"text")
    file = blobs.open(name)
    monkeypatch.setattr(Bucket, "away", True)
    for ask in (
        blobs.store_id,
        blobs.names,
        lambda: blobs.exists(name),
        lambda: blobs.open(name),
        lambda: blobs.check(name, 4, None),
    ):
        with pytest.raises(OSError, match="BucketAwayError: no endpoint"):
            ask()
    with pytest.raises(OSError, match="BucketAwayError"):
        await blobs.create(new_id("doc"))
    assert not await has_matching_store_id(redis, blobs)
    assert file.read() == b"text"
    monkeypatch.setattr(type(file._wrapped), "read", Bucket._reach)
    with pytest.raises(OSError, match="BucketAwayError"):
        file.read()
    await redis.aclose()


@pytest.mark.parametrize("url", ["file", "memory"])
async def test_a_blob_that_others_delete_too_is_gone(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = Blobs(f"file://{tmp_path}" if url == "file" else "memory://everlong-race")
    writer = await blobs.create("doc_1")
    await writer.write(b"text")
    await writer.commit()
    there = threading.Barrier(2)
    remove = blobs._fs.rm_file

    def both_at_once(path: str) -> None:
        there.wait(10)
        remove(path)

    monkeypatch.setattr(blobs._fs, "rm_file", both_at_once)
    await asyncio.gather(blobs.delete("doc_1"), blobs.delete("doc_1"))
    assert not blobs.exists("doc_1")


async def test_blobs_need_no_local_disk() -> None:
    blobs = Blobs("memory://everlong-test")
    writer = await blobs.create("doc_1")
    await writer.write(b"some text")
    await writer.commit()
    with blobs.open("doc_1", 5) as file:
        assert file.read() == b"text"
    other = await blobs.create("doc_2")
    await other.write(b"half")
    await other.abort()
    await blobs.delete("doc_1")
    with pytest.raises(FileNotFoundError):
        blobs.open("doc_2")


@pytest.mark.parametrize("folder", ["a#b", "a?b", "100%25", "[a] *"])
async def test_a_folder_may_have_any_name(tmp_path: Path, folder: str) -> None:
    blobs, name, other = Blobs(f"file://{tmp_path / folder}"), f"doc_{'a' * 32}", f"doc_{'b' * 32}"
    for blob in (name, f"{name}.tokens.1", other):
        await write(blobs, blob, b"text")
    assert {path.name for path in (tmp_path / folder).iterdir()} == {name, f"{name}.tokens.1", other}
    await blobs.delete_all(f"{name}.tokens.*")
    assert set(blobs.names()) == {name, other}
    await blobs.delete(name)
    assert blobs.names() == [other]
