"""Fixtures for everything: a tiny model, and real servers with real Redis."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from everlong_server.store.redis.connection import Client, connect
from everlong_server.store.redis.embedded import EmbeddedRedis
from tests.process import Server
from tests.tinymodel import make_model

# The same examples each time, however long each takes here; pytest's --hypothesis-profile chooses others.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")

# A shell lets what it runs in the background ignore interrupts, and so would all that is started, and interrupted, here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny RMT with random weights."""
    return make_model(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis without a server, for tests of the store; each begins by emptying it."""
    redis = EmbeddedRedis(tmp_path_factory.mktemp("r"))
    redis.start()
    yield redis.url
    redis.stop()


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Client]:
    """A client of it, with nothing there."""
    client = connect(redis_url)
    await client.flushdb()
    yield client
    await client.aclose()


@pytest.fixture(scope="session")
def shared_server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server process for all tests that do not harm it."""
    # Without passages, so that a prompt's length is known to the token; tests/server/engine/answering/test_recall.py is about these.
    with Server(tiny_model, tmp_path_factory.mktemp("data"), recall_passages=0) as server:
        server.start()
        yield server


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """The shared server. Fails a test that leaves a key behind that is not documented, or should expire and does not."""
    yield shared_server
    shared_server.check_keys()


@pytest.fixture
def new_server(tiny_model: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Makes servers of the test's own: `new_server(max_streams=1)`; all end with the test."""
    made: list[Server] = []

    def make(model: Path = tiny_model, data: Path | None = None, **settings: object) -> Server:
        made.append(Server(model, data or tmp_path / f"data{len(made)}", **settings))
        return made[-1]

    yield make
    for server in made:
        server.stop()
