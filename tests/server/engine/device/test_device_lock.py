"""The lock of the device: threads get it in turn."""

from __future__ import annotations

import threading

from everlong_server.engine.device.device_lock import DeviceLock
from tests.process import wait_for


def test_threads_get_the_lock_in_the_order_in_which_they_came() -> None:
    lock, order, threads = DeviceLock(), list[int](), list[threading.Thread]()

    def work(number: int) -> None:
        with lock:
            order.append(number)

    with lock:
        for number in range(5):
            threads.append(threading.Thread(target=work, args=(number,)))
            threads[-1].start()
            wait_for(lambda: len(lock._waiting) == len(threads))
        assert order == []
    for thread in threads:
        thread.join(60)
    assert order == [0, 1, 2, 3, 4]


def test_passing_on_lets_each_waiting_thread_have_it_once() -> None:
    lock, order = DeviceLock(), list[str]()

    def work() -> None:
        with lock:
            order.append("other")

    with lock:
        assert lock.pass_on() == 0.0
        thread = threading.Thread(target=work)
        thread.start()
        wait_for(lambda: len(lock._waiting) == 1)
        assert lock.pass_on() > 0.0
        order.append("own")
        assert lock.pass_on() == 0.0
    thread.join(60)
    assert order == ["other", "own"]


def test_an_error_releases_the_lock() -> None:
    lock = DeviceLock()
    for _ in range(2):
        try:
            with lock:
                raise ValueError
        except ValueError:
            pass
