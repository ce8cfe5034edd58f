"""`Scripts`: what must happen at once in Redis, as Lua. Each script checks before it writes, and stands with the noun that it is of.

The connection sends a script again whose answer was lost (`connection.connect`), so each may run twice: what it has done
the first time it tells the second time, too."""

from __future__ import annotations

from typing import Any

from redis.asyncio import RedisCluster
from redis.commands.core import AsyncScript
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError

from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.keys import FENCE

# Whoever claims says by what: the same again has the same token, and is counted once. The token stands beside it, since
# servers of before that claim leave no word.
CLAIMING = """
local function claim(what, fence, by)
  local last = redis.call('HMGET', what, 'claim', 'fence', 'attempts')
  if last[2] and last[1] == by .. ':' .. last[2] then return {last[2], last[3]} end -- sent again: its answer was lost
  local token = redis.call('INCR', fence)
  redis.call('HSET', what, 'fence', token, 'claim', by .. ':' .. token)
  return {token, redis.call('HINCRBY', what, 'attempts', 1)}
end
"""

# KEYS: what is stored, and its index, if it has one. ARGV: milliseconds that it lives or '', its member and its place in the
# index or '' and '', fields and values
STORE = """
redis.call('HSET', KEYS[1], unpack(ARGV, 4))
if ARGV[1] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
if KEYS[2] then redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2]) end
return 1
"""

_COPY_MS = 2000


class Scripts:
    """Scripts, registered with one client; called as `await scripts.run(TEXT, keys, args)`.

    What a script has written has as many copies as the client asks for (`connect`) before it is answered; if there are
    not enough, it may have been done, and the caller is told that Redis is away.
    """

    def __init__(self, redis: Client) -> None:
        self._redis = redis
        self._scripts: dict[str, AsyncScript] = {}

    async def run(self, text: str, keys: list[str], args: list[Any]) -> Any:
        """The script's result."""
        if text not in self._scripts:
            self._scripts[text] = self._redis.register_script(text)
        script = self._scripts[text]
        if not self._redis.copies:
            return await script(keys=keys, args=args)
        try:
            return await self._copied(script, keys, args)
        except NoScriptError:
            await self._redis.script_load(text)
            return await self._copied(script, keys, args)

    async def _copied(self, script: AsyncScript, keys: list[str], args: list[Any]) -> Any:
        """In one go on one connection: the copies are counted by the server that has run the script."""
        copies, where = self._redis.copies, {}
        if isinstance(self._redis, RedisCluster):
            await self._redis.initialize()
            where = {"target_nodes": self._redis.get_node_from_key(FENCE)}
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.execute_command("EVALSHA", script.sha, len(keys), *keys, *args, **where)
            # A write, so that also what was written by a sending whose answer got lost is waited for.
            pipe.execute_command("INCRBY", FENCE, 0, **where)
            pipe.execute_command("WAIT", copies, _COPY_MS, **where)
            done, *rest = await pipe.execute(raise_on_error=False)
        for result in (done, *rest):
            if isinstance(result, Exception):
                raise result
        if rest[1] < copies:
            raise RedisConnectionError(f"{rest[1]} replicas of Redis have the write, and {copies} should")
        return done


def flat(fields: dict[str, Any]) -> list[Any]:
    """Fields and values, one after the other."""
    return [part for pair in fields.items() for part in pair]
