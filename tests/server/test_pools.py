"""`Pool`: long work beside short work."""

from __future__ import annotations

import asyncio
import contextvars
import threading

from everlong_server.pools import Pool


async def test_it_takes_no_thread_from_others_and_keeps_the_context() -> None:
    pool, go, begun = Pool("test", 2), threading.Event(), threading.Semaphore(0)
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")
    name.set("Alice")

    def work(number: int) -> tuple[int, str, str]:
        begun.release()
        assert go.wait(30)
        return number, name.get(), threading.current_thread().name.rsplit("_", 1)[0]

    tasks = [asyncio.create_task(pool.run(work, number)) for number in range(40)]
    for _ in range(2):
        assert await asyncio.to_thread(begun.acquire, timeout=30)
    assert not begun.acquire(blocking=False), "two at once"
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "at once"), 30) == "at once"
    go.set()
    assert await asyncio.gather(*tasks) == [(number, "Alice", "test") for number in range(40)]
