"""What the device's thread says comes to the loop in its order, and wakes it once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from everlong_server.engine.post import Post


async def test_what_is_put_in_comes_in_order_when_it_is_delivered():
    post, loop, came = Post(), asyncio.get_running_loop(), []
    for n in range(5):
        post.put(loop, came.append, n)
    await asyncio.sleep(0)
    assert came == []
    post.deliver()
    post.deliver()  # nothing is there twice
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert came == [0, 1, 2, 3, 4]


async def test_the_loop_is_woken_once():
    class Loop:
        woken = 0

        def call_soon_threadsafe(self, call: Callable[..., None], *arguments: Any) -> None:
            self.woken += 1
            call(*arguments)

        def call_soon(self, call: Callable[[Any], None], argument: Any) -> None:
            call(argument)

    post, loop, came = Post(), Loop(), []
    for n in range(5):
        post.put(loop, came.append, n)  # type: ignore[arg-type]
    post.deliver()
    assert (came, loop.woken) == ([0, 1, 2, 3, 4], 1)


async def test_a_loop_that_has_closed_does_not_keep_others_from_theirs():
    closed = asyncio.new_event_loop()
    closed.close()
    post, loop, came = Post(), asyncio.get_running_loop(), []
    for to in (loop, closed, loop):
        post.put(to, came.append, to)
    post.deliver()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert came == [loop, loop]


async def test_several_threads_deliver_what_one_puts_in_in_its_order():
    post, loop, came, done = Post(), asyncio.get_running_loop(), [], threading.Event()

    def deliver() -> None:
        while not done.is_set():
            post.deliver()

    threads = [threading.Thread(target=deliver) for _ in range(3)]
    for thread in threads:
        thread.start()
    for n in range(3000):
        post.put(loop, came.append, n)
        if n % 100 == 0:
            await asyncio.sleep(0)
    done.set()
    for thread in threads:
        thread.join()
    post.deliver()
    while len(came) < 3000:
        await asyncio.sleep(0)
    assert came == list(range(3000))


async def test_a_call_that_fails_keeps_no_other_from_its_own():
    post, loop, came, failed = Post(), asyncio.get_running_loop(), [], []
    loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
    for call in (came.append, [].remove, came.append):
        post.put(loop, call, 7)
    post.deliver()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert came == [7, 7]
    assert [type(error) for error in failed] == [ValueError]
