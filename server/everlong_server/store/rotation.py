"""`rotate`: encrypts everything in the store with the vault's first key, whether it is encrypted with another key or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from everlong_server.store.messages import ADDED
from everlong_server.store.redis import keys
from everlong_server.store.redis.confirmation import Confirmation
from everlong_server.store.redis.connection import Client, all_keys
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.vault import FIELDS, MESSAGES, Vault

UNFINISHED = b"unfinished"
"""The mark of a store that is encrypted only in part."""

# Replaces a value, unless it has changed. KEYS: a hash or a list. ARGV: field or index, expected value, new value
# Returns 1, or 0 if the value is not the expected one.
_EXCHANGE = """
if redis.call('TYPE', KEYS[1])['ok'] == 'list' then
  if redis.call('LINDEX', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
  redis.call('LSET', KEYS[1], ARGV[1], ARGV[3])
else
  if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return 1
"""


@dataclass(slots=True)
class RotationCounts:
    """How many values of Redis and how many blobs were encrypted again."""

    values: int = 0
    blobs: int = 0


async def has_sealable_values(redis: Client) -> bool:
    """Whether Redis stores any value that a vault encrypts."""
    for key in filter(keys.sealed, await all_keys(redis, f"{keys.PREFIX}*")):
        kind = await redis.type(key)
        if kind == b"list" or (kind == b"hash" and any(await redis.hmget(key, *FIELDS))):
            return True
    return False


async def rotate(redis: Client, blobs: Blobs, vault: Vault) -> RotationCounts:
    """Encrypt everything that is not encrypted with the vault's first key.

    Servers that have all keys may keep running, unless the store was not encrypted before. An interrupted rotation can be
    run again. Raises `VaultError`, `Damaged`, `KeyMissing` and `RedisError`.
    """
    mark = await redis.get(keys.VAULT)
    if mark is None:
        await redis.set(keys.VAULT, UNFINISHED)
    elif mark != UNFINISHED:
        vault.require(mark, empty=False)
    done = RotationCounts()
    # A server may copy an old value (by a fork, say) to a key that was visited already: repeat until nothing is left.
    while await _rotate_values(redis, vault, done):
        pass
    await _rotate_blobs(redis, blobs, done)
    await redis.set(keys.VAULT, vault.mark())
    await Confirmation(redis).confirm()  # a failover must not bring the old mark back
    return done


async def _rotate_values(redis: Client, vault: Vault, done: RotationCounts) -> bool:
    """Encrypt every value of Redis that is not encrypted with the first key. Returns whether there was any."""
    any_old = False
    async for key, field, value, purpose in _sealable_values(redis):
        used = vault.seals_with(value)
        if used == vault.first:
            continue
        any_old = True
        sealed = vault.seal(value if used is None else vault.unseal(value, purpose), purpose)
        # If a server changed the value meanwhile, that server has encrypted it.
        done.values += await redis.run_script(_EXCHANGE, [key.decode()], [field, value, sealed])
    return any_old


async def _sealable_values(redis: Client) -> AsyncIterator[tuple[bytes, str | int, bytes, str]]:
    """Yield each value that a vault encrypts: its key, its field or index, the value, and its purpose."""
    for key in filter(keys.sealed, await all_keys(redis, f"{keys.PREFIX}*")):
        kind = await redis.type(key)
        if kind == b"hash":
            for field in FIELDS:
                if (value := await redis.hget(key, field)) is not None:
                    yield key, field, value, field
            for name in map(bytes.decode, await redis.hkeys(key)):
                if name.startswith(ADDED) and (value := await redis.hget(key, name)) is not None:
                    yield key, name, value, MESSAGES
        elif kind == b"list":
            for index in range(await redis.llen(key)):
                if (value := await redis.lindex(key, index)) is not None:
                    yield key, index, value, MESSAGES


async def _rotate_blobs(redis: Client, blobs: Blobs, done: RotationCounts) -> None:
    """Encrypt every blob that is not encrypted with the first key."""
    for name in await asyncio.to_thread(blobs.names):
        had_owner = await redis.exists(owner := keys.blob_owner(name.split(".", 1)[0]))
        try:
            done.blobs += await asyncio.to_thread(blobs.reseal, name)
        except FileNotFoundError:  # deleted since it was listed
            continue
        if had_owner and not await redis.exists(owner):  # its document was deleted while the blob was written
            await blobs.delete(name)
