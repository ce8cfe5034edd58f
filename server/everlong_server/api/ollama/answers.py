"""`/api/chat` and `/api/generate`: answers as lines of JSON (NDJSON), or with `stream: false` as one object."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from everlong_models import ToolCall
from everlong_server.api.bodies.json_body import JsonRoute
from everlong_server.api.caller_services import CallerServices
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.idempotency import IdempotencyKey, content_of
from everlong_server.api.ollama.ndjson import ndjson_stream
from everlong_server.api.ollama.requests import begin, plain_name
from everlong_server.api.ollama.schemas import (
    OllamaChat,
    OllamaChatAnswer,
    OllamaError,
    OllamaGenerate,
    OllamaGenerated,
)
from everlong_server.api.streams.disconnect import run_unless_disconnected
from everlong_server.api.translation.answer_once import answer_once
from everlong_server.engine.answering.events import AnswerEvent, ResponseCompleted, TextDelta, ToolCallStarted
from everlong_server.engine.answering.turn import Turn
from everlong_server.services import Services
from everlong_server.store.idempotency import IdempotencyRecord
from everlong_server.store.messages import AnswerMessage

OLLAMA_ERRORS: dict[int | str, dict[str, Any]] = {
    status: described | {"model": OllamaError} for status, described in ERROR_RESPONSES.items()
}
router = APIRouter(prefix="/api", tags=["ollama"], responses=OLLAMA_ERRORS, route_class=JsonRoute)

Line = dict[str, Any]
_STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"application/x-ndjson": {}}}}


@router.post("/chat", response_model=OllamaChatAnswer, responses=_STREAMED)
async def chat(body: OllamaChat, request: Request, services: CallerServices, key: IdempotencyKey = None) -> Response:
    """Answers a chat. Messages up to an earlier answer are not read again.

    A retry with the same Idempotency-Key returns the first answer.
    """
    return await _answer(services, request, body, key, loads=not body.messages)


@router.post("/generate", response_model=OllamaGenerated, responses=_STREAMED)
async def generate(
    body: OllamaGenerate, request: Request, services: CallerServices, key: IdempotencyKey = None
) -> Response:
    """Answers a prompt. A retry with the same Idempotency-Key returns the first answer."""
    return await _answer(services, request, body, key, loads=not body.prompt)


async def _answer(
    services: Services, request: Request, body: OllamaChat | OllamaGenerate, key: str | None, *, loads: bool
) -> Response:
    """Answer a request. `loads`: it only asks for the model to be loaded."""
    lines = _Lines(body.model, _chat_text if isinstance(body, OllamaChat) else _generated_text)
    if loads:
        await run_unless_disconnected(request, services.with_model(plain_name(body.model)))
        loaded = lines.line("", done=True, done_reason="load")
        return ndjson_stream(_replayed(loaded), services) if body.stream else JSONResponse(loaded)
    return await answer_once(
        services, request, key, (request.url.path, content_of(body)),
        begin=lambda record: begin(services, body),
        whole=lines.whole,
        live=lines.live,
        replayed=_replayed,
        send=partial(ndjson_stream, services=services) if body.stream else None,
    )  # fmt: skip


async def _replayed(whole: Line) -> AsyncGenerator[Line, None]:
    """Yield a whole answer as a single line, the last."""
    yield whole


def _chat_text(text: str, calls: Sequence[Line]) -> Line:
    return {"message": {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}}


def _generated_text(text: str, calls: Sequence[Line]) -> Line:
    return {"response": text}


def _calls(message: AnswerMessage) -> list[Line]:
    """Return the calls of an answer. If it was cut off, its last call can be incomplete: such a call is left out."""
    complete = list[Line]()
    for number, call in enumerate(message.tool_calls):
        if (arguments := _arguments(call)) is not None:
            function = {"index": number, "name": call.name, "arguments": arguments}
            complete.append({"id": call.id, "function": function})
    return complete


def _arguments(call: ToolCall) -> dict[str, Any] | None:
    """Return the arguments of a call; None if they are incomplete."""
    try:
        return dict(json.loads(call.arguments))
    except ValueError:
        return None


class _Lines:
    """Makes the lines of one answer. `text`: returns the fields of a line with a piece of text, and calls."""

    def __init__(self, model: str, text: Callable[[str, Sequence[Line]], Line]) -> None:
        self._model = model
        self._text = text
        self._started = time.perf_counter_ns()
        self._first: int | None = None
        """When the first piece of text, or the first call, began."""

    def line(self, text: str, calls: Sequence[Line] = (), **fields: Any) -> Line:
        """Return a line, with the fields that it has besides its text and calls."""
        created = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return {"model": self._model, "created_at": created, **self._text(text, calls), **fields}

    async def live(self, turn: Turn, record: IdempotencyRecord) -> AsyncGenerator[Line, None]:
        """Yield the answer's lines. Records the whole answer before the last one, or releases the key if there is none.

        All calls are in one line, the one before the last.
        """
        async with record, contextlib.aclosing(turn.events) as events:
            async for event in events:
                self._note_first(event)
                if isinstance(event, TextDelta):
                    yield self.line(event.text, done=False, **({"logprobs": event.logprobs} if event.logprobs else {}))
                elif isinstance(event, ResponseCompleted):
                    await record.finish(self._whole(event.message))
                    if calls := _calls(event.message):
                        yield self.line("", calls, done=False)
                    yield self._last("", (), event.message)

    async def whole(self, turn: Turn, record: IdempotencyRecord) -> Line:
        """Wait for the answer, record it and return it."""
        answer: Line = {}
        async with contextlib.aclosing(turn.events) as events:
            async for event in events:
                self._note_first(event)
                if isinstance(event, ResponseCompleted):
                    answer = self._whole(event.message)
        await record.finish(answer)
        return answer

    def _note_first(self, event: AnswerEvent) -> None:
        if self._first is None and isinstance(event, TextDelta | ToolCallStarted):
            self._first = time.perf_counter_ns()

    def _whole(self, message: AnswerMessage) -> Line:
        logprobs = {} if message.logprobs is None else {"logprobs": message.logprobs}
        return self._last(message.content, _calls(message), message) | logprobs

    def _last(self, text: str, calls: Sequence[Line], message: AnswerMessage) -> Line:
        """Return the last line, with the counts and durations."""
        now = time.perf_counter_ns()
        first = self._first or now
        return self.line(
            text,
            calls,
            done=True,
            done_reason="stop" if message.finish_reason == "stop" else "length",
            total_duration=now - self._started,
            load_duration=0,
            prompt_eval_count=message.usage.prompt_tokens,
            prompt_eval_duration=first - self._started,
            eval_count=message.usage.completion_tokens,
            eval_duration=now - first,
        )
