"""`parse_request`: the response that a request asks for, for HTTP and WebSocket."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from everlong_models import ToolCall
from everlong_server.api.openai.files.inline import file_of_data, file_of_url
from everlong_server.api.openai.response_events import response_view
from everlong_server.api.openai.response_options import ResponseJsonSchemaFormat
from everlong_server.api.openai.response_schemas import (
    CreateResponse,
    InputEntry,
    InputFile,
    InputMessage,
    InputText,
    ItemReference,
    OutputText,
)
from everlong_server.api.openai.retrieval.file_search_schemas import FileSearchTool
from everlong_server.api.openai.text_formats import JsonObjectFormat
from everlong_server.api.openai.tools.requests import response_tool_use, searches_stores
from everlong_server.api.openai.tools.schemas import FunctionCall, FunctionCallOutput
from everlong_server.api.translation.messages import ParsedMessages, require_length
from everlong_server.api.turn_parameters import answer_recall, require_schema, sampling
from everlong_server.engine.answering.evidence.grounding import Recall
from everlong_server.errors import InvalidRequest, NotFound
from everlong_server.services import Services
from everlong_server.store import responses as store
from everlong_server.store.records import Message, new_id
from everlong_server.store.vector_stores.file_search import FileSearch


async def with_model(services: Services, body: CreateResponse, previous: store.Response | None) -> Services:
    """Return the services with the model that `body` names, by default that of the response before. Raises `ServerError`."""
    earlier = None if previous is None else previous.request["model"]
    known = any(model.name == earlier for model in services.shared.models.all)
    return await services.with_model(body.model or (earlier if known else None))


async def parse_request(services: Services, body: CreateResponse, previous: store.Response | None) -> store.Response:
    """Return the queued response that `body` requests after `previous`. Raises `ServerError` for an invalid request."""
    unanswered = () if previous is None or previous.message is None else previous.message.tool_calls
    documents, conversation, items = await _input(services, body.input, unanswered)
    instructions = body.instructions or None
    if instructions is not None:
        require_length(services, instructions, "instructions")
    params = sampling(body, "max_output_tokens", logprobs=_LOGPROBS in body.include or bool(body.top_logprobs))
    match body.text.format:
        case JsonObjectFormat():
            params = params.model_copy(update={"json_schema": {"type": "object"}})
        case ResponseJsonSchemaFormat(schema_=schema):
            schema = await require_schema(services, schema, "text.format.schema")
            params = params.model_copy(update={"json_schema": schema})
    recall, file_search = _file_search(services, body, answer_recall(services, body.recall))
    response = services.response_turns.create(
        previous, documents, conversation, instructions, params, recall,
        background=body.background, tool_use=await response_tool_use(services, body, conversation), items=items,
        file_search=file_search, model=services.shared.model.name, **body.model_dump(include=_SHOWN, by_alias=True),
    )  # fmt: skip
    limit = services.shared.settings.max_session_documents
    if len(response.documents) > limit:
        raise InvalidRequest(f"input: {len(response.documents)} files, the limit is {limit}", param="input")
    return response


def has_content(body: CreateResponse) -> bool:
    """Return whether a message of the input has the content or the URL of a file instead of the id."""
    messages = [] if isinstance(body.input, str) else [each for each in body.input if isinstance(each, InputMessage)]
    parts = (part for message in messages if isinstance(message.content, list) for part in message.content)
    return any(isinstance(part, InputFile) and part.file_id is None for part in parts)


def _file_search(services: Services, body: CreateResponse, recall: Recall) -> tuple[Recall, FileSearch | None]:
    """Return the recall of the answer and the search in vector stores; None if the request wants none. Raises `InvalidRequest`."""
    tools = [(n, tool) for n, tool in enumerate(body.tools) if isinstance(tool, FileSearchTool)]
    searches = searches_stores(body)
    if not tools:
        return recall, None
    number, tool = tools[-1]
    name = f"tools.{number}"
    if len(tools) > 1:
        raise InvalidRequest(f"{name}: the request has several file_search tools: name all stores in one", param=name)
    if not searches:
        return recall, None
    if not services.recall.passages or not recall.passages:
        raise InvalidRequest(
            f"{name}: file_search needs the search, but the request turns it off (recall), or the server does (EVERLONG_RECALL_PASSAGES=0)",
            param=name,
        )
    passages = min(services.recall.passages, tool.max_num_results or recall.passages)
    filter = None if tool.filters is None else tool.filters.model_dump()
    return replace(recall, passages=passages), FileSearch(tuple(dict.fromkeys(tool.vector_store_ids)), filter)


async def _input(
    services: Services, given: str | list[InputEntry], unanswered: Sequence[ToolCall]
) -> tuple[list[str], list[Message], list[dict[str, Any]]]:
    """Return the documents of an input, its messages, and its items as `input_items` lists them.

    `unanswered`: the calls of the response before.
    """
    parsed, items = ParsedMessages(services, unanswered), list[dict[str, Any]]()
    entries = [InputMessage(role="user", content=given)] if isinstance(given, str) else given
    outputs: dict[str, dict[str, Any]] = {}
    for number, entry in enumerate(entries):
        name = f"input.{number}"
        match await _referenced(services, entry.id, name, outputs) if isinstance(entry, ItemReference) else entry:
            case FunctionCall() as entry:
                parsed.add_calls([ToolCall(entry.call_id, entry.name, entry.arguments)], name)
                items.append({"id": new_id("fc"), **entry.model_dump(include={"type", "call_id", "name", "arguments"})})
            case FunctionCallOutput() as entry:
                output = entry.output if isinstance(entry.output, str) else "".join(part.text for part in entry.output)
                parsed.add_result(entry.call_id, output, name, "call_id")
                items.append({"id": new_id("fco"), "type": entry.type, "call_id": entry.call_id, "output": output})
            case InputMessage() as entry:
                items.append(await _message(services, parsed, entry, name))
            case _:  # of an earlier answer: a search, whose passages are not shown again, or reasoning
                pass
    if not items:
        raise InvalidRequest("input: the input has no message", param="input")
    documents, conversation = await parsed.finish("input")
    return documents, conversation, items


async def _referenced(services: Services, item_id: str, name: str, outputs: dict[str, dict[str, Any]]) -> InputEntry:
    """Return an item of the output of a stored response. `name`: the field of the request. Raises `NotFound`.

    `outputs`: items of responses that this request has fetched already, by the response and their id.

    The id of an item has that of its response: msg_X, fs_X or fc_X_0 for resp_X.
    """
    with contextlib.suppress(NotFound, IndexError):
        response_id = f"resp_{item_id.split('_')[1]}"
        if response_id not in outputs:
            response = await services.response_turns.get(response_id)
            outputs[response_id] = {item["id"]: item for item in response_view(response)["output"]}
        if item_id in outputs[response_id]:
            return _ENTRY.validate_python(outputs[response_id][item_id])
    raise NotFound(
        f"{name}.id: no stored response has the item {item_id!r}: send the item itself, or previous_response_id",
        param=f"{name}.id", code="item_not_found",
    )  # fmt: skip


_ENTRY: TypeAdapter[InputEntry] = TypeAdapter(InputEntry)


async def _message(services: Services, parsed: ParsedMessages, message: InputMessage, name: str) -> dict[str, Any]:
    """Add a message to `parsed`, and return it as `input_items` lists it. `name`: the field of the request."""
    content, texts = message.content, list[str]()
    if isinstance(content, str):
        kind = OutputText if message.role == "assistant" else InputText
        content = [kind.model_validate({"type": _TYPES[kind], "text": content})]
    parts = []
    for place, part in enumerate(content):
        where = f"{name}.content.{place}"
        if isinstance(part, InputFile):
            parsed.require_user(message.role, where)
            if part.file_data is not None:
                field = f"{where}.file_data"
                file = await file_of_data(services, part.file_data, part.filename, field)
            elif part.file_url is not None:
                field = f"{where}.file_url"
                file = await file_of_url(services, part.file_url, part.filename, field)
            else:
                file, field = part.file_id or "", f"{where}.file_id"
            parsed.add_file(file, field)
            parts.append({"type": part.type, "file_id": file})
        else:
            texts.append(part.text)
            parts.append(part.model_dump(include={"type", "text"}))
    parsed.add_message(message.role, "".join(texts), name)
    return {"id": new_id("msg"), "role": message.role, "content": parts}


_TYPES = {InputText: "input_text", OutputText: "output_text"}
_LOGPROBS = "message.output_text.logprobs"
_SHOWN = {"include", "metadata", "parallel_tool_calls", "store", "text", "tool_choice", "tools", "truncation"}
"""Fields of a request that its response repeats."""
