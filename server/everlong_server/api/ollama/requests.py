"""Translates the requests of Ollama's API into turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from everlong_models import SamplingParams, Tool, ToolCall
from everlong_server.api.ollama.schemas import OllamaChat, OllamaGenerate, OllamaMessage, OllamaOptions
from everlong_server.api.ollama.tool_schemas import OllamaTool, OllamaToolCall
from everlong_server.api.translation.messages import ParsedMessages, require_length
from everlong_server.api.translation.tools import tool_use
from everlong_server.api.turn_parameters import answer_recall, require_schema, sampling
from everlong_server.engine.answering.tools import ToolUse
from everlong_server.engine.answering.turn import Turn
from everlong_server.errors import InvalidRequest
from everlong_server.services import Services
from everlong_server.store.records import Message

UNLIMITED = 1_000_000
_OPTIONS = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
"""Options whose names differ from ours."""


def plain_name(name: str) -> str:
    """Return a model's name without the tag that clients of Ollama add."""
    return name.removesuffix(":latest")


async def begin(services: Services, body: OllamaChat | OllamaGenerate) -> Turn:
    """Start the turn of a request. Raises `ServerError` if it is invalid or refused."""
    services = await services.with_model(plain_name(body.model))
    params, recall = await _params(services, body), answer_recall(services, body.recall)
    parsed, place = ParsedMessages(services), "messages"
    for number, document in enumerate(body.documents):
        parsed.add_file(document, f"documents.{number}")
    if isinstance(body, OllamaChat):
        for number, message in enumerate(body.messages):
            _add_message(parsed, message, f"messages.{number}")
    else:
        place = "prompt"
        require_length(services, body.prompt, place)
        require_length(services, body.system, "system")
        if body.system:
            parsed.add_message("system", body.system, "system")
        parsed.add_message("user", body.prompt, "prompt")
    documents, messages = await parsed.finish(place)
    await services.wait_for_memory(documents)
    tools = await _tool_use(services, body.tools if isinstance(body, OllamaChat) else [], messages)
    return await services.chat_turns.answer(documents, messages, params, recall, tools=tools)


def _add_message(parsed: ParsedMessages, message: OllamaMessage, name: str) -> None:
    """Add a message of a chat. `name`: the field of the request. Raises `InvalidRequest`."""
    if message.tool_calls and message.role != "assistant":
        raise InvalidRequest(f"{name}.tool_calls: only an assistant's message has calls", param=f"{name}.tool_calls")
    if message.role == "tool":
        parsed.add_result(_answered(parsed.unanswered, message, name), message.content, name, "tool_call_id")
        return
    if message.content or not message.tool_calls:
        parsed.add_message(message.role, message.content, name)
    if message.tool_calls:
        calls = [_call(number, call) for number, call in enumerate(message.tool_calls)]
        parsed.add_calls(calls, f"{name}.tool_calls")


def _call(number: int, call: OllamaToolCall) -> ToolCall:
    """Return a call of an earlier answer. Without an id, it gets one that is new in its answer."""
    function = call.function
    id = call.id or f"{function.name}, number {number}"
    return ToolCall(id, function.name, json.dumps(function.arguments, ensure_ascii=False))


def _answered(unanswered: Sequence[ToolCall], message: OllamaMessage, name: str) -> str:
    """Return the id of the call whose result a message is. Raises `InvalidRequest`.

    Ollama's clients name the function, and send several results of one function in the order of the calls.
    """
    if message.tool_call_id:
        return message.tool_call_id
    call = next((call for call in unanswered if message.tool_name in (None, "", call.name)), None)
    if call is None:
        field, of = (f"{name}.tool_name", f" of {message.tool_name!r}") if message.tool_name else (f"{name}.role", "")
        raise InvalidRequest(f"{field}: the preceding answer has no call{of} without a result", param=field)
    return call.id


async def _tool_use(services: Services, tools: Sequence[OllamaTool], messages: Sequence[Message]) -> ToolUse | None:
    """Return the tools of an answer. Raises `InvalidRequest`."""
    functions = [
        (
            Tool(each.function.name, each.function.description, each.function.parameters),
            f"tools.{n}.function.parameters",
        )
        for n, each in enumerate(tools)
    ]
    return await tool_use(services, functions, "auto", None, messages, parallel=True)


async def _params(services: Services, body: OllamaChat | OllamaGenerate) -> SamplingParams:
    given = _sampling_fields(body.options) | {"logprobs": body.logprobs, "top_logprobs": body.top_logprobs}
    if body.format == "json":
        given["json_schema"] = {"type": "object"}
    elif isinstance(body.format, dict):
        given["json_schema"] = await require_schema(services, closed(body.format), "format")
    return sampling(SamplingParams(**given), name="options.num_predict")


_COMBINING = {"$ref", "anyOf", "oneOf", "patternProperties"}
"""Keywords that may allow an object properties that its `properties` do not name."""
_MAX_DEPTH = 32
_LEAST_PENALTY = 0.01
"""Penalties below it would divide by almost nothing. As 0, they have no effect."""


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose objects have only the properties that it names, unless it says otherwise: with Ollama, this is the default.

    Small models invent properties endlessly where a schema does not forbid them. A schema that makes an object of several parts stays as it is:
    each part must allow the properties of the others. So do objects deeper than `_MAX_DEPTH`.
    """
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if "allOf" in part or ("properties" in part and _COMBINING.intersection(part)):
                return schema
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    found: dict[str, Any] = _closed(schema)
    return found


def _closed(schema: Any, depth: int = 0) -> Any:
    if not isinstance(schema, dict) or depth == _MAX_DEPTH:
        return schema
    closed = dict(schema)
    for name in ("properties", "$defs", "definitions"):
        if isinstance(inner := schema.get(name), dict):
            closed[name] = {key: _closed(value, depth + 1) for key, value in inner.items()}
    for name in ("anyOf", "oneOf", "prefixItems"):
        if isinstance(inner := schema.get(name), list):
            closed[name] = [_closed(value, depth + 1) for value in inner]
    if "items" in schema:
        closed["items"] = _closed(schema["items"], depth + 1)
    named, required = schema.get("properties"), schema.get("required", [])
    if isinstance(named, dict) and isinstance(required, list) and not _COMBINING.intersection(schema):
        unnamed = [name for name in required if not isinstance(name, str) or name not in named]
        if not unnamed:
            closed.setdefault("additionalProperties", False)
    return closed


def _sampling_fields(options: OllamaOptions) -> dict[str, Any]:
    """Return the fields of `SamplingParams` that the options set."""
    fields = {_OPTIONS.get(name, name): value for name, value in options.model_dump(exclude_none=True).items()}
    if fields.get("max_tokens", 1) < 1:
        fields["max_tokens"] = UNLIMITED if fields["max_tokens"] < 0 else 1
    if fields.get("repetition_penalty", 1) < _LEAST_PENALTY:
        del fields["repetition_penalty"]
    if fields.get("seed") == -1:
        del fields["seed"]
    return {name: value for name, value in fields.items() if name in SamplingParams.model_fields}
