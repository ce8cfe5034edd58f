"""`owned_hash`: the hash that stores an object, if the tenant that asks for the object may see it."""

from __future__ import annotations

from collections.abc import Sequence

from everlong_server.store.records import is_id
from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.keys import Key


async def stored_hash(redis: Client, key: str, fields: Sequence[bytes] = ()) -> dict[bytes, bytes]:
    """Return a hash, or only those of `fields` that it has, if any are given; {} if there is none."""
    if not fields:
        return dict(await redis.hgetall(key))
    values = await redis.hmget(key, fields)
    return {field: value for field, value in zip(fields, values, strict=True) if value is not None}


async def owned_hash(
    redis: Client, tenant: str | None, key: Key, prefix: str, id: str, fields: Sequence[bytes] = ()
) -> dict[bytes, bytes]:
    """Return the hash of the object `id`; {} if there is none, or it belongs to another tenant.

    `tenant` None sees the objects of all tenants. `key`, `prefix`: of objects of this kind and of their ids. `fields`: those to fetch,
    with `tenant` among them; by default all.
    """
    stored = await stored_hash(redis, key(id), fields) if is_id(prefix, id) else {}
    owner = stored.get(b"tenant")
    return {} if owner is None or tenant not in (None, owner.decode()) else stored
