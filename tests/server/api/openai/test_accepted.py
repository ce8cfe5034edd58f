"""Fields and items of OpenAI's API that have no effect here are accepted, as programs written for OpenAI send them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel, ValidationError

from everlong_server.api.openai.chat_schemas import CreateChatCompletion
from everlong_server.api.openai.completions.schemas import CreateCompletion
from everlong_server.api.openai.response_requests import _input
from everlong_server.api.openai.response_schemas import CountInputTokens, CreateResponse
from everlong_server.errors import NotFound
from everlong_server.store.messages import AnswerMessage
from everlong_server.store.records import Message

CHAT: list[dict[str, Any]] = [
    {"service_tier": "auto"},
    {"service_tier": "flex"},
    {"prompt_cache_retention": "24h"},
    {"prediction": {"type": "content", "content": [{"type": "text", "text": "class A: ..."}]}},
    {"modalities": ["text"]},
    *({"reasoning_effort": effort} for effort in (None, "none", "minimal", "low", "medium", "high", "xhigh", "max")),
    {"stream_options": {"include_usage": True, "include_obfuscation": False}},
    {"verbosity": "low"},
    {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}},
]
RESPONSES: list[dict[str, Any]] = [
    {"service_tier": "default"},
    {"prompt_cache_retention": "in_memory"},
    {"include": ["reasoning.encrypted_content", "web_search_call.action.sources"]},
    {"max_tool_calls": 3},
    {"text": {"verbosity": "low", "format": {"type": "text"}}},
    {"prompt_cache_options": {"mode": "implicit"}},
    {"reasoning": {}},
    *(
        {"reasoning": {"effort": effort}}
        for effort in (None, "none", "minimal", "low", "medium", "high", "xhigh", "max")
    ),
    {
        "reasoning": {
            "effort": "medium",
            "summary": "auto",
            "generate_summary": "concise",
            "context": "auto",
            "mode": "pro",
        }
    },
]


@pytest.mark.parametrize("fields", CHAT, ids=str)
def test_fields_of_a_chat(fields: dict[str, Any]) -> None:
    CreateChatCompletion.model_validate({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields})


@pytest.mark.parametrize(
    "fields",
    [
        # Vercel's AI SDK, of another model's answer
        {"reasoning_content": "Hm."},
        # LiteLLM, of an answer of this server and of another model's
        {"provider_specific_fields": {"citations": [], "evidence": []}},
        {"thinking_blocks": [{"type": "thinking", "thinking": "Hm.", "signature": "x"}]},
        # OpenRouter's clients
        {"reasoning": "Hm.", "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]},
    ],
    ids=str,
)
def test_what_programs_add_to_an_answer_that_they_send_back(fields: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", **fields}, NEXT]
    CreateChatCompletion.model_validate({"model": "m", "messages": messages})


def test_marks_of_a_cached_prefix() -> None:
    for mark in ({"cache_control": {"type": "ephemeral"}}, {"prompt_cache_breakpoint": {"mode": "explicit"}}):
        message = {"role": "user", "content": [{"type": "text", "text": "x", **mark}]}
        CreateChatCompletion.model_validate({"model": "m", "messages": [message]})


def test_the_verbosity_is_not_repeated() -> None:
    """A stored response has the same fields as before."""
    text = CreateResponse.model_validate({"input": "x", "text": {"verbosity": "low"}}).text
    assert text.model_dump() == {"format": {"type": "text"}}


def test_a_tool_with_a_long_description() -> None:
    function = {"name": "f", "description": "x" * 20_000}
    chat = {"model": "m", "messages": [NEXT], "tools": [{"type": "function", "function": function}]}
    assert CreateChatCompletion.model_validate(chat)
    assert CreateResponse.model_validate({"input": "x", "tools": [{"type": "function", **function}]})


@pytest.mark.parametrize("fields", RESPONSES, ids=str)
def test_fields_of_a_response(fields: dict[str, Any]) -> None:
    CreateResponse.model_validate({"input": "x", **fields})


def test_reasoning_when_tokens_are_counted() -> None:
    assert CountInputTokens.model_validate({"input": "x", "reasoning": {"effort": "high"}})


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CreateChatCompletion, {"model": "m", "messages": [{"role": "user", "content": "x"}]}),
        (CreateCompletion, {"model": "m", "prompt": "x"}),
        (CreateResponse, {"input": "x"}),
    ],
)
def test_values_with_which_other_servers_switch_a_parameter_off(kind: type[BaseModel], body: dict[str, Any]) -> None:
    """OpenAI takes a `top_p` of 0, for the likeliest token alone; vLLM a `top_k` of -1, for all tokens."""
    parsed: Any = kind.model_validate(body | {"top_p": 0, "top_k": -1})
    assert parsed.top_k == 0
    assert 0 < parsed.top_p < 1e-6
    for outside in ({"top_p": -0.1}, {"top_p": 1.1}, {"top_k": -2}):
        with pytest.raises(ValidationError):
            kind.model_validate(body | outside)


def test_seeds_may_be_negative() -> None:
    """A negative seed is one like any other. The sampling takes 63 bits."""
    for kind, body in (
        (CreateChatCompletion, {"model": "m", "messages": [{"role": "user", "content": "x"}]}),
        (CreateCompletion, {"model": "m", "prompt": "x"}),
        (CreateResponse, {"input": "x"}),
    ):
        assert [kind.model_validate(body | {"seed": seed}).seed for seed in (-1, 7, None)] == [2**63 - 1, 7, None]
        with pytest.raises(ValidationError):
            kind.model_validate(body | {"seed": 2**63})


class Verdict(BaseModel):
    guilty: bool


ANSWER = '{"guilty": true}'
CALL = {"name": "Verdict", "arguments": ANSWER}
TOOL = openai.pydantic_function_tool(Verdict)
CHAT_ANSWER: dict[str, Any] = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
        "role": "assistant", "content": ANSWER, "refusal": None, "evidence": [], "citations": [], "agreement": 0.5,
        "tool_calls": [{"id": "call_1", "type": "function", "function": CALL}],
    }}],
}  # fmt: skip
RESPONSE: dict[str, Any] = {
    "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "parallel_tool_calls": True, "tool_choice": "auto",
    "tools": [], "output": [
        {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "evidence": [], "citations": [],
         "content": [{"type": "output_text", "text": ANSWER, "annotations": [], "logprobs": []}]},
        {"id": "fc_1", "type": "function_call", "call_id": "call_1", "status": "completed", **CALL},
    ],
}  # fmt: skip


def test_what_the_sdk_parsed_can_be_sent_back() -> None:
    """`parse` adds fields to an answer, which the SDK then sends with it."""
    sent: list[Any] = []

    def respond(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(200, json=CHAT_ANSWER if "chat" in request.url.path else RESPONSE)

    http = httpx.Client(transport=httpx.MockTransport(respond))
    with OpenAI(base_url="http://everlong/v1", api_key="none", http_client=http) as client:
        asked: Any = {"role": "user", "content": "Who?"}
        chat: Any = {"model": "m", "tools": [TOOL]}
        message = client.chat.completions.parse(messages=[asked], response_format=Verdict, **chat).choices[0].message
        assert message.parsed == Verdict(guilty=True)
        for again in (message, message.to_dict()):
            client.chat.completions.create(messages=[asked, again], **chat)
            assert sent[-1]["messages"][1]["parsed"] == {"guilty": True}
            assert CreateChatCompletion.model_validate(sent[-1])
        function: Any = {"type": "function", **TOOL["function"]}
        output = client.responses.parse(model="m", input="Who?", text_format=Verdict, tools=[function]).output
        for items in (output, [item.to_dict() for item in output]):
            client.responses.create(model="m", input=[asked, *items])  # type: ignore[list-item]
            assert CreateResponse.model_validate(sent[-1])
        assert sent[-1]["input"][2]["parsed_arguments"] == {"guilty": True}


STORED = SimpleNamespace(
    id="resp_0a", created_at=0, completed_at=1, status="completed", background=False, error=None, previous=None,
    message=AnswerMessage("msg_0a", "", "m", 0, 0, [], content="Dinah."), searched=None, instructions=None,
    request={
        "params": {"max_tokens": 9, "temperature": 0, "top_logprobs": 0, "top_p": 1}, "instructions": None, "metadata": {},
        "model": "m", "store": True, "text": {}, "truncation": "disabled",
    },
)  # fmt: skip


def services() -> Any:
    async def get(id: str) -> Any:
        if id != STORED.id:
            raise NotFound(id)
        return STORED

    settings = SimpleNamespace(max_message_chars=100, max_session_documents=1)
    shared = SimpleNamespace(settings=settings, model=SimpleNamespace(tools=None))
    return SimpleNamespace(shared=shared, response_turns=SimpleNamespace(get=get))


def items(*given: dict[str, Any]) -> Any:
    return CreateResponse.model_validate({"input": [{"role": "user", "content": "Who?"}, *given]}).input


NEXT = {"role": "user", "content": "Sure?"}
SAID = [Message("user", "Who?"), Message("assistant", "Dinah."), Message("user", "Sure?")]


async def test_an_answer_can_be_sent_by_its_id() -> None:
    """Vercel's AI SDK sends earlier answers like this."""
    _, messages, listed = await _input(services(), items({"type": "item_reference", "id": "msg_0a"}, NEXT), ())
    assert messages == SAID
    assert listed[1]["content"] == [{"type": "output_text", "text": "Dinah."}]


@pytest.mark.parametrize("id", ["msg_0b", "fc_0a_0", "msg", "x"])
async def test_an_unknown_item(id: str) -> None:
    with pytest.raises(NotFound) as error:
        await _input(services(), items({"type": "item_reference", "id": id}, NEXT), ())
    assert (error.value.code, error.value.param) == ("item_not_found", "input.1.id")


async def test_reasoning_of_another_model_is_left_out() -> None:
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "Hm."}],
        "encrypted_content": "x",
    }
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Dinah."}]}
    _, messages, _ = await _input(services(), items(thought, answer, NEXT), ())
    assert messages == SAID
