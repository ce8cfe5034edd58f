"""What the device's thread says comes to the loop in its order, and while it is held together."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from everlong_server.engine.device.event_loop_bridge import EventLoopBridge


async def come(came: list[Any], count: int) -> None:
    """TurnRunner of the loop until so many have come."""
    async with asyncio.timeout(30):
        while len(came) < count:
            await asyncio.sleep(0)


async def test_what_is_put_in_comes_in_its_order():
    bridge, loop, came = EventLoopBridge(), asyncio.get_running_loop(), []
    for n in range(5):
        bridge.call_soon(loop, came.append, n)
    await come(came, 5)
    assert came == [0, 1, 2, 3, 4]


async def test_what_is_held_comes_with_the_rest_or_when_it_is_delivered():
    bridge, loop, came = EventLoopBridge(), asyncio.get_running_loop(), []
    with bridge.buffered():
        bridge.call_soon(loop, came.append, 0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert came == []
        bridge.flush()
        await come(came, 1)
        bridge.call_soon(loop, came.append, 1)
        bridge.call_soon(loop, came.append, 2)
    await come(came, 3)
    assert came == [0, 1, 2]


async def test_what_was_held_comes_though_it_ends_with_an_error():
    bridge, loop, came = EventLoopBridge(), asyncio.get_running_loop(), []
    try:
        with bridge.buffered():
            bridge.call_soon(loop, came.append, 0)
            raise MemoryError
    except MemoryError:
        bridge.call_soon(loop, came.append, 1)
    await come(came, 2)
    assert came == [0, 1]


async def test_a_loop_that_has_closed_does_not_keep_others_from_theirs():
    closed = asyncio.new_event_loop()
    closed.close()
    bridge, loop, came = EventLoopBridge(), asyncio.get_running_loop(), []
    with bridge.buffered():
        for to in (loop, closed, loop):
            bridge.call_soon(to, came.append, to)
    await come(came, 2)
    assert came == [loop, loop]


async def test_a_call_that_fails_keeps_no_other_from_its_own():
    bridge, loop, came, failed = EventLoopBridge(), asyncio.get_running_loop(), [], []
    loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
    with bridge.buffered():
        for call in (came.append, [].remove, came.append):
            bridge.call_soon(loop, call, 7)
    await come(came, 2)
    assert came == [7, 7]
    assert [type(error) for error in failed] == [ValueError]


async def test_several_threads_deliver_what_one_puts_in_in_its_order():
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
    await come(came, 3000)
    assert came == list(range(3000))
