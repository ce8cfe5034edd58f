"""`Confirmation`: whether what was read from Redis is still true, where Redis fails over (Sentinel, cluster).

A master that was cut off does not know that there is a new one, and still answers reads: without what the new master has
acknowledged, and with writes that will be lost. But no other Redis follows it any more.
"""

from __future__ import annotations

from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.keys import FENCE
from everlong_server.store.redis.shared_call import SharedCall

_NOTHING = "return 1"


class Confirmation:
    """Confirms that the Redis that answers is the master, by a write that its replicas must have (see `run_script`)."""

    def __init__(self, redis: Client) -> None:
        self._needed = bool(redis.copies)
        self._write = SharedCall(lambda: redis.run_script(_NOTHING, [FENCE], []))

    async def confirm(self) -> None:
        """Return once everything that was read before this call is confirmed. Raises `RedisError` if it cannot be.

        Calls that come while a write is on its way share the next one.
        """
        if self._needed:
            await self._write.call()
