"""One server whose tiny model has a tool format. `client` is the fixture of the package above."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.process import Server
from tests.server.api.openai.talk import TEXT
from tests.tinymodel import make_tool_model


@pytest.fixture(scope="package")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = make_tool_model(tmp_path_factory.mktemp("model"))
    with Server(model, tmp_path_factory.mktemp("tools")) as server:
        server.start()
        yield server


@pytest.fixture(scope="package")
def book(own_server: Server) -> str:
    return str(own_server.read(TEXT)["id"])
