"""`Scripts`: runs Lua scripts, for changes in Redis that must be atomic. Each script is defined next to the noun that it changes.

The client retries a script whose reply was lost (see `connection.connect`), so a script may run twice. Each script checks before
it writes: its second run changes nothing and returns the result of the first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from redis.asyncio import RedisCluster
from redis.commands.core import AsyncScript
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError

from everlong_server.store.redis.connection import Client
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


class Scripts:
    """Runs scripts with one client: `await scripts.run(TEXT, keys, args)`.

    A script returns only when as many Redis replicas have its writes as the client demands (see `connect`) and, with Sentinel, when no
    failover can lose them (see `Sentinels`). Otherwise `run` raises a ConnectionError, although the script may have taken effect.
    """

    def __init__(self, redis: Client) -> None:
        self._redis = redis
        self._scripts: dict[str, AsyncScript] = {}

    async def run(self, text: str, keys: list[str], args: list[Any]) -> Any:
        """Run a script and return its result. Raises `RedisError`."""
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
        """Run the script, and wait until enough replicas have its writes and no failover can lose them."""
        sentinels: Sentinels | None = self._redis.sentinels
        if sentinels is None:
            done, copied, _ = await self._written(script, keys, args, self._redis.copies)
            self._require(copied)
            return done
        try:
            return await self._kept(sentinels, script, keys, args)
        except RedisConnectionError:
            # Connections to a master that was replaced stay open. New ones go to the master that the Sentinels name.
            await self._redis.connection_pool.disconnect(inuse_connections=False)
            raise

    async def _kept(self, sentinels: Sentinels, script: AsyncScript, keys: list[str], args: list[Any]) -> Any:
        replicas = await sentinels.replicas()
        while True:
            connected = sentinels.connected
            copies = max(self._redis.copies, replicas if connected is None else min(replicas, connected))
            done, copied, master = await self._written(script, keys, args, copies, described=connected is not None)
            self._require(copied)
            if copied >= replicas:
                sentinels.connected = None
                return done
            sentinels.connected = copied if master is None else master.replicas
            if master is not None:
                await sentinels.require_master(master.run_id)
                return done
            # Run the script again, which changes nothing, to learn which Redis it runs on.

    def _require(self, copied: int) -> None:
        if copied < self._redis.copies:
            raise RedisConnectionError(f"{copied} Redis replicas have the write, {self._redis.copies} are required")

    async def _written(
        self, script: AsyncScript, keys: list[str], args: list[Any], copies: int, *, described: bool = False
    ) -> tuple[Any, int, _Master | None]:
        """Run the script, and wait up to two seconds for copies. Returns its result, and how many replicas have the writes.

        `described`: also return which Redis it ran on. All on one connection: WAIT counts the copies of that connection's writes.
        """
        where = {}
        if isinstance(self._redis, RedisCluster):
            await self._redis.initialize()
            where = {"target_nodes": self._redis.get_node_from_key(FENCE)}
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.execute_command("EVALSHA", script.sha, len(keys), *keys, *args, **where)
            # A write of its own, so that WAIT also covers the writes of an earlier run whose reply was lost.
            pipe.execute_command("INCRBY", FENCE, 0, **where)
            pipe.execute_command("WAIT", copies, _COPY_MS, **where)
            if described:
                pipe.execute_command("ROLE")
                pipe.execute_command("INFO", "server")
            results = await pipe.execute(raise_on_error=False)
        for result in results:
            if isinstance(result, Exception):
                raise result
        done, _, copied, *rest = results
        return done, copied, _Master(len(rest[0][2]), rest[1]["run_id"]) if rest else None


class _Master(NamedTuple):
    """A Redis that took a write. `replicas`: how many were connected to it."""

    replicas: int
    run_id: str


def flat(fields: dict[str, Any]) -> list[Any]:
    """Return fields and values in one list, as HSET takes them."""
    return [part for pair in fields.items() for part in pair]
