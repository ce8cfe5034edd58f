"""Ollama's API, with its unmodified Python client."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ollama
import pytest

from tests.pages import Block, run_by
from tests.process import Server
from tests.server.api.openai.talk import answer, user
from tests.server.tenants import MODEL, new_key
from tests.tinymodel import STORY, make_model

GREEDY = {"temperature": 0, "num_predict": 12}
TEXT = STORY.read_text()[:4_000]


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = make_model(tmp_path_factory.mktemp("model"), segment_length=128)
    data = tmp_path_factory.mktemp("ollama")
    with Server(model, data, max_message_chars=20_000, recall_tokens=100, embeddings="auto") as server:
        server.start()
        yield server


@pytest.fixture
def client(server: Server) -> ollama.Client:
    return ollama.Client(server.url)


def test_a_chat(client: ollama.Client, server: Server) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        user("Who is Alice?"),
        answer("A girl."),
        user("And the cat?"),
    ]
    said = client.chat(f"{MODEL}:latest", messages, options=GREEDY, keep_alive="5m")
    chat = {"model": MODEL, "messages": messages, "max_tokens": 12, "temperature": 0}
    other = server.http.post("/v1/chat/completions", json=chat).json()
    assert said.message.content == other["choices"][0]["message"]["content"]
    assert (said.prompt_eval_count, said.eval_count) == (
        other["usage"]["prompt_tokens"],
        other["usage"]["completion_tokens"],
    )
    assert (said.model, said.done, said.message.role) == (f"{MODEL}:latest", True, "assistant")
    assert said.done_reason == {"stop": "stop", "length": "length"}[other["choices"][0]["finish_reason"]]
    assert said.total_duration >= said.prompt_eval_duration + said.eval_duration > 0


def test_a_stream_of_lines(client: ollama.Client, server: Server) -> None:
    whole = client.chat(MODEL, [user("Who is Alice?")], options=GREEDY)
    *pieces, last = client.chat(MODEL, [user("Who is Alice?")], options=GREEDY, stream=True)
    assert "".join(piece.message.content for piece in pieces) == whole.message.content
    assert [piece.done for piece in pieces] == [False] * len(pieces)
    assert (last.done, last.message.content, last.eval_count) == (True, "", whole.eval_count)
    raw = server.http.post("/api/chat", json={"model": MODEL, "messages": [user("Hi")], "options": GREEDY})
    assert raw.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in raw.text.splitlines()]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True], "streaming is the default"


def test_generate(client: ollama.Client) -> None:
    chat = client.chat(MODEL, [{"role": "system", "content": "Be brief."}, user("Who is Alice?")], options=GREEDY)
    said = client.generate(MODEL, "Who is Alice?", system="Be brief.", options=GREEDY)
    assert said.response == chat.message.content
    streamed = [*client.generate(MODEL, "Who is Alice?", system="Be brief.", options=GREEDY, stream=True)]
    assert "".join(piece.response for piece in streamed) == said.response
    assert streamed[-1].done_reason == said.done_reason


def test_a_request_that_only_loads_the_model(client: ollama.Client) -> None:
    for said in (client.generate(MODEL), client.chat(MODEL), *client.generate(MODEL, stream=True)):
        assert (said.done, said.done_reason) == (True, "load")


def test_a_conversation_is_not_read_again(server: Server) -> None:
    book = server.read(TEXT)["id"]
    first = [user("What did Alice say?")]
    body: dict[str, Any] = {"model": MODEL, "documents": [book], "stream": False, "options": GREEDY}
    one = server.http.post("/api/chat", json=body | {"messages": first}).json()
    assert one["prompt_eval_count"] > 500, "the document is part of the prompt"
    more = [*first, one["message"], user("And then?")]
    two = server.http.post("/api/chat", json=body | {"messages": more})
    assert two.json()["prompt_eval_count"] > one["prompt_eval_count"]
    server.http.delete(f"/v1/documents/{book}")


def test_the_options(client: ollama.Client) -> None:
    whole = client.generate(MODEL, "Who is Alice?", options=GREEDY).response
    stop = whole[len(whole) // 2 :][:3]
    cut = client.generate(MODEL, "Who is Alice?", options=GREEDY | {"stop": [stop]})
    assert (cut.response, cut.done_reason) == (whole[: whole.index(stop)], "stop")
    options = {"temperature": 1, "seed": 7, "num_predict": 6, "top_k": 50, "top_p": 0.9, "min_p": 0.01, "repeat_penalty": 1.1,
               "presence_penalty": 0.1, "frequency_penalty": 0.1, "num_ctx": 4096, "mirostat": 0, "num_thread": 8}  # fmt: skip
    one, two = (client.generate(MODEL, "Who is Alice?", options=options) for _ in range(2))
    assert one.response == two.response
    assert one.eval_count <= 6
    assert client.generate(MODEL, "Who?", options=options | {"seed": 8}).response != one.response


def test_json_answers(client: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"name": {"const": "Alice"}}, "required": ["name"]}
    schema |= {"additionalProperties": False}
    said = client.chat(MODEL, [user("Who?")], format=schema, options={"temperature": 0, "num_predict": 60})
    assert json.loads(said.message.content) == {"name": "Alice"}
    free = client.generate(MODEL, "Who?", format="json", options={"temperature": 0, "num_predict": 5})
    assert free.response.lstrip().startswith("{")


def test_an_object_has_only_the_properties_that_its_format_names(client: ollama.Client) -> None:
    """As with Ollama: LlamaIndex, LiteLLM and pydantic send schemas without `additionalProperties`."""
    age = {"type": "integer", "minimum": 0, "maximum": 9}
    cat = {"type": "object", "properties": {"age": age}, "required": ["age"]}
    schema = {
        "$defs": {"Cat": cat},
        "type": "object",
        "properties": {"cat": {"$ref": "#/$defs/Cat"}, "cats": {"type": "array", "items": cat, "maxItems": 1}},
        "required": ["cat", "cats"],
    }
    for seed in range(5):
        options = {"temperature": 1.5, "num_predict": 200, "seed": seed}
        found = json.loads(client.chat(MODEL, [user("Who?")], format=schema, options=options).message.content)
        assert [found.keys(), *map(dict.keys, [found["cat"], *found["cats"]])] == [{"cat", "cats"}] + [{"age"}] * (
            1 + len(found["cats"])
        )
    open_object = schema | {"additionalProperties": {"type": "string", "maxLength": 3}}
    assert client.chat(MODEL, [user("Who?")], format=open_object, options=GREEDY).message.content


@pytest.mark.parametrize("think", [True, False, "low", "high"])
def test_models_that_do_not_think(client: ollama.Client, think: Any) -> None:
    """LiteLLM makes `think: true` of a `reasoning_effort`."""
    said = client.chat(MODEL, [user("Who?")], think=think, options=GREEDY)
    assert said.message.thinking is None
    assert said.message.content == client.chat(MODEL, [user("Who?")], options=GREEDY).message.content


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029"])
def test_a_line_end_of_unicode_does_not_end_a_line_of_the_stream(client: ollama.Client, end: str) -> None:
    """Ollama's client splits lines with httpx, which also splits at these."""
    schema = {"type": "object", "properties": {"text": {"const": f"a{end}b"}}, "required": ["text"]}
    schema |= {"additionalProperties": False}
    pieces = client.generate(MODEL, "Who?", format=schema, options={"temperature": 0, "num_predict": 60}, stream=True)
    assert json.loads("".join(piece.response for piece in pieces)) == {"text": f"a{end}b"}


def test_log_probabilities(client: ollama.Client) -> None:
    said = client.generate(MODEL, "Who?", options=GREEDY, logprobs=True, top_logprobs=2)
    assert len(said.logprobs) >= said.eval_count > 0
    assert all(each.logprob <= 0 and len(each.top_logprobs) == 2 for each in said.logprobs)
    streamed = client.generate(MODEL, "Who?", options=GREEDY, logprobs=True, top_logprobs=2, stream=True)
    assert [each for piece in streamed for each in piece.logprobs or []] == said.logprobs
    with pytest.raises(ollama.ResponseError, match=r"^options\.num_predict=1000000 "):
        client.generate(MODEL, "Who?", options={"num_predict": -1}, logprobs=True)


def test_the_models(client: ollama.Client, server: Server) -> None:
    (chat, embedding) = client.list().models
    assert chat.model == MODEL
    assert chat.digest == server.http.get("/v1/models").json()["data"][0]["fingerprint"]
    assert client.ps().models[0].model == MODEL
    shown = client.show(MODEL)
    assert shown.capabilities == ["completion"]
    assert shown.modelinfo["everlong.segment_length"] == 128
    assert client.show(embedding.model).capabilities == ["embedding"]
    assert server.http.post("/api/show", json={"name": MODEL}).json()["template"] == shown.template
    assert server.http.get("/api/version").json().keys() == {"version", "everlong"}


def test_requests_as_the_program_ollama_sends_them(server: Server) -> None:
    """Ollama's own program, in Go: it first sends HEAD, sends empty fields instead of none, and shows 12 digits of digests."""
    for path in ("/", "/api/version", "/api/tags"):
        answer = server.http.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
    for model in server.http.get("/api/tags").json()["models"]:
        assert len(model["digest"]) == 64
    empty = {"system": "", "template": "", "verbose": False, "options": None, "name": ""}
    shown = server.http.post("/api/show", json={"model": MODEL, **empty})
    assert shown.json()["capabilities"] == ["completion"]
    server.error(server.http.post("/api/show", json={"model": "", **empty}), 422, "missing_parameter")
    told = server.http.post("/api/show", json={"model": MODEL, **empty, "system": "Be brief."})
    assert "system: " in server.error(told, 422, "invalid_value")["message"]
    sent = {
        "model": MODEL,
        "prompt": "Who?",
        "suffix": "",
        "system": "",
        "template": "",
        "options": GREEDY,
        "stream": False,
    }
    more = {"truncate": True, "shift": True, "_debug_render_only": False}
    answers = [server.http.post("/api/generate", json=body).json() for body in (sent | more, sent)]
    assert answers[0]["response"] == answers[1]["response"]
    drawn = server.http.post("/api/generate", json=sent | {"_debug_render_only": True})
    assert "_debug_render_only: " in server.error(drawn, 422, "invalid_value")["message"]
    options = {"temperature": 2, "num_predict": 12, "seed": -1, "draft_num_predict": 4}
    random = {server.http.post("/api/generate", json=sent | {"options": options}).json()["response"] for _ in range(3)}
    assert len(random) > 1, "-1 is not a seed"


def test_json_as_curl_sends_it(server: Server) -> None:
    """`curl -d` calls every body a form."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    body = json.dumps({"model": MODEL, "prompt": "Who?", "stream": False, "options": GREEDY})
    answer = server.http.post("/api/generate", content=body, headers=form)
    assert answer.json()["done"], answer.text
    for path in ("/v1/chat/completions", "/v1/messages"):
        body = json.dumps({"model": MODEL, "messages": [user("Hi")], "max_tokens": 4})
        for headers in (form, {"content-type": ""}, {"content-type": "text/plain"}):
            answer = server.http.post(path, content=body, headers=headers)
            assert answer.status_code == 200, answer.text
    refused = server.http.post("/v1/chat/completions", content=b"model=a&prompt=b", headers=form)
    server.error(refused, 422, "invalid_json")


def test_embeddings(client: ollama.Client, server: Server) -> None:
    model = client.list().models[1].model
    found = client.embed(model, ["A cat sleeps.", "A kitten naps."])
    other = server.http.post(
        "/v1/embeddings", json={"model": model, "input": ["A cat sleeps.", "A kitten naps."]}
    ).json()
    assert np.allclose(found.embeddings, [each["embedding"] for each in other["data"]], atol=1e-6)
    assert found.prompt_eval_count == other["usage"]["prompt_tokens"]
    (short,) = client.embed(model, "A cat sleeps.", dimensions=8, truncate=True).embeddings
    assert len(short) == 8
    with pytest.raises(ollama.ResponseError, match="no embedding model"):
        client.embed(MODEL, "A cat")


def test_the_older_form_of_embeddings(client: ollama.Client, server: Server) -> None:
    """One text in `prompt`, one vector in `embedding`. Without a text, Ollama loads the model."""
    model = client.list().models[1].model
    (expected,) = client.embed(model, "A cat sleeps.").embeddings
    assert client.embeddings(model, "A cat sleeps.", options={"num_ctx": 512}, keep_alive="5m").embedding == expected
    assert client.embeddings(f"{model}:latest", "A cat sleeps.").embedding == expected
    assert list(client.embeddings(model).embedding) == list(client.embeddings(model, "").embedding) == []
    for empty in ("", []):
        assert list(client.embed(model, empty).embeddings) == []
    for path, body in (("/api/embeddings", {"prompt": ""}), ("/api/embed", {"input": ""})):
        refused = server.http.post(path, json={"model": MODEL, **body})
        assert "no embedding model" in server.error(refused, 404, "model_not_found")["message"]
    with pytest.raises(ollama.ResponseError, match=r"^prompt has \d+ tokens, the limit is 8192"):
        client.embeddings(model, "x " * 10_000)


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_p": 0}, {"top_k": 1}),
        ({"repeat_penalty": 0}, {"repeat_penalty": 1}),
        ({"top_k": -1, "repeat_penalty": 0.0, "min_p": 0}, {}),
        ({"repeat_penalty": 0.005}, {}),
    ],
    ids=str,
)
def test_values_that_switch_an_option_off(client: ollama.Client, options: dict[str, Any], same: dict[str, Any]) -> None:
    warm = {"temperature": 1.5, "seed": 7, "num_predict": 12}
    one, two = (client.generate(MODEL, "Who is Alice?", options=warm | each).response for each in (options, same))
    assert one == two


@pytest.mark.parametrize("stream", [False, True])
def test_a_retry_gets_the_first_answer(server: Server, stream: bool) -> None:
    body = {"model": MODEL, "messages": [user("Hi")], "stream": stream, "options": {"temperature": 1, "num_predict": 8}}
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    answers = [server.http.post("/api/chat", json=body, headers=headers) for _ in range(2)]
    one, two = (
        "".join(json.loads(line)["message"]["content"] for line in answer.text.splitlines()) for answer in answers
    )
    assert one == two
    other = server.http.post("/api/chat", json=body | {"messages": [user("Bye")]}, headers=headers)
    assert (other.status_code, other.json().keys()) == (422, {"error"})


@pytest.mark.parametrize(
    ("change", "status", "match"),
    [
        ({"model": "llama3"}, 404, "no model 'llama3'"),
        ({"options": {"num_predict": -3}}, 422, "options.num_predict: .* got -3"),
        ({"options": {"mirostat": 2}}, 422, "options.mirostat"),
        ({"options": {"warmth": 2}}, 422, "options.warmth: unknown field"),
        ({"options": {"temperature": 3}}, 422, "options.temperature: .* less than or equal to 2, got 3"),
        ({"messages": [user("Hi") | {"images": ["aGk="]}]}, 422, r"^messages\.0\.images: images are not supported"),
        (
            {"tools": [{"type": "function", "function": {"name": "f"}}]},
            422,
            f"^tools: the model {MODEL} has no tool format",
        ),
        ({"messages": [answer("Hi")]}, 422, "messages.0.role: the last message must be the user's"),
        ({"messages": [user("Hi"), answer("Hello")]}, 422, "messages.1.role: the last message must be the user's"),
        ({"messages": [user("x" * 20_001)]}, 413, "messages.0.content has 20001 characters"),
        ({"think": "much"}, 422, "think"),
        ({"format": "xml"}, 422, "format"),
        ({"format": {"type": "nothing"}}, 422, "format: "),
        ({"documents": ["doc_none"]}, 404, "documents.0: no file 'doc_none'"),
    ],
)
def test_what_is_invalid_is_named(server: Server, change: dict[str, Any], status: int, match: str) -> None:
    body = {"model": MODEL, "messages": [user("Hi")], "options": GREEDY}
    with pytest.raises(ollama.ResponseError, match=match) as refused:
        ollama.Client(server.url)._request(ollama.ChatResponse, "POST", "/api/chat", json=body | change)
    assert refused.value.status_code == status


@pytest.mark.parametrize("change", [{"raw": True}, {"template": "{{ .Prompt }}"}, {"suffix": "end"}, {"context": [1]}])
def test_what_generate_refuses(client: ollama.Client, change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(ollama.ResponseError, match=f"{name}: "):
        client.generate(MODEL, "Hi", **change)


def test_a_long_prompt_is_named(client: ollama.Client) -> None:
    for field in ("prompt", "system"):
        with pytest.raises(ollama.ResponseError, match=f"^{field} has 20001 characters") as refused:
            client.generate(MODEL, **{"prompt": "Hi", field: "x" * 20_001})
        assert refused.value.status_code == 413


def test_other_paths_have_its_form_of_errors(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="no such path"):
        client.pull("llama3")


def test_keys(tiny_model: Path, tmp_path: Path) -> None:
    with Server(tiny_model, tmp_path, auth="keys", recall_passages=0) as locked:
        locked.start()
        headers = {"Authorization": f"Bearer {new_key(locked, 'alice')}"}
        assert ollama.Client(locked.url, headers=headers).generate(MODEL, "Hi", options=GREEDY).done
        with pytest.raises(ollama.ResponseError, match="API key") as refused:
            ollama.Client(locked.url).generate(MODEL, "Hi")
        assert refused.value.status_code == 401


@pytest.mark.parametrize("block", run_by("tests/server/api/ollama/test_ollama.py"), ids=str)
def test_the_programs_of_the_page(block: Block, server: Server) -> None:
    code = block.code.replace("http://127.0.0.1:8080", server.url).replace("smollm2-135m-reader", MODEL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    for document in server.http.get("/v1/documents").json()["data"]:
        server.http.delete(f"/v1/documents/{document['id']}")
