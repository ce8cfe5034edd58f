"""One server for all tests of Anthropic's API that do not harm it, and Anthropic's own SDK as its client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from anthropic import Anthropic

from tests.process import Server
from tests.tinymodel import make_model


def sdk(server: Server, **options: object) -> Anthropic:
    given = {"api_key": "unused", "max_retries": 0, "timeout": 120} | options
    return Anthropic(base_url=server.url, **given)


@pytest.fixture(scope="package")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = make_model(tmp_path_factory.mktemp("model"), segment_length=128)
    with Server(model, tmp_path_factory.mktemp("anthropic"), max_message_chars=20_000, recall_tokens=100) as server:
        server.start()
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Anthropic]:
    with sdk(server) as client:
        yield client
