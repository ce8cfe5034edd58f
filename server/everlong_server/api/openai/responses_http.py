"""`/v1/responses`: stored answers from which others can continue."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from fastapi.responses import Response as Answer

from everlong_server.api.disconnect import run_unless_disconnected
from everlong_server.api.errors import CLIENT_CLOSED, ERROR_RESPONSES, as_server_error
from everlong_server.api.native.sessions import recall, sampling
from everlong_server.api.openai.messages import ParsedMessages, require_length, require_model
from everlong_server.api.openai.response_schemas import (
    CreateResponse,
    InputFile,
    InputItem,
    InputItemList,
    InputMessage,
    InputText,
    OutputText,
    Response,
    ResponseDeleted,
    ResponseJsonSchemaFormat,
)
from everlong_server.api.openai.text_formats import JsonObjectFormat, require_schema
from everlong_server.api.sse import event_stream
from everlong_server.api.views import CallerServices
from everlong_server.engine.answering.responses import ResponseTurn
from everlong_server.errors import InvalidRequest, NotFound
from everlong_server.services import Services
from everlong_server.store import responses as store
from everlong_server.store.records import Message, new_id

router = APIRouter(prefix="/v1/responses", tags=["openai"], responses=ERROR_RESPONSES)


@router.post(
    "",
    response_model=Response,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def create(body: CreateResponse, request: Request, services: CallerServices) -> Answer:
    """Creates a response: as JSON, with `stream` as server-sent events, or with `background` later.

    With `previous_response_id` it continues from that response without prefilling it again;
    `usage.input_tokens_details.cached_tokens` counts the reused tokens. Instructions of earlier responses stay in the memory.
    """
    previous = await services.response_turns.previous(body.previous_response_id) if body.previous_response_id else None
    response = await parse_request(services, body, previous)
    if body.background:
        if body.stream or not body.store:
            name = "stream" if body.stream else "store"
            raise InvalidRequest(
                f"{name}: a background response is always stored and never streamed; leave the field out", param=name
            )
        await services.response_turns.queue(response)
        return JSONResponse(response_view(response))
    keep = services.response_turns.keep if body.store else None
    answering = await run_unless_disconnected(request, services.response_turns.begin(response, previous, keep))
    if answering is None:
        return Answer(status_code=CLIENT_CLOSED)
    if body.stream:
        return event_stream(response_events(answering), services.settings.keepalive_seconds)
    if await run_unless_disconnected(request, _whole(answering)) is None:
        return Answer(status_code=CLIENT_CLOSED)
    return JSONResponse(response_view(answering.response))


@router.get("/{response_id}", response_model=Response)
async def get(
    response_id: str, services: CallerServices, stream: Annotated[bool, Query(description="not supported")] = False
) -> JSONResponse:
    """Returns a stored response. A background response has ended once `status` is neither "queued" nor "in_progress"."""
    if stream:
        raise InvalidRequest("stream: a stored response cannot be streamed; leave the field out", param="stream")
    return JSONResponse(response_view(await services.response_turns.get(response_id)))


@router.delete("/{response_id}")
async def delete(response_id: str, services: CallerServices) -> ResponseDeleted:
    """Cancels a response and deletes it with its memory. Responses that continue from it keep their memory."""
    await services.response_turns.delete(response_id)
    return ResponseDeleted(id=response_id)


@router.post("/{response_id}/cancel", response_model=Response)
async def cancel(response_id: str, services: CallerServices) -> JSONResponse:
    """Cancels a background response. A response that has ended stays unchanged."""
    return JSONResponse(response_view(await services.response_turns.cancel(response_id)))


@router.get("/{response_id}/input_items", response_model_exclude_none=True)
async def input_items(
    response_id: str,
    services: CallerServices,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str | None, Query(max_length=128, description="last id of the previous page")] = None,
) -> InputItemList:
    """Lists the input messages of a response, without those of the responses before it."""
    response = await services.response_turns.get(response_id)
    items = [InputItem.model_validate(item) for item in response.request["items"]]
    if order == "desc":
        items.reverse()
    ids = [item.id for item in items]
    if after is not None and after not in ids:
        raise NotFound(f"after: no item {after!r} in this response", param="after")
    start = ids.index(after) + 1 if after is not None else 0
    data = items[start : start + limit]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return InputItemList(data=data, first_id=first, last_id=last, has_more=start + limit < len(items))


async def parse_request(services: Services, body: CreateResponse, previous: store.Response | None) -> store.Response:
    """Return the queued response that `body` requests after `previous`. Raises `ServerError` for an invalid request."""
    if body.model is not None:
        require_model(services, body.model)
    documents, conversation, items = await _input(services, body.input)
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
    response = services.response_turns.ask(
        previous, documents, conversation, instructions, params, recall(services, body.recall),
        background=body.background, items=items, model=services.model.name,
        **body.model_dump(include={"metadata", "store", "text", "truncation"}, by_alias=True),
    )  # fmt: skip
    limit = services.settings.max_session_documents
    if len(response.documents) > limit:
        raise InvalidRequest(f"input: {len(response.documents)} files, the limit is {limit}", param="input")
    return response


async def _input(
    services: Services, given: str | list[InputMessage]
) -> tuple[list[str], list[Message], list[dict[str, Any]]]:
    """Return the documents of an input, its messages, and its items as `input_items` lists them."""
    parsed, items = ParsedMessages(services), []
    messages = [InputMessage(role="user", content=given)] if isinstance(given, str) else given
    for number, message in enumerate(messages):
        name, texts = f"input.{number}", list[str]()
        content = message.content
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
        items.append({"id": new_id("msg"), "role": message.role, "content": parts})
    documents, conversation = await parsed.finish("input")
    return documents, conversation, items


_TYPES = {InputText: "input_text", OutputText: "output_text"}


def response_view(response: store.Response) -> dict[str, Any]:
    """Return a response in the format of OpenAI's API."""
    request, message = response.request, response.message
    params, usage = request["params"], None
    if message is not None:
        used = message["usage"]
        usage = {
            "input_tokens": used["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": used["reused_tokens"], "cache_write_tokens": 0},
            "output_tokens": used["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used["prompt_tokens"] + used["completion_tokens"],
        }
    return {
        "id": response.id, "object": "response", "created_at": int(response.created_at),
        "completed_at": None if response.completed_at is None else int(response.completed_at),
        "status": response.status, "background": response.background, "error": response.error,
        "incomplete_details": {"reason": "max_output_tokens"} if response.status == "incomplete" else None,
        "instructions": request["instructions"], "max_output_tokens": params["max_tokens"],
        "metadata": request["metadata"], "model": request["model"],
        "output": [] if message is None else [_output(message, response.status)],
        "parallel_tool_calls": False, "previous_response_id": response.previous, "store": request["store"],
        "temperature": params["temperature"], "text": request["text"], "tool_choice": "none", "tools": [],
        "top_logprobs": params["top_logprobs"], "top_p": params["top_p"], "truncation": request["truncation"],
        "usage": usage,
    }  # fmt: skip


def _output(message: dict[str, Any], status: str) -> dict[str, Any]:
    part = _text(message["content"], message.get("logprobs", []))
    return _item(message["id"], status, [part], message["evidence"])


def _item(id: str, status: str, content: list[dict[str, Any]], evidence: list[dict[str, Any]]) -> dict[str, Any]:
    kind = {"type": "message", "role": "assistant"}
    return {"id": id, **kind, "status": status, "content": content, "evidence": evidence}


def _text(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


async def _whole(answering: ResponseTurn) -> bool:
    async with contextlib.aclosing(answering.events) as turn:
        async for _ in turn:
            pass
    return True


async def response_events(answering: ResponseTurn) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the events of a response in the format of OpenAI's API. The evidence comes with the output item, before the first
    token. An answer that fails ends with `response.failed`."""
    number = 0

    def event(kind: str, **more: Any) -> dict[str, Any]:
        nonlocal number
        number += 1
        return {"type": kind, "sequence_number": number - 1, **more}

    initial = response_view(answering.response)
    try:
        async with contextlib.aclosing(_pieces(answering)) as pieces:
            async for kind, more in pieces:
                yield event(kind, **more)
    except Exception as error:
        known = as_server_error(error)
        failure = {"code": known.code, "message": known.message}
        yield event("response.failed", response=initial | {"status": "failed", "error": failure})


async def _pieces(answering: ResponseTurn) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
    item, evidence = answering.turn.id, list[dict[str, Any]]()
    at = {"item_id": item, "output_index": 0, "content_index": 0}
    opened = False

    def open_item() -> list[tuple[str, dict[str, Any]]]:
        nonlocal opened
        if opened:
            return []
        opened = True
        added = {"output_index": 0, "item": _item(item, "in_progress", [], evidence)}
        return [("response.output_item.added", added), ("response.content_part.added", at | {"part": _text("", [])})]

    async with contextlib.aclosing(answering.events) as turn:
        async for event in turn:
            match event["type"]:
                case "response.created":
                    for name in ("created", "in_progress"):
                        yield f"response.{name}", {"response": response_view(answering.response)}
                case "response.evidence":
                    evidence = event["evidence"]
                    for piece in open_item():
                        yield piece
                case "response.output_text.delta":
                    for piece in open_item():
                        yield piece
                    delta = {"delta": event["delta"], "logprobs": event.get("logprobs", [])}
                    yield "response.output_text.delta", at | delta
                case "response.completed":
                    for piece in open_item():
                        yield piece
    response = response_view(answering.response)
    (output,) = response["output"]
    (part,) = output["content"]
    yield "response.output_text.done", at | {"text": part["text"], "logprobs": part["logprobs"]}
    yield "response.content_part.done", at | {"part": part}
    yield "response.output_item.done", {"output_index": 0, "item": output}
    yield f"response.{response['status']}", {"response": response}
