"""Fixtures: the clients under test, blocking and async, and the fake server."""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from everlong_client import AsyncEverlong, Everlong
from tests.client.fake_server import Fake, FakeServer


class Blocking:
    """Wraps an object of the async client as a blocking one, so that each test covers both clients."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        return (lambda *args, **kwargs: self._run(value, *args, **kwargs)) if callable(value) else self._wrap(value)

    def __enter__(self) -> Blocking:
        self._run(self._target.__aenter__)
        return self

    def __exit__(self, *error: object) -> None:
        self._run(self._target.__aexit__, *error)

    def __iter__(self) -> Iterator[Any]:
        events, end = aiter(self._target), object()
        while (event := self._run(anext, events, end)) is not end:
            yield event

    def _run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        async def call() -> Any:
            result = function(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return self._wrap(asyncio.run_coroutine_threadsafe(call(), self._loop).result(30))

    def _wrap(self, value: Any) -> Any:
        return Blocking(value, self._loop) if type(value).__module__.startswith("everlong_client.async_") else value


@pytest.fixture(scope="session")
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.fixture(scope="session")
def _server() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.stop()


@pytest.fixture
def server(_server: FakeServer) -> FakeServer:
    _server.reset()
    return _server


@pytest.fixture
def fake(server: FakeServer) -> Fake:
    return server.fake


@pytest.fixture(params=["sync", "async"])
def make(request: pytest.FixtureRequest, _loop: asyncio.AbstractEventLoop) -> Iterator[Callable[..., Any]]:
    """Makes clients of one kind: `make(url, …)`, or `make(handler=…)` where the handler returns the responses."""
    made: list[Any] = []

    def make_client(
        url: str = "http://everlong.test", *, handler: Callable[[httpx.Request], Any] | None = None, **options: Any
    ) -> Any:
        client: Any
        options.setdefault("retries", 0)  # test_retrying.py tests retries
        if request.param == "sync":
            http = httpx.Client(transport=httpx.MockTransport(handler)) if handler else None
            client = Everlong(url, http_client=http, **options)
        else:
            async_http = httpx.AsyncClient(transport=httpx.MockTransport(handler)) if handler else None
            client = Blocking(AsyncEverlong(url, http_client=async_http, **options), _loop)
        made.append(client)
        return client

    yield make_client
    for client in made:
        client.close()


@pytest.fixture
def client(make: Callable[..., Any], server: FakeServer) -> Any:
    return make(server.url)


@pytest.fixture
def session(client: Any, server: FakeServer) -> str:
    """The id of a ready session."""
    return server.fake.session([])["id"]


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """A text file."""
    path = tmp_path / "book.txt"
    path.write_text("Call me Ishmael.")
    return path


def eventually(condition: Callable[[], object], seconds: float = 10) -> None:
    """Wait until the condition holds. Fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not hold within {seconds} s"
        time.sleep(0.005)


@pytest.fixture
def closed_url() -> str:
    """An address without a server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def mute_url() -> Iterator[str]:
    """An address whose server accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        yield f"http://127.0.0.1:{mute.getsockname()[1]}"
