"""Tools in Anthropic's form, with Anthropic's SDK and a tiny model that has a tool format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, beta_tool

from tests.process import Server
from tests.server.api.anthropic.conftest import sdk
from tests.server.api.anthropic.test_messages import answer, document, user, words
from tests.server.api.openai.tools.talk import CHAT_TOOLS, CLOCK, MODEL, WEATHER, check_call
from tests.tinymodel import make_tool_model

TOOLS = [
    {"name": each["name"], "description": each.get("description", ""), "input_schema": each["parameters"]}
    for each in (WEATHER, CLOCK)
]
QUESTION = user("How is the weather in Paris?")
NAMED = {"type": "tool", "name": "get_weather"}


@pytest.fixture(scope="module")
def tool_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = make_tool_model(tmp_path_factory.mktemp("model"))
    with Server(model, tmp_path_factory.mktemp("tools")) as server:
        server.start()
        yield server
        server.check_keys()


@pytest.fixture
def tool_client(tool_server: Server) -> Iterator[Anthropic]:
    with sdk(tool_server) as client:
        yield client


def call(client: Anthropic, *messages: Any, **more: Any) -> Any:
    given = {"model": MODEL, "max_tokens": 200, "tools": TOOLS, "tool_choice": NAMED, "extra_body": {"temperature": 0}}
    return client.messages.create(messages=list(messages), **given | more)


def result(block: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": block.id, "content": "12 degrees", **more}


def test_a_named_tool_is_called(tool_client: Anthropic, tool_server: Server) -> None:
    said = call(tool_client, QUESTION)
    (block,) = said.content
    assert (said.stop_reason, block.type, block.name) == ("tool_use", "tool_use", "get_weather")
    check_call(block.name, json.dumps(block.input))
    chat = {"model": MODEL, "messages": [QUESTION], "tools": CHAT_TOOLS, "max_tokens": 200, "temperature": 0,
            "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}  # fmt: skip
    message = tool_server.http.post("/v1/chat/completions", json=chat).json()["choices"][0]["message"]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == block.input


@pytest.mark.parametrize("content", [[result, words("And tomorrow?")], [result]])
def test_the_result_is_answered(tool_client: Anthropic, content: list[Any]) -> None:
    one = call(tool_client, QUESTION)
    (block,) = one.content
    parts = [each(block) if callable(each) else each for each in content]
    conversation = [QUESTION, answer(one.content), {"role": "user", "content": parts}]
    two = call(tool_client, *conversation, tool_choice={"type": "none"}, max_tokens=8)
    assert [each.type for each in two.content] == ["text"]
    failed = {"role": "user", "content": [result(block, is_error=True, content=[words("12 degrees")])]}
    counts = [
        tool_client.messages.count_tokens(model=MODEL, messages=messages, tools=TOOLS).input_tokens
        for messages in ([*conversation[:2], failed], [*conversation[:2], user(result(block), words(""))])
    ]
    assert counts[0] > counts[1], "the model is told that the call failed"


def test_a_stream_of_a_call(tool_client: Anthropic) -> None:
    whole = call(tool_client, QUESTION)
    with tool_client.messages.stream(
        model=MODEL, max_tokens=200, messages=[QUESTION], tools=TOOLS, tool_choice=NAMED, extra_body={"temperature": 0}
    ) as stream:
        kinds = [event.type for event in stream if event.type.startswith(("message", "content_block"))]
        final = stream.get_final_message()
    assert final.content[0].input == whole.content[0].input
    assert final.stop_reason == "tool_use"
    assert list(dict.fromkeys(kinds)) == [
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip


@pytest.mark.parametrize("cites", [False, True])
def test_blocks_follow_each_other(tool_client: Anthropic, cites: bool) -> None:
    """With any choice: each block starts after the last one has stopped, and what is streamed is the whole answer."""
    asked = user(document(citations={"enabled": cites}), words("How is the weather?"))
    given: dict[str, Any] = {"model": MODEL, "max_tokens": 60, "messages": [asked], "tools": TOOLS}
    given |= {"tool_choice": {"type": "any"}, "extra_body": {"temperature": 0}}
    whole = tool_client.messages.create(**given)
    open_block, following = None, 0
    for event in tool_client.messages.create(stream=True, **given):
        if event.type == "content_block_start":
            assert (open_block, event.index) == (None, following)
            open_block, following = event.index, following + 1
        elif event.type == "content_block_delta":
            assert event.index == open_block
        elif event.type == "content_block_stop":
            assert event.index == open_block
            open_block = None
    with tool_client.messages.stream(**given) as stream:
        final = stream.get_final_message()
    assert [block.input for block in final.content if block.type == "tool_use"] == [
        block.input for block in whole.content if block.type == "tool_use"
    ]


@beta_tool
def get_time() -> str:
    """Tells the time."""
    return "noon"


def test_the_tool_runner_goes_on_without_a_thread(tool_client: Anthropic) -> None:
    """It first asks the server to hold the conversation, which this server does not do."""
    given = {"model": MODEL, "max_tokens": 200, "messages": [QUESTION], "extra_body": {"temperature": 0}}
    runner = tool_client.beta.messages.tool_runner(
        **given, tools=[get_time], tool_choice={"type": "any"}, max_iterations=2
    )
    first, second = runner
    assert first.content[0].name == second.content[0].name == "get_time"
    assert second.usage.input_tokens + second.usage.cache_read_input_tokens > first.usage.input_tokens
    thread = {"thread": {"type": "create"}}
    with pytest.raises(anthropic.BadRequestError, match="thread: the server holds no threads") as refused:
        tool_client.beta.messages.create(**given | {"extra_body": thread})
    assert refused.value.body["error"]["details"] == {"error_code": "thread_unsupported_request"}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"tool_choice": {"type": "tool", "name": "fly"}}, "tool_choice: no function 'fly' among the tools"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice: .*name must be given with the type 'tool'"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools.1: a second tool named 'get_weather'"),
        ({"tools": [TOOLS[0] | {"input_schema": {"type": "array"}}]}, "tools.0.input_schema.type must be 'object'"),
        ({"messages": [QUESTION, answer([{"type": "tool_use", "id": "a", "name": "get_weather", "input": {}}]), user("?")]},
         "no result for the call 'a'"),
        ({"messages": [user({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}, words("?"))]},
         r"messages\.0\.content\.0\.content\.0: type must be 'text' or 'search_result'"),
        ({"system": 3}, "system: expected a string or a list of blocks"),
        ({"messages": [user({"type": "tool_result", "tool_use_id": "a"}, words("?"))]},
         "messages.0.content.0.tool_use_id: the preceding answer has no call 'a'"),
        ({"messages": [user({"type": "tool_use", "id": "a", "name": "get_weather", "input": {}}, words("?"))]},
         "messages.0.content.0: a message of the role user cannot have this block"),
    ],
)  # fmt: skip
def test_what_is_invalid_is_named(tool_client: Anthropic, change: dict[str, Any], match: str) -> None:
    messages = change.get("messages", [QUESTION])
    with pytest.raises(anthropic.BadRequestError, match=match):
        call(tool_client, *messages, **{name: value for name, value in change.items() if name != "messages"})


def test_a_model_without_a_tool_format(client: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="the model tiny-rmt has no tool format"):
        call(client, QUESTION, model="tiny-rmt")
