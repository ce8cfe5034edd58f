"""`run_script`: runs a Lua script, for changes in Redis that must be atomic. Each script is defined next to the noun that it changes.

The client retries a script whose reply was lost (see `connection.connect`), so a script may run twice. Each script checks before
it writes: its second run changes nothing and returns the result of the first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from redis.asyncio import RedisCluster
from redis.commands.core import AsyncScript
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError

from everlong_server.store.redis.keys import FENCE
from everlong_server.store.redis.sentinels import Sentinels

# Defines `claim(hash, fence, claimant)`, which returns {fencing token, attempts}. A retry by the same claimant returns the same
# token and is not counted. The field `claim` includes the token, so that it is valid only while that token is the current one.
CLAIMING = """
local function claim(hash, fence, claimant)
  local last = redis.call('HMGET', hash, 'claim', 'fence', 'attempts')
  if last[2] and last[1] == claimant .. ':' .. last[2] then return {last[2], last[3]} end -- a retry: the reply was lost
  local token = redis.call('INCR', fence)
  redis.call('HSET', hash, 'fence', token, 'claim', claimant .. ':' .. token)
  return {token, redis.call('HINCRBY', hash, 'attempts', 1)}
end
"""

# Writes fields of a hash, and enters it in an index. KEYS: hash, and index if there is one
# ARGV: milliseconds to live or '', its member and score in the index or '' and '', fields and values
STORE = """
redis.call('HSET', KEYS[1], unpack(ARGV, 4))
if ARGV[1] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
if KEYS[2] then redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2]) end
return 1
"""

_COPY_MS = 2000
_MORE_COPIES_MS = 200
"""Milliseconds that a script waits for the copies that must exist, and for those of all other replicas."""


async def run_script(redis: Any, text: str, keys: list[str], args: list[Any]) -> Any:
    """Run a script with a client of `connect`, whose method this is, and return its result. Raises `RedisError`.

    Returns only when as many Redis replicas have the script's writes as the client demands (see `connect`) and, with Sentinel, when no
    failover is known that could lose them (see `Sentinels`). Otherwise raises a ConnectionError, although the script may have taken effect.
    """
    script: AsyncScript = redis.register_script(text)
    if not redis.copies:
        return await script(keys=keys, args=args)
    try:
        return await _run_and_wait(redis, script, keys, args)
    except NoScriptError:
        await redis.script_load(text)
        return await _run_and_wait(redis, script, keys, args)


async def _run_and_wait(redis: Any, script: AsyncScript, keys: list[str], args: list[Any]) -> Any:
    """Run the script, and wait until enough replicas have its writes and no failover is known that could lose them."""
    sentinels: Sentinels | None = redis.sentinels
    if sentinels is None:
        run = await _run_once(redis, script, keys, args)
        _require(redis, run.copies)
        return run.result
    try:
        return await _run_beside(redis, sentinels, script, keys, args)
    except RedisConnectionError:
        # Connections to a master that was replaced stay open. New ones go to the master that the Sentinels name.
        await redis.connection_pool.disconnect(inuse_connections=False)
        raise


async def _run_beside(redis: Any, sentinels: Sentinels, script: AsyncScript, keys: list[str], args: list[Any]) -> Any:
    replicas, expected = await sentinels.replicas(), sentinels.expected
    wished = replicas if expected is None else expected
    run = await _run_once(redis, script, keys, args, wished, ask=expected is not None)
    if run.copies >= replicas > 0:
        return run.result
    sentinels.missed(run.copies)
    if run.run_id is None:
        # Again, which changes nothing, to learn which Redis it runs on. Not always: that takes longer than most scripts.
        run = await _run_once(redis, script, keys, args, ask=True)
    _require(redis, run.copies)
    await sentinels.require_master(run.run_id or "")
    return run.result


def _require(redis: Any, copied: int) -> None:
    if copied < redis.copies:
        raise RedisConnectionError(f"{copied} Redis replicas have the write, {redis.copies} are required")


async def _run_once(
    redis: Any, script: AsyncScript, keys: list[str], args: list[Any], wished: int = 0, *, ask: bool = False
) -> _Run:
    """Run the script, wait for the copies that the client demands, and a little for as many as are `wished`.

    `ask`: whether to ask for the run id. All on one connection: WAIT counts the copies of that connection's writes.
    """
    where = {}
    if isinstance(redis, RedisCluster):
        await redis.initialize()
        where = {"target_nodes": redis.get_node_from_key(FENCE)}
    async with redis.pipeline(transaction=False) as pipe:
        pipe.execute_command("EVALSHA", script.sha, len(keys), *keys, *args, **where)
        # A write of its own, so that WAIT also covers the writes of an earlier run whose reply was lost.
        pipe.execute_command("INCRBY", FENCE, 0, **where)
        pipe.execute_command("WAIT", redis.copies, _COPY_MS, **where)
        if wished > redis.copies:
            pipe.execute_command("WAIT", wished, _MORE_COPIES_MS, **where)
        if ask:
            pipe.execute_command("INFO", "server", **where)
        results = await pipe.execute(raise_on_error=False)
    for result in results:
        if isinstance(result, Exception):
            raise result
    run_id = results.pop()["run_id"] if ask else None
    return _Run(results[0], results[-1], run_id)


class _Run(NamedTuple):
    """`copies`: how many replicas have the writes. `run_id`: of the Redis that ran the script; None: not asked."""

    result: Any
    copies: int
    run_id: str | None


def flat(fields: dict[str, Any]) -> list[Any]:
    """Return fields and values in one list, as HSET takes them."""
    return [part for pair in fields.items() for part in pair]
