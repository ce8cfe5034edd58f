"""`back_up`: writes everything that a store holds at one moment to one file, while servers use the store."""

from __future__ import annotations

import asyncio
import importlib.metadata
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from everlong_server.store.backup import rdb
from everlong_server.store.backup.archive import FILES, REDIS, ArchiveWriter, Manifest, verify
from everlong_server.store.backup.running import marked
from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.schema import check_schema
from everlong_server.store.texts.blobs import Blobs

Say = Callable[[str], None]
_EVERY_SECONDS = 1.0


class Meter:
    """Reports the progress of one step, about every second. `total`: bytes of the step; 0 if unknown."""

    def __init__(self, say: Say, what: str, total: int = 0) -> None:
        self._say = say
        self._what = what
        self._total = total
        self._done = 0
        self._next = time.monotonic() + _EVERY_SECONDS

    def __call__(self, count: int) -> None:
        self._done += count
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_SECONDS
            of = f" of {self._total / 1e6:,.1f}" if self._total else ""
            self._say(f"{self._what}: {self._done / 1e6:,.1f}{of} MB")


async def back_up(redis: Client, blobs: Blobs, path: Path, say: Say) -> Manifest:
    """Write a backup to the new file `path`, verify it, and return what it contains.

    Its moment is that of Redis' snapshot. Files are copied afterwards, and servers delete none meanwhile (see `running`); each file
    is complete before Redis names it. Encrypted data stays encrypted. Raises `BackupError`, `SchemaError`, `RedisError` and
    `OSError`.
    """
    schema = await check_schema(redis)
    manifest = Manifest(importlib.metadata.version("everlong"), schema, rdb.database(redis), time.time())
    with ArchiveWriter(path, manifest) as archive:
        async with marked(redis):
            with tempfile.TemporaryFile(dir=path.parent) as dump:
                meter = Meter(say, "snapshot of Redis")
                async for data in rdb.snapshot(redis):
                    await asyncio.to_thread(dump.write, data)
                    meter(len(data))
                size = dump.tell()
                dump.seek(0)
                await asyncio.to_thread(archive.add, REDIS, dump, size, lambda count: None)
            say(f"snapshot of Redis: {size / 1e6:,.1f} MB")
            await asyncio.to_thread(_copy_files, blobs, archive, say)
        await asyncio.to_thread(archive.finish)
    say("verifying the backup")
    return await asyncio.to_thread(verify, path, Meter(say, "verified", manifest.bytes))


def _copy_files(blobs: Blobs, archive: ArchiveWriter, say: Say) -> None:
    """Copy all complete files of the blob store."""
    names = sorted(name for name in blobs.names() if not name.endswith(".upload"))  # those are still being converted
    meter = Meter(say, f"copying {len(names)} files")
    for name in names:
        try:
            file, size = blobs.open_stored(name)
        except FileNotFoundError:  # belongs to a document that was deleted before the snapshot
            continue
        with closing(file):
            archive.add(FILES + name, file, size, meter)
