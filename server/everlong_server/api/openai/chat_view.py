"""Chat completions in the format of OpenAI's API: whole, as chunks while they are generated, and replayed from a record."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from everlong_server.api.openai.chat_schemas import ChatUsage
from everlong_server.engine.answering.events import (
    AnswerEvent,
    ResponseCompleted,
    ResponseCreated,
    ResponseEvidence,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallStarted,
)
from everlong_server.store.idempotency import IdempotencyRecord
from everlong_server.store.messages import AnswerMessage, evidence_json

_START = {"role": "assistant", "content": "", "refusal": None}


def completion_view(head: dict[str, Any], messages: Mapping[int, AnswerMessage]) -> dict[str, Any]:
    """Return the completion. `head`: its first fields; `messages`: the answers by their index."""
    choices = [_choice(index, messages[index]) for index in sorted(messages)]
    return {**head, "choices": choices, "usage": _usage(messages)}


async def live_chunks(
    head: dict[str, Any],
    numbered: AsyncGenerator[tuple[int, AnswerEvent], None],
    count: int,
    record: IdempotencyRecord,
    *,
    usage: bool,
    nullable: bool = False,
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield `count` answers as chunks of the completion `head`. The evidence precedes the first token.

    `nullable`: the answers may have no text, only calls. `numbered`: their events, each with its answer's index. Records the completion before the last answer's last chunk, or
    releases the key if there is none.
    """
    chunks, messages = _Chunks(head, usage=usage), dict[int, AnswerMessage]()
    async with record, contextlib.aclosing(numbered) as events:
        async for index, event in events:
            match event:
                case ResponseCreated():
                    yield chunks.of(index, _START | ({"content": None} if nullable else {}))
                case ResponseEvidence(_, evidence):
                    yield chunks.of(index, {"evidence": [evidence_json(passage) for passage in evidence]})
                case TextDelta(_, text, logprobs):
                    yield chunks.of(index, {"content": text}, _logprobs(logprobs or None))
                case ToolCallStarted(_, number, id, name):
                    yield chunks.of(index, _call_delta(number, _call_json(id, name, "")))
                case ToolArgumentsDelta(_, number, arguments):
                    yield chunks.of(index, _call_delta(number, {"function": {"arguments": arguments}}))
                case ResponseCompleted(message):
                    messages[index] = message
                    if len(messages) == count:
                        await record.finish(completion_view(head, messages))
                    yield chunks.of(index, _support(message))
                    yield chunks.of(index, {}, **_end(message))
    if usage:
        yield chunks.last(_usage(messages))


async def replayed_chunks(completion: dict[str, Any], *, usage: bool) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the chunks of a recorded completion, with each text in one piece."""
    chunks = _Chunks({name: completion[name] for name in completion if name not in ("choices", "usage")}, usage=usage)
    for choice in completion["choices"]:
        index, message = choice["index"], choice["message"]
        yield chunks.of(index, _START | ({"content": None} if message["content"] is None else {}))
        yield chunks.of(index, {"evidence": message["evidence"]})
        if message["content"]:
            yield chunks.of(index, {"content": message["content"]}, choice["logprobs"])
        for number, call in enumerate(message.get("tool_calls", ())):
            yield chunks.of(index, _call_delta(number, call))
        yield chunks.of(index, {name: message[name] for name in ("citations", "agreement") if name in message})
        yield chunks.of(index, {}, finish_reason=choice["finish_reason"], stop_reason=choice["stop_reason"])
    if usage:
        yield chunks.last(completion["usage"])


class _Chunks:
    """Makes the chunks of one completion. `usage`: the last chunk will have the usage, which is null in the others."""

    def __init__(self, head: dict[str, Any], *, usage: bool) -> None:
        self._head = head | {"object": "chat.completion.chunk"}
        self._no_usage: dict[str, Any] = {"usage": None} if usage else {}

    def of(self, index: int, delta: dict[str, Any], logprobs: Any = None, **end: str | None) -> dict[str, Any]:
        """Return a chunk of the answer `index`. `end`: why the answer ended, in its last chunk."""
        choice = {"index": index, "delta": delta, "logprobs": logprobs, **(end or {"finish_reason": None})}
        return {**self._head, "choices": [choice], **self._no_usage}

    def last(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the chunk with the usage."""
        return {**self._head, "choices": [], "usage": usage}


def _choice(index: int, message: AnswerMessage) -> dict[str, Any]:
    evidence = [evidence_json(passage) for passage in message.evidence]
    content = None if message.tool_calls and not message.content else message.content
    answer: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None, "evidence": evidence}
    answer |= _support(message)
    if message.tool_calls:
        answer["tool_calls"] = [_call_json(call.id, call.name, call.arguments) for call in message.tool_calls]
    return {"index": index, "message": answer, "logprobs": _logprobs(message.logprobs), **_end(message)}


def _support(message: AnswerMessage) -> dict[str, Any]:
    """Return the fields of an answer that tell how far to trust it."""
    agreement = {} if message.agreement is None else {"agreement": message.agreement}
    return {"citations": [citation.json() for citation in message.citations], **agreement}


def _end(message: AnswerMessage) -> dict[str, str | None]:
    """Return why the answer ended, in values of `finish_reason` that OpenAI's SDKs know."""
    looped, called = message.finish_reason == "repetition", message.finish_reason == "stop" and message.tool_calls
    return {
        "finish_reason": "length" if looped else "tool_calls" if called else message.finish_reason,
        "stop_reason": "repetition" if looped else None,
    }


def _call_json(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _call_delta(number: int, call: dict[str, Any]) -> dict[str, Any]:
    """Return the delta of the call `number` of an answer."""
    return {"tool_calls": [{"index": number, **call}]}


def _logprobs(logprobs: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    return None if logprobs is None else {"content": logprobs, "refusal": None}


def _usage(messages: Mapping[int, AnswerMessage]) -> dict[str, Any]:
    """Return the token counts. All answers share one prompt."""
    prompt, answers = messages[0].usage, sum(message.usage.completion_tokens for message in messages.values())
    return ChatUsage.model_validate(
        {
            "prompt_tokens": prompt.prompt_tokens,
            "completion_tokens": answers,
            "total_tokens": prompt.prompt_tokens + answers,
            "prompt_tokens_details": {"cached_tokens": prompt.reused_tokens},
        }
    ).model_dump()
