"""`admitted`: makes room for one answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from everlong_server.engine.device.engine import Engine
from everlong_server.store.tenants.quota import Quota, TokenCost


@asynccontextmanager
async def admitted(engine: Engine, quota: Quota) -> AsyncIterator[TokenCost]:
    """Admit one answer for the length of the block, as one of the server's and of the tenant's. Yields the count of its tokens.

    Raises `Overloaded`, `Unavailable` and `RateLimited`.
    """
    with engine.admit():
        async with quota.stream(engine.typical_seconds) as cost:
            yield cost
