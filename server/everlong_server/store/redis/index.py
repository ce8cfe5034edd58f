"""The indexes that list a tenant's documents and sessions: sorted sets of ids by creation time."""

from __future__ import annotations

from everlong_server.errors import NotFound
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client

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


async def _rank_after_deleted(redis: Client, index: str, after: str) -> int:
    score = await redis.get(keys.deleted(index, after))
    if score is None:
        raise NotFound(f"`after`: no object has the id {after!r}; pass the last id of the previous page", param="after")
    newer = await redis.zcount(index, f"({score.decode()}", "+inf")
    same_score = await redis.zrangebyscore(index, score, score)  # Redis orders these by id
    return int(newer) + sum(member > after.encode() for member in same_score)
