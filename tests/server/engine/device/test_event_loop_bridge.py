"""Calls arrive at the event loop in order and, while buffered, in batches."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from everlong_server.engine.device.event_loop_bridge import EventLoopBridge


async def arrived(came: list[Any], count: int) -> None:
    """Run the loop until `count` calls have arrived."""
    async with asyncio.timeout(30):
        while len(came) < count:
            await asyncio.sleep(0)


async def test_calls_arrive_in_order():
    bridge, loop, came = EventLoopBridge(), asyncio.get_running_loop(), []
    for n in range(5):
        bridge.call_soon(loop, came.append, n)
    await arrived(came, 5)
    assert came == [0, 1, 2, 3, 4]


async def test_buffered_calls_arrive_at_a_flush_or_at_the_end():
    bridge, loop, came = EventLoopBridge(), asyncio.get_running_loop(), []
    with bridge.buffered():
        bridge.call_soon(loop, came.append, 0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert came == []
        bridge.flush()
        await arrived(came, 1)
        bridge.call_soon(loop, came.append, 1)
        bridge.call_soon(loop, came.append, 2)
    await arrived(came, 3)
    assert came == [0, 1, 2]


async def test_buffered_calls_arrive_if_the_block_raises():
    bridge, loop, came = EventLoopBridge(), asyncio.get_running_loop(), []
    try:
        with bridge.buffered():
            bridge.call_soon(loop, came.append, 0)
            raise MemoryError
    except MemoryError:
        bridge.call_soon(loop, came.append, 1)
    await arrived(came, 2)
    assert came == [0, 1]


async def test_a_closed_loop_does_not_stop_the_calls_of_others():
    closed = asyncio.new_event_loop()
    closed.close()
    bridge, loop, came = EventLoopBridge(), asyncio.get_running_loop(), []
    with bridge.buffered():
        for to in (loop, closed, loop):
            bridge.call_soon(to, came.append, to)
    await arrived(came, 2)
    assert came == [loop, loop]


async def test_a_call_that_fails_does_not_stop_the_others():
    bridge, loop, came, failed = EventLoopBridge(), asyncio.get_running_loop(), [], []
    loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
    with bridge.buffered():
        for call in (came.append, [].remove, came.append):
            bridge.call_soon(loop, call, 7)
    await arrived(came, 2)
    assert came == [7, 7]
    assert [type(error) for error in failed] == [ValueError]


async def test_calls_arrive_in_order_if_several_threads_flush():
    bridge, loop, came, done = EventLoopBridge(), asyncio.get_running_loop(), [], threading.Event()

    def deliver() -> None:
        while not done.is_set():
            bridge.flush()

    threads = [threading.Thread(target=deliver) for _ in range(3)]
    for thread in threads:
        thread.start()
    with bridge.buffered():
        for n in range(3000):
            bridge.call_soon(loop, came.append, n)
            if n % 100 == 0:
                await asyncio.sleep(0)
        done.set()
        for thread in threads:
            thread.join()
    await arrived(came, 3000)
    assert came == list(range(3000))
