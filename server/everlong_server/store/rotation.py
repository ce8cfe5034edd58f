"""`rotate`: seals everything that is stored with the vault's first key, whatever it is sealed with, or if it is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client, all_keys
from everlong_server.store.redis.scripts import Scripts
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.vault import FIELDS, MESSAGES, Vault

UNFINISHED = b"unfinished"
"""The mark of a store of which a part is sealed and a part is not."""

# KEYS: a hash, or a list. ARGV: field or index, value that it has, value that it is to have. Returns 1, or 0: it has another.
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
    """How many were sealed anew."""

    values: int = 0
    blobs: int = 0


async def has_sealable_values(redis: Client) -> bool:
    """Whether anything is stored that a vault would have sealed."""
    for key in filter(keys.sealed, await all_keys(redis, f"{keys.PREFIX}*")):
        kind = await redis.type(key)
        if kind == b"list" or (kind == b"hash" and any(await redis.hmget(key, *FIELDS))):
            return True
    return False


async def rotate(redis: Client, blobs: Blobs, vault: Vault) -> RotationCounts:
    """Seals what is not sealed with the first key. Servers may run meanwhile that have all keys, if what is stored was
    sealed before. What breaks off can be begun again. Raises `VaultError`, `Damaged` and `KeyMissing`.
    """
    mark = await redis.get(keys.VAULT)
    if mark is None:
        await redis.set(keys.VAULT, UNFINISHED)
    elif mark != UNFINISHED:
        vault.require(mark, empty=False)
    done = RotationCounts()
    scripts = Scripts(redis)

    async def exchange(key: bytes, place: str | int, value: bytes, what: str) -> bool:
        """Whether there was anything to do."""
        if vault.seals_with(value) == vault.first:
            return False
        plain = value if vault.seals_with(value) is None else vault.unseal(value, what)
        # One that was changed meanwhile was sealed by who changed it.
        done.values += await scripts.run(_EXCHANGE, [key.decode()], [place, value, vault.seal(plain, what)])
        return True

    async def values() -> AsyncIterator[tuple[bytes, str | int, bytes, str]]:
        """Key, place in it, value, and what it is sealed as."""
        for key in filter(keys.sealed, await all_keys(redis, f"{keys.PREFIX}*")):
            kind = await redis.type(key)
            if kind == b"hash":
                for field in FIELDS:
                    if (value := await redis.hget(key, field)) is not None:
                        yield key, field, value, field
            elif kind == b"list":
                for index in range(await redis.llen(key)):
                    if (value := await redis.lindex(key, index)) is not None:
                        yield key, index, value, MESSAGES

    # A server copies values as they are sealed (a fork, say), also to where was just looked: once more, until all is done.
    while any([await exchange(*value) async for value in values()]):
        pass
    for name in await asyncio.to_thread(blobs.names):
        there = await redis.exists(owner := keys.blob_owner(name.split(".", 1)[0]))
        try:
            done.blobs += await asyncio.to_thread(blobs.reseal, name)
        except FileNotFoundError:  # deleted since it was listed
            continue
        if there and not await redis.exists(owner):  # deleted while it was written
            await blobs.delete(name)
    await redis.set(keys.VAULT, vault.mark())
    return done
