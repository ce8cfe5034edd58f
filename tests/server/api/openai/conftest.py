"""One server for all tests of OpenAI's API that do not harm it, and OpenAI's own SDK as its client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.process import Server
from tests.server.api.openai.talk import SEGMENT, TEXT, sdk
from tests.tinymodel import make_model


@pytest.fixture(scope="package")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = make_model(tmp_path_factory.mktemp("model"), segment_length=SEGMENT)
    data = tmp_path_factory.mktemp("openai")
    with Server(model, data, max_message_chars=20_000, recall_tokens=100) as server:
        server.start()
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with sdk(server) as client:
        yield client


@pytest.fixture(scope="package")
def book(own_server: Server) -> str:
    return str(own_server.read(TEXT)["id"])
