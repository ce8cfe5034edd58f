"""`running`: tasks for the duration of a context."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def running(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `works` within the context and cancel them at its end. The first error of one ends the context and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
            yield
            for task in tasks:
                task.cancel()
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
