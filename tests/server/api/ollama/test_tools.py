"""Tools in Ollama's form, with its Python client and a tiny model that has a tool format."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import ollama
import pytest

from tests.pages import Block, run_by
from tests.process import Server
from tests.server.api.openai.talk import answer, user
from tests.server.api.openai.tools.talk import CHAT_TOOLS, CLOCK, MODEL, WEATHER, check_call
from tests.tinymodel import make_tool_model

QUESTION = user("How is the weather in Paris?")
CALL = {"function": {"name": "get_weather", "arguments": {"city": "Paris", "unit": "C"}}}
TIME = {"function": {"name": "get_time", "arguments": {}}}


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = make_tool_model(tmp_path_factory.mktemp("model"))
    with Server(model, tmp_path_factory.mktemp("tools")) as server:
        server.start()
        yield server


@pytest.fixture
def client(server: Server) -> ollama.Client:
    return ollama.Client(server.url)


def calls_of(client: ollama.Client, *, stream: bool = False, predict: int = 200, seed: int = 0) -> list[Any]:
    """Return the lines of an answer to the question, with tools."""
    options = {"temperature": 2, "num_predict": predict, "seed": seed}
    said = client.chat(MODEL, [QUESTION], tools=CHAT_TOOLS, options=options, stream=stream)
    return [*said] if stream else [said]


def seed_with_calls(client: ollama.Client) -> int:
    """Return a seed with which the random model calls a tool."""
    return next(seed for seed in range(200) if calls_of(client, seed=seed)[0].message.tool_calls)


def test_a_call_and_a_stream_of_it(client: ollama.Client) -> None:
    seed = seed_with_calls(client)
    (whole,) = calls_of(client, seed=seed)
    for call in whole.message.tool_calls:
        check_call(call.function.name, json.dumps(call.function.arguments))
    *pieces, last = calls_of(client, seed=seed, stream=True)
    assert [each for piece in pieces for each in piece.message.tool_calls or []] == whole.message.tool_calls
    assert "".join(piece.message.content for piece in pieces) == whole.message.content
    assert (last.done, last.done_reason, last.message.tool_calls) == (True, whole.done_reason, None)
    assert [piece.done for piece in pieces] == [False] * len(pieces)


@pytest.mark.long
def test_the_lines_have_ids_and_numbers(client: ollama.Client, server: Server) -> None:
    """Clients of newer versions match results to calls by these."""
    seed = seed_with_calls(client)
    body = {"model": MODEL, "messages": [QUESTION], "tools": CHAT_TOOLS, "stream": False}
    body |= {"options": {"temperature": 2, "num_predict": 200, "seed": seed}}
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    first, again = (server.http.post("/api/chat", json=body, headers=headers).json() for _ in range(2))
    assert first == again
    calls = first["message"]["tool_calls"]
    assert [call["function"]["index"] for call in calls] == [*range(len(calls))]
    assert len({call["id"] for call in calls}) == len(calls)
    results = [{"role": "tool", "content": "12", "tool_call_id": call["id"]} for call in reversed(calls)]
    after = body | {"messages": [QUESTION, first["message"], *results], "tools": []}
    assert server.http.post("/api/chat", json=after).json()["done"]


@pytest.mark.long
def test_an_answer_that_is_cut_off_has_no_incomplete_call(client: ollama.Client, server: Server) -> None:
    seed = seed_with_calls(client)
    for predict in range(1, 12):
        (cut,) = calls_of(client, seed=seed, predict=predict)
        *pieces, last = calls_of(client, seed=seed, predict=predict, stream=True)
        assert cut.done_reason == last.done_reason
        for call in cut.message.tool_calls or []:
            check_call(call.function.name, json.dumps(call.function.arguments))
        assert [each for piece in pieces for each in piece.message.tool_calls or []] == (cut.message.tool_calls or [])


def counted(server: Server, *messages: Any, **more: Any) -> int:
    """Return how many tokens the model got."""
    body = {"model": MODEL, "messages": list(messages), "stream": False, "options": {"num_predict": 1}} | more
    sent = server.http.post("/api/chat", json=body)
    assert sent.status_code == 200, sent.text
    return int(sent.json()["prompt_eval_count"])


def chat_counted(server: Server, *messages: Any, **more: Any) -> int:
    """Return how many tokens the model gets for the same messages in OpenAI's form."""
    body = {"model": MODEL, "messages": list(messages), "max_tokens": 1} | more
    return int(server.http.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"])


def test_calls_and_results_in_the_history(server: Server, client: ollama.Client) -> None:
    """The model gets what it gets for the same conversation in OpenAI's form."""
    said = {"role": "assistant", "content": "I look.", "tool_calls": [CALL, TIME, CALL]}
    named = [("get_time", "noon"), ("get_weather", "12 degrees"), ("get_weather", "13 degrees and rain")]
    results = [{"role": "tool", "tool_name": name, "content": content} for name, content in named]
    ordered = [{"role": "tool", "content": named[n][1]} for n in (1, 0, 2)]
    found = {counted(server, QUESTION, said, *each, tools=CHAT_TOOLS) for each in (results, ordered)}
    calls = [
        {"id": str(n), "type": "function", "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for n, call in enumerate([CALL, TIME, CALL])
    ]  # fmt: skip
    other = [{"role": "tool", "tool_call_id": str(n), "content": named[m][1]} for n, m in enumerate((1, 0, 2))]
    assert found == {chat_counted(server, QUESTION, said | {"tool_calls": calls}, *other, tools=CHAT_TOOLS)}
    options = {"num_predict": 2}
    following = [QUESTION, said, *results, answer("It rains."), user("And tomorrow?")]
    assert client.chat(MODEL, following, tools=CHAT_TOOLS, options=options).done
    assert counted(server, QUESTION, said, *results, tools=CHAT_TOOLS) > counted(server, QUESTION, said, *results)


@pytest.mark.long
def test_python_functions_as_tools(client: ollama.Client, server: Server) -> None:
    """The client makes tools of functions, and writes "integer, string" for the type of a union."""

    def get_weather(city: str, days: int | str, unit: str | None = None) -> str:
        """Tells the weather.

        Args:
            city: the name of a city
            days: how many days
        """
        return f"{city} {days} {unit}"

    options = {"temperature": 2, "num_predict": 300}
    for seed in range(200):
        said = client.chat(MODEL, [QUESTION], tools=[get_weather], options=options | {"seed": seed})
        if said.message.tool_calls:
            break
    (call, *_) = said.message.tool_calls
    assert {"city", "days"} <= call.function.arguments.keys() <= {"city", "days", "unit"}
    assert isinstance(call.function.arguments["days"], int | str)
    sent = {
        "type": "function",
        "function": WEATHER | {"parameters": {**WEATHER["parameters"], "$defs": None, "items": None}},
    }
    assert counted(server, QUESTION, tools=[sent]) == counted(server, QUESTION, tools=[CHAT_TOOLS[0]])


@pytest.mark.long
def test_the_answer_can_be_sent_back(client: ollama.Client) -> None:
    (said,) = calls_of(client, seed=seed_with_calls(client))
    results = [{"role": "tool", "content": "12", "tool_name": call.function.name} for call in said.message.tool_calls]
    assert client.chat(MODEL, [QUESTION, said.message, *results], options={"num_predict": 4}).done


def test_the_model_says_that_it_has_tools(client: ollama.Client) -> None:
    assert client.show(MODEL).capabilities == ["completion", "tools"]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"tools": [CHAT_TOOLS[0], CHAT_TOOLS[0]]}, r"^tools\.1: a second tool named 'get_weather'"),
        ({"tools": [{"type": "web_search", "function": CLOCK}]}, r"^tools\.0\.type"),
        ({"tools": [{"type": "function", "function": CLOCK | {"parameters": {"type": "array"}}}]},
         r"^tools\.0\.function\.parameters\.type must be 'object'"),
        ({"messages": [QUESTION | {"tool_calls": [CALL]}]}, r"^messages\.0\.tool_calls: only an assistant's message"),
        ({"messages": [QUESTION, answer("") | {"tool_calls": [CALL]}, user("?")]},
         r"^messages\.2: no result for the call 'get_weather"),
        ({"messages": [QUESTION, {"role": "tool", "content": "12"}]},
         r"^messages\.1\.role: the preceding answer has no call without a result"),
        ({"messages": [QUESTION, answer("") | {"tool_calls": [CALL]}, {"role": "tool", "tool_name": "fly", "content": "12"}]},
         r"^messages\.2\.tool_name: the preceding answer has no call of 'fly' without a result"),
        ({"messages": [QUESTION, answer("") | {"tool_calls": [{"function": CALL["function"] | {"arguments": "{}"}}]}]},
         r"^messages\.1\.tool_calls\.0\.function\.arguments"),
    ],
)  # fmt: skip
def test_what_is_invalid_is_named(server: Server, change: dict[str, Any], match: str) -> None:
    body = {"model": MODEL, "messages": [QUESTION], "tools": CHAT_TOOLS, "options": {"num_predict": 4}}
    with pytest.raises(ollama.ResponseError, match=match) as refused:
        ollama.Client(server.url)._request(ollama.ChatResponse, "POST", "/api/chat", json=body | change)
    assert refused.value.status_code == 422


@pytest.mark.parametrize("block", run_by("tests/server/api/ollama/test_tools.py"), ids=str)
def test_the_program_of_the_page(block: Block, server: Server) -> None:
    code = block.code.replace("http://127.0.0.1:8080", server.url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
