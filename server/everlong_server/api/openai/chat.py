"""`/v1/chat/completions`: answers a chat, which the caller sends whole each time. Messages still in memory are not prefilled
again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from everlong_server.api.bodies.json_body import JsonRoute
from everlong_server.api.disconnect import run_unless_disconnected
from everlong_server.api.errors import CLIENT_CLOSED, ERROR_RESPONSES
from everlong_server.api.openai.chat_schemas import (
    ChatCompletion,
    ChatJsonSchemaFormat,
    ChatMessage,
    ChatUsage,
    CreateChatCompletion,
    FilePart,
)
from everlong_server.api.openai.messages import ParsedMessages, require_model
from everlong_server.api.openai.text_formats import JsonObjectFormat, require_schema
from everlong_server.api.sse import data_stream
from everlong_server.api.turn_parameters import answer_recall, sampling
from everlong_server.api.views import CallerServices
from everlong_server.engine.answering.events import (
    AnswerEvent,
    ResponseCompleted,
    ResponseCreated,
    ResponseEvidence,
    TextDelta,
)
from everlong_server.engine.answering.turn import Turn
from everlong_server.services import Services
from everlong_server.store.messages import AnswerMessage, evidence_json
from everlong_server.store.records import Message, new_id, now

router = APIRouter(prefix="/v1/chat", tags=["openai"], responses=ERROR_RESPONSES, route_class=JsonRoute)


@router.post(
    "/completions",
    response_model=ChatCompletion,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def create(body: CreateChatCompletion, request: Request, services: CallerServices) -> Response:
    """Answers a chat about the files in its messages, as JSON or, with `stream`, as server-sent events.

    Messages up to an earlier answer are not prefilled again; `usage.prompt_tokens_details.cached_tokens` counts their tokens.
    """
    model = services.shared.model
    require_model(services, body.model)
    documents, conversation = await _parse_messages(services, body.messages)
    turns = await run_unless_disconnected(request, _start_turns(services, body, documents, conversation))
    if turns is None:
        return Response(status_code=CLIENT_CLOSED)
    head = {
        "id": f"chatcmpl-{new_id('chat')[5:]}", "object": "chat.completion", "created": int(now()),
        "model": model.name, "system_fingerprint": model.fingerprint[:16],
    }  # fmt: skip
    if body.stream:
        chunks = _chunks(head | {"object": "chat.completion.chunk"}, turns, usage=body.stream_options.include_usage)
        return data_stream(chunks, services.shared.settings.keepalive_seconds)
    messages = await run_unless_disconnected(request, _messages(turns))
    if messages is None:
        return Response(status_code=CLIENT_CLOSED)
    choices = [_choice(index, message) for index, message in enumerate(messages)]
    return JSONResponse({**head, "choices": choices, "usage": _usage(messages)})


async def _parse_messages(services: Services, messages: Sequence[ChatMessage]) -> tuple[list[str], list[Message]]:
    """Return the documents in `messages`, and their text. Raises `ServerError` for invalid messages."""
    parsed = ParsedMessages(services)
    for number, message in enumerate(messages):
        name, texts = f"messages.{number}.content", list[str]()
        for place, part in enumerate([] if isinstance(message.content, str) else message.content):
            if isinstance(part, FilePart):
                parsed.add_file(message.role, part.file.file_id, f"{name}.{place}", ".file.file_id")
            else:
                texts.append(part.text)
        text = message.content if isinstance(message.content, str) else "".join(texts)
        parsed.add_message(message.role, text, f"messages.{number}")
    return await parsed.finish("messages")


async def _start_turns(
    services: Services, body: CreateChatCompletion, documents: Sequence[str], conversation: Sequence[Message]
) -> list[Turn]:
    """Start all `n` turns. If one is refused, cancel the others and raise its error."""
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
    tasks = [asyncio.create_task(services.chat_turns.answer(documents, conversation, one, recalled)) for one in each]
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
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for turn in turns:  # also those whose task had not started
            await turn.events.aclose()


async def _messages(turns: Sequence[Turn]) -> list[AnswerMessage]:
    """Return the complete answers."""
    messages: dict[int, AnswerMessage] = {}
    async with contextlib.aclosing(_events(turns)) as events:
        async for index, event in events:
            if isinstance(event, ResponseCompleted):
                messages[index] = event.message
    return [messages[index] for index in range(len(turns))]


async def _chunks(head: dict[str, Any], turns: Sequence[Turn], *, usage: bool) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the answers as chunks. The evidence precedes the first token."""
    messages: list[AnswerMessage] = []
    no_usage: dict[str, Any] = {"usage": None} if usage else {}

    def chunk(index: int, delta: dict[str, Any], logprobs: Any = None, **end: str | None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, **(end or {"finish_reason": None})}
        return {**head, "choices": [choice], **no_usage}

    async with contextlib.aclosing(_events(turns)) as events:
        async for index, event in events:
            match event:
                case ResponseCreated():
                    yield chunk(index, {"role": "assistant", "content": "", "refusal": None})
                case ResponseEvidence(_, evidence):
                    yield chunk(index, {"evidence": [evidence_json(passage) for passage in evidence]})
                case TextDelta(_, text, logprobs):
                    yield chunk(index, {"content": text}, _logprobs(logprobs or None))
                case ResponseCompleted(message):
                    messages.append(message)
                    yield chunk(index, {"citations": [asdict(citation) for citation in message.citations]})
                    yield chunk(index, {}, **_end(message))
    if usage:
        yield {**head, "choices": [], "usage": _usage(messages)}


def _choice(index: int, message: AnswerMessage) -> dict[str, Any]:
    evidence = [evidence_json(passage) for passage in message.evidence]
    answer = {"role": "assistant", "content": message.content, "refusal": None, "evidence": evidence}
    answer["citations"] = [asdict(citation) for citation in message.citations]
    return {
        "index": index,
        "message": answer,
        "logprobs": _logprobs(message.logprobs),
        **_end(message),
    }


def _end(message: AnswerMessage) -> dict[str, str | None]:
    """Return why the answer ended, in values of `finish_reason` that OpenAI's SDKs know."""
    looped = message.finish_reason == "repetition"
    return {
        "finish_reason": "length" if looped else message.finish_reason,
        "stop_reason": "repetition" if looped else None,
    }


def _logprobs(logprobs: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    return None if logprobs is None else {"content": logprobs, "refusal": None}


def _usage(messages: Sequence[AnswerMessage]) -> dict[str, Any]:
    """Return the token counts. All answers share one prompt."""
    prompt, answers = messages[0].usage, sum(message.usage.completion_tokens for message in messages)
    return ChatUsage.model_validate(
        {
            "prompt_tokens": prompt.prompt_tokens,
            "completion_tokens": answers,
            "total_tokens": prompt.prompt_tokens + answers,
            "prompt_tokens_details": {"cached_tokens": prompt.reused_tokens},
        }
    ).model_dump()
