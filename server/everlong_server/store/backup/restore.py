"""`restore`: writes a backup to an empty store, on any machine and to any kind of Redis and blob store."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
import uuid
from pathlib import Path
from typing import IO

from redis.exceptions import RedisError, ResponseError

from everlong_server.store.backup import rdb
from everlong_server.store.backup.archive import FILES, REDIS, Manifest, opened, verify
from everlong_server.store.backup.create import Meter, Say
from everlong_server.store.backup.running import BackupError
from everlong_server.store.redis import keys
from everlong_server.store.redis.confirmation import Confirmation
from everlong_server.store.redis.connection import Client, all_keys, connect
from everlong_server.store.redis.schema import RESTORING, require_readable
from everlong_server.store.texts.blobs import Blobs

_BATCH = 16
"""Keys that are copied at once. A state takes up to some tens of megabytes."""
_OWN = frozenset({keys.SCHEMA, keys.BACKUP, keys.STORE})
"""Keys that are not copied."""
_COPYING_SECONDS = 300.0
"""Seconds that replicas may take to copy what was restored. They lag after so many writes."""


async def restore(path: Path, redis: Client, blobs: Blobs, folder: Path, say: Say) -> Manifest:
    """Verify the backup `path`, write it to an empty store, and return what it contains. `folder`: for a temporary copy.

    A server that starts on the store continues as after `kill -9` at the moment of the backup. Raises `BackupError`,
    `SchemaError`, `RedisError` and `OSError`.
    """
    manifest = await asyncio.to_thread(verify, path, Meter(say, "verified"))
    require_readable(str(manifest.schema).encode())
    await _require_empty(redis, blobs)
    await redis.set(keys.SCHEMA, RESTORING)  # until everything is there, no server starts
    with tempfile.TemporaryDirectory(prefix="restore-", dir=folder) as scratch:
        meter = Meter(say, f"restoring {manifest.files} files", manifest.bytes)
        with opened(path) as contents:
            for name, content in contents:
                if name == REDIS:
                    await asyncio.to_thread(_copy, content, Path(scratch) / REDIS)
                elif name.startswith(FILES):
                    await asyncio.to_thread(blobs.put_stored, name.removeprefix(FILES), content)
                meter(manifest.members[name][0] if name in manifest.members else 0)
        with rdb.loaded(Path(scratch), REDIS) as url:
            async with contextlib.aclosing(connect(f"{url}?db={manifest.database}")) as source:
                count = await _copy_keys(source, redis)
    # An id of its own: if it was connected to the first store by mistake, it would else delete files there.
    store_id = uuid.uuid4().hex
    await asyncio.to_thread(blobs.set_store_id, store_id)
    await redis.set(keys.STORE, store_id)
    await _confirmed(redis, say)  # before a server starts, and before the command can fail with everything in place
    await redis.set(keys.SCHEMA, manifest.schema)
    await _confirmed(redis, say)
    say(f"restored {count} keys of Redis and {manifest.files} files")
    return manifest


async def _confirmed(redis: Client, say: Say) -> None:
    """Wait until the replicas have what was written. Raises `RedisError` if they do not have it after `_COPYING_SECONDS`."""
    confirmation, started = Confirmation(redis), time.monotonic()
    while True:
        try:
            return await confirmation.confirm()  # waits for some seconds itself
        except RedisError as error:
            if time.monotonic() - started > _COPYING_SECONDS:
                raise
            say(f"waiting for the replicas of Redis: {error}")
            await asyncio.sleep(1)


async def _require_empty(redis: Client, blobs: Blobs) -> None:
    if found := await all_keys(redis, f"{keys.PREFIX}*"):
        raise BackupError(
            f"Redis is not empty: it has {len(found)} keys of everlong. Restore to an empty Redis, or with another --data-dir"
        )
    if names := await asyncio.to_thread(blobs.names):
        raise BackupError(
            f"the blob store {blobs.url} is not empty: it has {len(names)} files. Restore to an empty one"
        )


def _copy(content: IO[bytes], target: Path) -> None:
    with target.open("wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)


async def _copy_keys(source: Client, target: Client) -> int:
    """Copy everlong's keys with their remaining lifetimes, and return their number."""
    names, count = [key for key in await all_keys(source, f"{keys.PREFIX}*") if key.decode() not in _OWN], 0
    for start in range(0, len(names), _BATCH):
        batch = names[start : start + _BATCH]
        async with source.pipeline(transaction=False) as pipe:
            for key in batch:
                pipe.pttl(key)
                pipe.dump(key)
            found = await pipe.execute()
        for key, ttl, value in zip(batch, found[::2], found[1::2], strict=True):
            if value is None:  # expired since
                continue
            try:
                await target.restore(key, max(0, ttl), value)
            except ResponseError as error:
                raise BackupError(
                    f"Redis refuses the key {key.decode()}: {error}. If this Redis is older than that of the backup, use that version "
                    "or a newer one"
                ) from None
            count += 1
    return count
