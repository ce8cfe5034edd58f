"""Inbox: an idle device thread is told so once, and then waits on."""

from __future__ import annotations

import threading

import pytest

from everlong_server.engine.device import inbox as inbox_module
from everlong_server.engine.device.inbox import Inbox


@pytest.mark.parametrize("end", ["a request", "a wake"])
def test_a_thread_that_waits_long_is_idle_once(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "IDLE_SECONDS", 0.01)
    inbox, idle, received = Inbox(), threading.Semaphore(0), []

    def receive() -> None:
        received.append(list(inbox.receive(wait=True, on_idle=idle.release)))

    thread = threading.Thread(target=receive)
    thread.start()
    assert idle.acquire(timeout=60)
    request: object = object()
    if end == "a request":
        inbox.put(request)  # type: ignore[arg-type]
    else:
        inbox.wake()
    thread.join(60)
    assert received == [[request] if end == "a request" else []]
    assert not idle.acquire(blocking=False)


def test_a_thread_with_work_does_not_wait() -> None:
    assert list(Inbox().receive(wait=False, on_idle=pytest.fail)) == []
