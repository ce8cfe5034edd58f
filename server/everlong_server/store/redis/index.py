"""The indexes that list a tenant's documents and sessions: sorted sets of ids by creation time."""

from __future__ import annotations

from collections.abc import Sequence

from everlong_server.errors import NotFound
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.keys import Key

# Removes an id from an index. Keeps its score for an hour, so that a client can delete what it lists page by page and still
# continue after a deleted id.
REMOVE_FROM_INDEX = """
local function take_out(index, id, deleted)
  local place = redis.call('ZSCORE', index, id)
  if place then redis.call('SET', deleted, place, 'EX', 3600) end
  redis.call('ZREM', index, id)
end
"""


async def page(redis: Client, index: str, limit: int, after: str | None) -> tuple[list[str], bool]:
    """Return at most `limit` ids of an index, newest first, and whether more follow.

    `after`: the id to continue after; it may have been deleted within the last hour. Raises `NotFound` if it is unknown.
    """
    start = 0
    if after is not None:
        rank = await redis.zrevrank(index, after)
        start = await _rank_after_deleted(redis, index, after) if rank is None else int(rank) + 1
    members = await redis.zrevrange(index, start, start + limit)
    return [member.decode() for member in members[:limit]], len(members) > limit


async def stored_page(
    redis: Client, index: str, key: Key, limit: int, after: str | None
) -> tuple[list[dict[bytes, bytes]], bool]:
    """Return a page of the index as the objects' hashes. `key`: makes the key of a hash from an id. Skips objects that no longer exist."""
    ids, more = await page(redis, index, limit, after)
    async with redis.pipeline(transaction=False) as pipe:
        for id in ids:
            pipe.hgetall(key(id))
        return [stored for stored in await pipe.execute() if stored], more


async def _rank_after_deleted(redis: Client, index: str, after: str) -> int:
    score = await redis.get(keys.deleted(index, after))
    if score is None:
        raise _unknown(after)
    newer = await redis.zcount(index, f"({score.decode()}", "+inf")
    same_score = await redis.zrangebyscore(index, score, score)  # Redis orders these by id
    return int(newer) + sum(member > after.encode() for member in same_score)


async def merged_page(redis: Client, indexes: Sequence[str], limit: int, after: str | None) -> tuple[list[str], bool]:
    """Return a page of several indexes together, like `page`."""
    if len(indexes) == 1:
        return await page(redis, indexes[0], limit, after)
    last = None if after is None else (await _score(redis, indexes, after), after.encode())
    found: list[tuple[float, bytes]] = []
    for index in indexes:
        below = "+inf" if last is None else f"({last[0]!r}"
        members = await redis.zrevrangebyscore(index, below, "-inf", start=0, num=limit + 1, withscores=True)
        found += [(float(score), member) for member, score in members]
        if last is not None:  # Redis orders ids with the same score by their bytes
            found += [(last[0], id) for id in await redis.zrangebyscore(index, last[0], last[0]) if id < last[1]]
    found.sort(reverse=True)
    return [id.decode() for _, id in found[:limit]], len(found) > limit


async def _score(redis: Client, indexes: Sequence[str], id: str) -> float:
    """Return the score that an id has, or had before its deletion, in one of the indexes. Raises `NotFound`."""
    for index in indexes:
        for score in (await redis.zscore(index, id), await redis.get(keys.deleted(index, id))):
            if score is not None:
                return float(score)
    raise _unknown(id)


def _unknown(after: str) -> NotFound:
    return NotFound(f"`after`: no object has the id {after!r}; pass the last id of the previous page", param="after")
