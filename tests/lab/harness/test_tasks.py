"""Tasks for the duration of a context."""

from __future__ import annotations

import asyncio

import pytest

from everlong_lab.harness.tasks import running


async def test_tasks_are_cancelled_at_the_end_of_the_context() -> None:
    ended = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async with running(forever(), forever()):
        await asyncio.sleep(0)
    assert ended == [True, True]


async def test_a_task_that_fails_ends_the_context() -> None:
    async def failing() -> None:
        raise RuntimeError("refused")

    with pytest.raises(RuntimeError, match="refused"):
        async with running(failing()):
            await asyncio.Event().wait()
