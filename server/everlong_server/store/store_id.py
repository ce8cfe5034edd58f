"""The store ID: the same random ID in Redis and in the blob store, which shows that they belong together.

It is written when the two first meet. A Redis that was emptied or replaced does not have it. Only with matching IDs may the server
delete a text because Redis does not know it.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Collection

from redis.exceptions import ConnectionError as RedisConnectionError

from everlong_server.store.redis import keys
from everlong_server.store.redis.confirmation import Confirmation
from everlong_server.store.redis.connection import Client, all_keys
from everlong_server.store.texts.blobs import Blobs

log = logging.getLogger(__name__)

# Sets a key if it does not exist, and returns its value. KEYS: the key. ARGV: the value
_SET_ONCE = "redis.call('SET', KEYS[1], ARGV[1], 'NX') return redis.call('GET', KEYS[1])"


async def has_matching_store_id(redis: Client, blobs: Blobs) -> bool:
    """Whether Redis and the blob store have the same store ID. A new blob store gets Redis's ID. Logs a mismatch.

    An empty blob store does not get the ID if Redis has documents: its volume is probably not mounted. Readings then wait for
    their texts. Returns False also if the blob store cannot be reached. Raises `RedisError`.
    """
    try:
        written = await asyncio.to_thread(blobs.store_id)
        if written is None:
            is_emptied = await redis.exists(keys.STORE) and not await asyncio.to_thread(blobs.names)
            if is_emptied and await all_keys(redis, keys.documents("*")):
                log.error(
                    "the blob store %s is empty, but Redis lists documents: check that its disk is mounted. Unread documents are paused "
                    "until their texts are back. If the texts are lost, delete these documents", blobs.url,
                )  # fmt: skip
                return False
            known = await redis.run_script(_SET_ONCE, [keys.STORE], [uuid.uuid4().hex])
            await asyncio.to_thread(blobs.set_store_id, known.decode())
            return True
    except OSError as error:  # not reachable, or full: it is unknown whether they match, so nothing may be deleted
        log.warning("cannot use the blob store %s: %s: %s", blobs.url, type(error).__name__, error)
        return False
    if (known := await redis.get(keys.STORE)) is not None and known.decode() == written:
        return True
    log.error(
        "Redis has no record of the blob store %s: Redis was emptied, or the server is connected to a different Redis. "
        "The server deletes no text from the store until this is fixed. "
        "Restore Redis. If you no longer need the texts, delete the file %s in the store instead",
        blobs.url, blobs.STORE_ID_FILE,
    )  # fmt: skip
    return False


async def existing_owners(redis: Client, ids: Collection[str]) -> set[str]:
    """Return those of `ids` that a document, upload, file or batch in Redis has; all of them while a backup is running.

    Checks each id by itself: a SCAN could miss keys, and their texts would be deleted. Raises `RedisError`, also if Redis has
    lost its data, or is a replaced master, which lacks newer documents.
    """
    async with redis.pipeline(transaction=False) as pipe:
        for id in ids:
            pipe.exists(keys.blob_owner(id))
        pipe.exists(keys.BACKUP)  # after the owners: a backup that begins later does not contain what they lack
        pipe.exists(keys.STORE)  # last, and answered by the same Redis process
        *owner_exists, backup_runs, store_id_exists = await pipe.execute()
    if not store_id_exists:
        raise RedisConnectionError("Redis has lost its data")
    await Confirmation(redis).confirm()
    return {id for id, exists in zip(ids, owner_exists, strict=True) if exists or backup_runs}
