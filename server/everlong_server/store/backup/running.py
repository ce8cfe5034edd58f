"""The mark of a running backup in Redis. While it exists, servers delete no file from the blob store.

A backup takes a snapshot of Redis first, and copies files afterwards. A file that the snapshot needs must not vanish in
between. Servers delete a document in Redis first and then look for the mark: if they do not see it, the snapshot is taken later
and does not have the document. Files that are kept for a backup are deleted by a later sweep.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator

from redis.exceptions import RedisError

from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client

_MS = 60_000
_RENEW_SECONDS = 10

# KEYS: mark. ARGV: token, milliseconds to live, or 0 to remove the mark. Returns 1, or 0 if the mark has another token or is gone.
_RENEW = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then return redis.call('DEL', KEYS[1]) end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""


class BackupError(Exception):
    """The backup could not be made, read or restored."""


async def is_running(redis: Client) -> bool:
    """Whether a backup is running. Raises `RedisError`."""
    return bool(await redis.exists(keys.BACKUP))


@contextlib.asynccontextmanager
async def marked(redis: Client) -> AsyncIterator[None]:
    """Mark a backup as running. Raises `BackupError` if another one is, or if the mark was lost: files may be missing then."""
    token = uuid.uuid4().hex
    if not await redis.set(keys.BACKUP, token, nx=True, px=_MS):
        raise BackupError(
            "another backup of this store is running, or was killed less than a minute ago: try again later"
        )

    async def renew() -> None:
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            with contextlib.suppress(RedisError):  # the last check says whether the mark outlived this
                await redis.run_script(_RENEW, [keys.BACKUP], [token, _MS])

    renewing = asyncio.create_task(renew())
    try:
        yield
    except BaseException:
        renewing.cancel()
        with contextlib.suppress(RedisError):  # the mark expires by itself
            await redis.run_script(_RENEW, [keys.BACKUP], [token, 0])
        raise
    renewing.cancel()
    if not await redis.run_script(_RENEW, [keys.BACKUP], [token, 0]):
        raise BackupError(
            "Redis could not be reached for a minute or has lost data, so files may be missing: try again"
        )
