"""`Inbox`: the requests on their way to the device thread."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator

from everlong_models.freed_memory import release_memory
from everlong_server.engine.device.requests import Request, RequestFailed

IDLE_SECONDS = 5.0
"""Seconds without a request after which the device thread is idle."""


class Inbox:
    """A queue from any thread to the device thread. Once it is closed, it fails every request. Thread-safe."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._closed: BaseException | None = None

    @property
    def closed(self) -> bool:
        """Whether requests are failed instead of queued."""
        return self._closed is not None

    def put(self, request: Request) -> None:
        """Queue a request, or fail it if the inbox is closed."""
        if self._closed is not None:
            request.sink(RequestFailed(self._closed))
            return
        self._queue.put(request)
        if self._closed is not None:  # closed between the check and the put: the device thread may not see the request
            self.fail_all()

    def wake(self) -> None:
        """End the wait of `receive`."""
        self._queue.put(None)

    def receive(self, *, wait: bool, on_idle: Callable[[], None] = release_memory) -> Iterator[Request]:
        """Yield all requests that have arrived. `wait`: if there is none, wait for one or for `wake`, and call `on_idle` once after
        `IDLE_SECONDS`."""
        while wait or not self._queue.empty():
            try:
                request = self._queue.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                on_idle()
                request = self._queue.get()
            wait = False
            if request is not None:
                yield request

    def close(self, reason: BaseException) -> None:
        """Fail all further requests with `reason`."""
        self._closed = reason

    def fail_all(self) -> None:
        """Fail the requests that a closed inbox still holds."""
        assert self._closed is not None
        while True:
            try:
                request = self._queue.get_nowait()
            except queue.Empty:
                return
            if request is not None:
                request.sink(RequestFailed(self._closed))
