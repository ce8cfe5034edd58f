"""`/v1/completions`: continues texts without a chat format. A prompt that is longer than the model's context is read into its memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from everlong_models import SamplingParams
from everlong_server.api.bodies.json_body import JsonRoute
from everlong_server.api.caller_services import CallerServices
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.idempotency import IdempotencyKey, content_of
from everlong_server.api.openai.completions.schemas import MAX_CHOICES, Completion, CreateCompletion
from everlong_server.api.openai.completions.view import Text, completion_view, replayed_chunks
from everlong_server.api.streams.sse import data_stream
from everlong_server.api.translation.answer_once import answer_once
from everlong_server.api.turn_parameters import MAX_LOGPROBS, require_json
from everlong_server.engine.answering.completions import CompletionEvent
from everlong_server.errors import InvalidRequest, TooLarge
from everlong_server.services import Services
from everlong_server.store.idempotency import IdempotencyRecord
from everlong_server.store.records import now
from everlong_server.tasks import cancel

router = APIRouter(prefix="/v1/completions", tags=["openai"], responses=ERROR_RESPONSES, route_class=JsonRoute)

MAX_ECHOED = 1_000_000
"""Maximum number of prompt tokens that a response repeats, for all its texts together."""
_AT_ONCE = 4
"""Maximum number of texts of one request that are generated at once."""


@router.post("", response_model=Completion, responses={200: {"content": {"text/event-stream": {}}}})
async def create(
    body: CreateCompletion, request: Request, services: CallerServices, key: IdempotencyKey = None
) -> Response:
    """Continues texts, as JSON or, with `stream`, as server-sent events.

    The model reads exactly the tokens of `prompt`. With `echo`, `logprobs` and `max_tokens` 0, it returns only the
    log-probabilities of these. A retry with the same Idempotency-Key returns the first result.
    """
    usage = body.stream_options.include_usage
    return await answer_once(
        services, request, key, ("completion", content_of(body)),
        begin=lambda record: _begin(services, body, record),
        whole=lambda work, record: work.completion(),
        live=lambda work, record: work.chunks(usage=usage),
        replayed=lambda completion: replayed_chunks(completion, usage=usage),
        send=partial(data_stream, keepalive_seconds=services.shared.settings.keepalive_seconds) if body.stream else None,
    )  # fmt: skip


async def _begin(services: Services, body: CreateCompletion, record: IdempotencyRecord) -> _Work:
    """Check the request, and start the first text if they are streamed. Raises `ServerError`."""
    services = await services.with_model(body.model)
    work = await _Work.of(services, body, record)
    if body.stream:
        await work.begin()
    return work


class _Work:
    """The texts of one request."""

    def __init__(
        self, services: Services, body: CreateCompletion, record: IdempotencyRecord, prompts: list[list[int]]
    ) -> None:
        self._services = services
        self._body = body
        self._record = record
        self._prompts = prompts
        model = services.shared.model
        self._head = {
            "id": f"cmpl-{record.id}", "object": "text_completion", "created": int(now()), "model": model.name,
            "system_fingerprint": model.fingerprint[:16],
        }  # fmt: skip
        echoed = [model.tokenizer.decode(prompt, skip_special=False) if body.echo else None for prompt in prompts]
        self._texts = [
            Text(number * body.n + copy, prompt, model.tokenizer, echoed[number], body.logprobs)
            for number, prompt in enumerate(prompts)
            for copy in range(body.n)
        ]
        self._events = [self._complete(text) for text in self._texts]
        self._first: CompletionEvent | None = None

    @staticmethod
    async def of(services: Services, body: CreateCompletion, record: IdempotencyRecord) -> _Work:
        """Check the request. Raises `ServerError`."""
        require_json(body.json_schema, "json_schema")
        prompts = await asyncio.to_thread(_tokens, services, body)
        count = len(prompts) * body.n
        if count > MAX_CHOICES:
            raise InvalidRequest(
                f"n: {len(prompts)} prompts with n={body.n} are {count} texts, the limit is {MAX_CHOICES}", param="n"
            )
        if not body.max_tokens and not body.echo:
            raise InvalidRequest("max_tokens: 0 tokens only with `echo`", param="max_tokens")
        echoed = sum(map(len, prompts)) * body.n if body.echo else 0
        if echoed > MAX_ECHOED:
            raise InvalidRequest(
                f"echo: {echoed} tokens of prompts would be returned, the limit for a request is {MAX_ECHOED}: send shorter or fewer "
                "prompts, or a smaller n",
                param="echo",
            )
        if body.logprobs is not None:
            scored = sum(map(len, prompts)) if body.echo else 0
            total = (scored + body.max_tokens * len(prompts)) * body.n * (1 + body.logprobs)
            if total > MAX_LOGPROBS:
                raise InvalidRequest(
                    f"logprobs: {total} log-probabilities, the limit for a request is {MAX_LOGPROBS}: send shorter or fewer prompts",
                    param="logprobs",
                )
        return await asyncio.to_thread(_Work, services, body, record, prompts)  # decodes the prompts

    def _complete(self, text: Text) -> AsyncGenerator[CompletionEvent, None]:
        body = self._body
        given = body.model_dump(include=set(SamplingParams.model_fields) - {"logprobs", "top_logprobs", "max_tokens"})
        params = SamplingParams(
            **given,
            max_tokens=max(1, body.max_tokens),
            logprobs=body.logprobs is not None,
            top_logprobs=body.logprobs or 0,
        )
        if body.echo and params.logprobs and body.max_tokens == 1:
            # Harnesses request one token only to get the prompt's scores, and drop the last entry of the lists: there must be one.
            params = params.model_copy(update={"ignore_eos": True})
        if params.seed is not None:
            params = params.model_copy(update={"seed": (params.seed + text.index % body.n) % 2**63})
        score = body.logprobs if body.echo else None
        return self._services.completions.complete(text.prompt, params, generate=body.max_tokens > 0, score=score)

    async def completion(self) -> dict[str, Any]:
        """Generate all texts, record the completion and return it."""
        services = self._services
        most = services.quota.limits.streams or _AT_ONCE
        slots = asyncio.Semaphore(min(_AT_ONCE, most, services.shared.engine.max_streams))

        async def run(text: Text, events: AsyncGenerator[CompletionEvent, None]) -> None:
            async with slots, contextlib.aclosing(events):
                async for event in events:
                    text.add(event)

        tasks = [asyncio.create_task(run(*each)) for each in zip(self._texts, self._events, strict=True)]
        try:
            await asyncio.gather(*tasks)
        finally:
            await cancel(*tasks)
        return await self._finish()

    async def begin(self) -> None:
        """Start the first text. Raises `ServerError` if it is refused."""
        self._first = await anext(self._events[0])

    async def chunks(self, *, usage: bool) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the texts as chunks, one text after the other. Call `begin` first."""
        async with self._record:
            for text, events in zip(self._texts, self._events, strict=True):
                async with contextlib.aclosing(events):
                    if self._first is not None and (choice := text.add(self._first)):
                        yield {**self._head, "choices": [choice]}
                    self._first = None
                    async for event in events:
                        last = text is self._texts[-1] and text.end is None
                        choice = text.add(event)
                        if last and text.end is not None:
                            completion = await self._finish()
                        if choice is not None:
                            yield {**self._head, "choices": [choice]}
        if usage:
            yield {**self._head, "choices": [], "usage": completion["usage"]}

    async def _finish(self) -> dict[str, Any]:
        completion = completion_view(self._head, self._texts, sum(map(len, self._prompts)))
        await self._record.finish(completion)
        return completion


def _tokens(services: Services, body: CreateCompletion) -> list[list[int]]:
    """Return the tokens of each prompt. Raises `InvalidRequest`, and `TooLarge` for a prompt longer than a message may be."""
    prompt, tokenizer = body.prompt, services.shared.model.tokenizer
    given: list[str | list[int]]
    if isinstance(prompt, str):
        given, names = [prompt], ["prompt"]
    elif isinstance(prompt[0], int):
        given, names = [[int(token) for token in prompt if isinstance(token, int)]], ["prompt"]
    else:
        given = [part for part in prompt if not isinstance(part, int)]
        names = [f"prompt.{number}" for number in range(len(given))]
    limit = services.shared.settings.max_message_chars
    for part, name in zip(given, names, strict=True):
        if len(part) > limit:
            unit = "characters" if isinstance(part, str) else "tokens"
            raise TooLarge(
                f"{name} has {len(part)} {unit}, the limit is {limit} (EVERLONG_MAX_MESSAGE_CHARS)", param=name
            )
    tokens = [tokenizer.encode(part) if isinstance(part, str) else part for part in given]
    for part, name in zip(tokens, names, strict=True):
        services.completions.require_tokens(part, name)
    return tokens
