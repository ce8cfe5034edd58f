"""`parse_request`: the response that a request asks for, for HTTP and WebSocket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everlong_models import ToolCall
from everlong_server.api.openai.messages import ParsedMessages, require_length, require_model
from everlong_server.api.openai.response_schemas import (
    CreateResponse,
    InputEntry,
    InputFile,
    InputMessage,
    InputText,
    OutputText,
    ResponseJsonSchemaFormat,
)
from everlong_server.api.openai.text_formats import JsonObjectFormat, require_schema
from everlong_server.api.openai.tools.requests import response_tool_use
from everlong_server.api.openai.tools.schemas import FunctionCall, FunctionCallOutput
from everlong_server.api.turn_parameters import answer_recall, sampling
from everlong_server.errors import InvalidRequest
from everlong_server.services import Services
from everlong_server.store import responses as store
from everlong_server.store.records import Message, new_id


async def parse_request(services: Services, body: CreateResponse, previous: store.Response | None) -> store.Response:
    """Return the queued response that `body` requests after `previous`. Raises `ServerError` for an invalid request."""
    if body.model is not None:
        require_model(services, body.model)
    unanswered = () if previous is None or previous.message is None else previous.message.tool_calls
    documents, conversation, items = await _input(services, body.input, unanswered)
    instructions = body.instructions or None
    if instructions is not None:
        require_length(services, instructions, "instructions")
    params = sampling(body, "max_output_tokens", logprobs=bool(body.include or body.top_logprobs))
    match body.text.format:
        case JsonObjectFormat():
            params = params.model_copy(update={"json_schema": {"type": "object"}})
        case ResponseJsonSchemaFormat(schema_=schema):
            schema = await require_schema(services, schema, "text.format.schema")
            params = params.model_copy(update={"json_schema": schema})
    response = services.response_turns.create(
        previous, documents, conversation, instructions, params, answer_recall(services, body.recall),
        background=body.background, tool_use=await response_tool_use(services, body, conversation), items=items,
        model=services.shared.model.name, **body.model_dump(include=_SHOWN, by_alias=True),
    )  # fmt: skip
    limit = services.shared.settings.max_session_documents
    if len(response.documents) > limit:
        raise InvalidRequest(f"input: {len(response.documents)} files, the limit is {limit}", param="input")
    return response


async def _input(
    services: Services, given: str | list[InputEntry], unanswered: Sequence[ToolCall]
) -> tuple[list[str], list[Message], list[dict[str, Any]]]:
    """Return the documents of an input, its messages, and its items as `input_items` lists them.

    `unanswered`: the calls of the response before.
    """
    parsed, items = ParsedMessages(services, unanswered), list[dict[str, Any]]()
    entries = [InputMessage(role="user", content=given)] if isinstance(given, str) else given
    for number, entry in enumerate(entries):
        name = f"input.{number}"
        match entry:
            case FunctionCall():
                parsed.add_calls([ToolCall(entry.call_id, entry.name, entry.arguments)], name)
                items.append({"id": new_id("fc"), **entry.model_dump(include={"type", "call_id", "name", "arguments"})})
            case FunctionCallOutput():
                output = entry.output if isinstance(entry.output, str) else "".join(part.text for part in entry.output)
                parsed.add_result(entry.call_id, output, name, "call_id")
                items.append({"id": new_id("fco"), "type": entry.type, "call_id": entry.call_id, "output": output})
            case InputMessage():
                items.append(_message(parsed, entry, name))
    documents, conversation = await parsed.finish("input")
    return documents, conversation, items


def _message(parsed: ParsedMessages, message: InputMessage, name: str) -> dict[str, Any]:
    """Add a message to `parsed`, and return it as `input_items` lists it. `name`: the field of the request."""
    content, texts = message.content, list[str]()
    if isinstance(content, str):
        kind = OutputText if message.role == "assistant" else InputText
        content = [kind.model_validate({"type": _TYPES[kind], "text": content})]
    for place, part in enumerate(content):
        if isinstance(part, InputFile):
            parsed.add_file(message.role, part.file_id, f"{name}.content.{place}", ".file_id")
        else:
            texts.append(part.text)
    parsed.add_message(message.role, "".join(texts), name)
    parts = [part.model_dump(include={"type", "text", "file_id"}) for part in content]
    return {"id": new_id("msg"), "role": message.role, "content": parts}


_TYPES = {InputText: "input_text", OutputText: "output_text"}
_SHOWN = {"metadata", "parallel_tool_calls", "store", "text", "tool_choice", "tools", "truncation"}
"""Fields of a request that its response shows again."""
