"""`/v1/chat/completions`: answers a chat, which the caller sends whole each time. Messages still in memory are not prefilled
again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from everlong_server.api.bodies.json_body import JsonRoute
from everlong_server.api.caller_services import CallerServices
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.idempotency import IdempotencyKey, content_of
from everlong_server.api.openai.chat_schemas import (
    ChatCompletion,
    ChatJsonSchemaFormat,
    ChatMessage,
    CreateChatCompletion,
    FilePart,
)
from everlong_server.api.openai.chat_view import completion_view, live_chunks, replayed_chunks
from everlong_server.api.openai.files.inline import file_of_data
from everlong_server.api.openai.text_formats import JsonObjectFormat
from everlong_server.api.openai.tools.requests import chat_calls, chat_tool_use
from everlong_server.api.streams.sse import data_stream
from everlong_server.api.translation.answer_once import answer_once
from everlong_server.api.translation.messages import ParsedMessages
from everlong_server.api.turn_parameters import answer_recall, require_schema, sampling
from everlong_server.engine.answering.events import AnswerEvent, ResponseCompleted
from everlong_server.engine.answering.retrieval import SharedRetrieval
from everlong_server.engine.answering.turn import Turn
from everlong_server.errors import InvalidRequest
from everlong_server.services import Services
from everlong_server.store.idempotency import IdempotencyRecord
from everlong_server.store.messages import AnswerMessage
from everlong_server.store.records import Message, now
from everlong_server.tasks import cancel

router = APIRouter(prefix="/v1/chat", tags=["openai"], responses=ERROR_RESPONSES, route_class=JsonRoute)


@router.post(
    "/completions",
    response_model=ChatCompletion,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def create(
    body: CreateChatCompletion, request: Request, services: CallerServices, key: IdempotencyKey = None
) -> Response:
    """Answers a chat about the files in its messages, as JSON or, with `stream`, as server-sent events.

    Messages up to an earlier answer are not prefilled again; `usage.prompt_tokens_details.cached_tokens` counts their tokens.
    A retry with the same Idempotency-Key returns the first answer.
    """
    usage, nullable = body.stream_options.include_usage, bool(body.tools)
    return await answer_once(
        services, request, key, ("chat", content_of(body)),
        begin=lambda record: _begin(services, body, record),
        whole=lambda begun, record: _completion(*begun, record),
        live=lambda begun, record: live_chunks(
            begun[0], _events(begun[1]), len(begun[1]), record, usage=usage, nullable=nullable
        ),
        replayed=lambda completion: replayed_chunks(completion, usage=usage),
        send=partial(data_stream, keepalive_seconds=services.shared.settings.keepalive_seconds) if body.stream else None,
    )  # fmt: skip


def _head(services: Services, record: IdempotencyRecord) -> dict[str, Any]:
    """Return the first fields of a completion. Its id is the same for every retry."""
    model = services.shared.model
    return {
        "id": f"chatcmpl-{record.id}", "object": "chat.completion", "created": int(now()),
        "model": model.name, "system_fingerprint": model.fingerprint[:16],
    }  # fmt: skip


async def _begin(
    services: Services, body: CreateChatCompletion, record: IdempotencyRecord
) -> tuple[dict[str, Any], list[Turn]]:
    """Start the turns of a request, and return the first fields of their completion. Raises `ServerError` if it is invalid or refused."""
    services = await services.with_model(body.model)
    documents, conversation = await _parse_messages(services, body.messages)
    await services.wait_for_memory(documents, inline=_has_content(body.messages))
    return _head(services, record), await _start_turns(services, body, documents, conversation)


def _has_content(messages: Sequence[ChatMessage]) -> bool:
    """Return whether a message has the content of a file instead of the id."""
    parts = (part for message in messages if isinstance(message.content, list) for part in message.content)
    return any(isinstance(part, FilePart) and part.file.file_id is None for part in parts)


async def _parse_messages(services: Services, messages: Sequence[ChatMessage]) -> tuple[list[str], list[Message]]:
    """Return the documents in `messages`, and their text. Raises `ServerError` for invalid messages."""
    parsed = ParsedMessages(services)
    for number, message in enumerate(messages):
        name, texts = f"messages.{number}.content", list[str]()
        for index, part in enumerate(message.content if isinstance(message.content, list) else []):
            if isinstance(part, FilePart):
                where = f"{name}.{index}"
                parsed.require_user(message.role, where)
                if part.file.file_data is not None:
                    field = f"{where}.file.file_data"
                    file = await file_of_data(services, part.file.file_data, part.file.filename, field)
                else:
                    file, field = part.file.file_id or "", f"{where}.file.file_id"
                parsed.add_file(file, field)
            else:
                texts.append(part.text)
        text = message.content if isinstance(message.content, str) else "".join(texts)
        place = f"messages.{number}"
        if message.role == "tool":
            parsed.add_result(message.tool_call_id or "", text, place, "tool_call_id")
            continue
        calls = chat_calls(message, place)
        if not calls and message.content is None:
            raise InvalidRequest(f"{place}.content: Field required", param=f"{place}.content", code="missing_parameter")
        if text or not calls:
            parsed.add_message(message.role, text, place)
        if calls:
            parsed.add_calls(calls, f"{place}.tool_calls")
    return await parsed.finish("messages")


async def _start_turns(
    services: Services, body: CreateChatCompletion, documents: Sequence[str], conversation: Sequence[Message]
) -> list[Turn]:
    """Start all `n` turns. If one is refused, cancel the others and raise its error."""
    services.quota.require_streams(body.n)
    recalled, params = answer_recall(services, body.recall), sampling(body, "max_completion_tokens")
    match body.response_format:
        case JsonObjectFormat():
            params = params.model_copy(update={"json_schema": {"type": "object"}})
        case ChatJsonSchemaFormat(json_schema=requested):
            schema = await require_schema(services, requested.schema_, "response_format.json_schema.schema")
            params = params.model_copy(update={"json_schema": schema})
    each = [
        params if params.seed is None else params.model_copy(update={"seed": (params.seed + index) % 2**63})
        for index in range(body.n)
    ]
    tools = await chat_tool_use(services, body, conversation)
    retrieval = SharedRetrieval()
    answer = partial(services.chat_turns.answer, documents, conversation, recall=recalled, tools=tools)
    tasks = [
        asyncio.create_task(answer(params=one, turn=Turn(retrieval=retrieval, alone=len(each) == 1))) for one in each
    ]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        for turn in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(turn, Turn):
                await turn.events.aclose()
        raise


async def _events(turns: Sequence[Turn]) -> AsyncGenerator[tuple[int, AnswerEvent], None]:
    """Yield the events of all turns as they arrive, each with its turn's index. Closing the generator ends the turns."""
    queue: asyncio.Queue[tuple[int, AnswerEvent | Exception | None]] = asyncio.Queue()

    async def forward(index: int, turn: Turn) -> None:
        try:
            async for event in turn.events:
                queue.put_nowait((index, event))
            queue.put_nowait((index, None))
        except Exception as error:
            queue.put_nowait((index, error))

    tasks = [asyncio.create_task(forward(index, turn)) for index, turn in enumerate(turns)]
    try:
        left = len(tasks)
        while left:
            index, event = await queue.get()
            if isinstance(event, Exception):
                raise event
            if event is None:
                left -= 1
            else:
                yield index, event
    finally:
        await cancel(*tasks)
        for turn in turns:  # also those whose task had not started
            await turn.events.aclose()


async def _completion(head: dict[str, Any], turns: Sequence[Turn], record: IdempotencyRecord) -> dict[str, Any]:
    """Wait for the answers, record the completion and return it."""
    messages: dict[int, AnswerMessage] = {}
    async with contextlib.aclosing(_events(turns)) as events:
        async for index, event in events:
            if isinstance(event, ResponseCompleted):
                messages[index] = event.message
    completion = completion_view(head, messages)
    await record.finish(completion)
    return completion
