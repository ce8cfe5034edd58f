"""`paired`: whether a Redis and a blob store belong together. Only then is a text of which Redis knows nothing nobody's.

One word stands in both, written when they first met. A Redis that comes back empty, or is another one, does not have it.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Collection

from redis.exceptions import ConnectionError as RedisConnectionError

from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client, all_keys
from everlong_server.store.texts.blobs import Blobs

log = logging.getLogger(__name__)


async def has_matching_store_id(redis: Client, blobs: Blobs) -> bool:
    """Whether they are, from now on if the blob store never met a Redis; says so if not. Raises `RedisError`.

    An empty folder in whose place a volume belongs is no blob store: it gets no word, so that readings wait for their texts.
    """
    try:
        written = await asyncio.to_thread(blobs.store_id)
        if written is None:
            met = await redis.exists(keys.STORE) and not await asyncio.to_thread(blobs.names)
            if met and await all_keys(redis, keys.documents("*")):
                log.error(
                    "the blob store %s is empty, and there are documents: is it mounted? Documents that are to be read wait for "
                    "it. If their texts are gone for good, delete them", blobs.url,
                )  # fmt: skip
                return False
            await redis.set(keys.STORE, uuid.uuid4().hex, nx=True)
            known = await redis.get(keys.STORE)
            await asyncio.to_thread(blobs.set_store_id, known.decode())
            return True
    except OSError as error:  # away, or full: nobody knows, so nothing is deleted
        log.warning("the blob store %s: %s: %s", blobs.url, type(error).__name__, error)
        return False
    if (known := await redis.get(keys.STORE)) is not None and known.decode() == written:
        return True
    log.error(
        "Redis does not know the blob store %s: it is empty, or another one. Nothing is deleted there. Restore Redis, or, "
        "if the texts may go, delete %s", blobs.url, blobs.STORE_ID_FILE,
    )  # fmt: skip
    return False


async def existing_owners(redis: Client, ids: Collection[str]) -> set[str]:
    """Those of `ids` that Redis has a document or an upload of. Raises `RedisError`, also if it has lost its data since they
    were paired.

    Each is asked for: a search could leave some out, and their texts would go.
    """
    async with redis.pipeline(transaction=False) as pipe:
        for id in ids:
            pipe.exists(keys.blob_owner(id))
        pipe.exists(keys.STORE)  # behind them, and of the same process
        *there, word = await pipe.execute()
    if not word:
        raise RedisConnectionError("Redis has lost its data")
    return {id for id, found in zip(ids, there, strict=True) if found}
