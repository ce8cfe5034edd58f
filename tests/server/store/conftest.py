"""A Redis of each module's own, which its tests can empty."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from everlong_server.store.redis.embedded import EmbeddedRedis


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="evl"))
    redis = EmbeddedRedis(folder)
    redis.start()
    yield redis.url
    redis.stop()
    shutil.rmtree(folder)
