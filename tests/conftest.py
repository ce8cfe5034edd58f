"""Fixtures for everything: a tiny model, and real servers with real Redis."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from everlong_server.store.redis.connection import Client, connect
from everlong_server.store.redis.embedded import EmbeddedRedis
from tests.process import Server
from tests.tinymodel import make_model

# Hypothesis tries the same examples in every run, without a time limit; --hypothesis-profile selects another profile.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")

# A process that a shell runs in the background ignores SIGINT, and so would the servers that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


COMPILING = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_sessionstart(session: pytest.Session) -> None:
    """With several workers, compile the kernels of most servers once. Otherwise the first server of each worker would compile all of them."""
    config = session.config
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        config.stash[COMPILING] = subprocess.Popen([sys.executable, "-m", "tests.compile_kernels"], cwd=config.rootpath)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Wait for the kernels. An error fails no test: the servers compile what is missing."""
    if compiling := config.stash.get(COMPILING, None):
        compiling.wait()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Turn garbage collection off while tests are collected, then freeze what was created: these million objects live until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny RMT model with random weights."""
    return make_model(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Redis for tests of the store. Each test empties it first."""
    redis = EmbeddedRedis(tmp_path_factory.mktemp("r"))
    redis.start()
    yield redis.url
    redis.stop()


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Client]:
    """A client of the test Redis, emptied."""
    client = connect(redis_url)
    await client.flushdb()
    yield client
    await client.aclose()


@pytest.fixture(scope="session")
def shared_server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server process that all tests share which do not disturb it."""
    # Without passages, so that prompts have a known number of tokens. tests/server/engine/answering/test_recall.py tests passages.
    with Server(tiny_model, tmp_path_factory.mktemp("data"), recall_passages=0) as server:
        server.start()
        yield server


@pytest.fixture(scope="session")
def own_server(shared_server: Server) -> Server:
    """The server of `server`. A package or module that needs other settings overrides it with a server of its own."""
    return shared_server


@pytest.fixture
def server(own_server: Server) -> Iterator[Server]:
    """A running server. Fails a test that leaves a Redis key which is undocumented, or lacks its expiry."""
    yield own_server
    own_server.check_keys()


@pytest.fixture
def new_server(tiny_model: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Returns a function that makes servers for one test: `new_server(max_streams=1)`. All end with the test."""
    made: list[Server] = []

    def make(model: Path = tiny_model, data: Path | None = None, **settings: object) -> Server:
        made.append(Server(model, data or tmp_path / f"data{len(made)}", **settings))
        return made[-1]

    yield make
    for server in made:
        server.stop()
