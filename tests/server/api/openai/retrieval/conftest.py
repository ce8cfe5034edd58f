"""One server with the embedder, for all tests of embeddings, reranking and vector stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.process import Server
from tests.server.api.openai.talk import SEGMENT
from tests.tinymodel import make_model


@pytest.fixture(scope="package")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = make_model(tmp_path_factory.mktemp("model"), segment_length=SEGMENT)
    with Server(model, tmp_path_factory.mktemp("vectors"), recall_tokens=100, embeddings="auto") as server:
        server.start()
        yield server
