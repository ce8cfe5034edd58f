"""Messages in the format of Anthropic's API: whole, as events while they are generated, and replayed from a record."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from everlong_server.api.anthropic.conversation import Conversation
from everlong_server.api.anthropic.message_schemas import AnswerText, AnthropicMessage, AnthropicUsage, Location
from everlong_server.engine.answering.events import AnswerEvent, ResponseCompleted, ResponseCreated, TextDelta
from everlong_server.store.idempotency import IdempotencyRecord
from everlong_server.store.messages import AnswerMessage, Usage

Event = dict[str, Any]


async def message_view(message_id: str, message: AnswerMessage, conversation: Conversation) -> dict[str, Any]:
    """Return a complete answer. Its text is split where the citations change."""
    return _message(message_id, message, await _content(message, conversation))


async def live_events(
    message_id: str, events: AsyncGenerator[AnswerEvent, None], conversation: Conversation, record: IdempotencyRecord
) -> AsyncGenerator[Event, None]:
    """Yield an answer in Anthropic's order of events. Its text is one block, whose citations follow the text.

    Records the message before its last events, or releases the key if there are none.
    """
    started = False
    async with record, contextlib.aclosing(events):
        async for event in events:
            match event:
                case ResponseCreated(message):
                    yield _message_start(_message(message_id, message, []))
                case TextDelta(_, text, _) if text:
                    if not started:
                        started = True
                        yield _block_start(0, conversation.cites)
                        yield {"type": "ping"}
                    yield _text_delta(0, text)
                case ResponseCompleted(message):
                    view = await message_view(message_id, message, conversation)
                    await record.finish(view)
                    for block in view["content"]:
                        for citation in block["citations"] or []:
                            yield _citation_delta(0, citation)
                    if started:
                        yield {"type": "content_block_stop", "index": 0}
                    for last in _end(view):
                        yield last


async def replayed_events(view: dict[str, Any]) -> AsyncGenerator[Event, None]:
    """Yield the events of a recorded message, with each block's text in one piece."""
    usage = view["usage"] | {"output_tokens": 0}
    yield _message_start(view | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage})
    for index, block in enumerate(view["content"]):
        yield _block_start(index, block["citations"] is not None)
        yield _text_delta(index, block["text"])
        for citation in block["citations"] or []:
            yield _citation_delta(index, citation)
        yield {"type": "content_block_stop", "index": index}
    for last in _end(view):
        yield last


def _message(message_id: str, message: AnswerMessage, content: list[AnswerText]) -> dict[str, Any]:
    stop = _STOP_REASONS.get(message.finish_reason)
    return AnthropicMessage(
        id=message_id,
        model=message.model,
        content=content,
        stop_reason="stop_sequence" if message.stop_sequence is not None else stop,
        stop_sequence=message.stop_sequence,
        usage=_usage(message.usage),
    ).model_dump(mode="json")


_STOP_REASONS: dict[str, Any] = {
    "stop": "end_turn", "length": "max_tokens", "repetition": "max_tokens", "cancelled": "end_turn"
}  # fmt: skip


def _usage(usage: Usage) -> AnthropicUsage:
    return AnthropicUsage(
        input_tokens=usage.prompt_tokens - usage.reused_tokens,
        cache_read_input_tokens=usage.reused_tokens,
        output_tokens=usage.completion_tokens,
    )


async def _content(message: AnswerMessage, conversation: Conversation) -> list[AnswerText]:
    """Return the text in blocks: one for each cited sentence with its citations, and those between."""
    cited = dict[tuple[int, int], list[Location]]()  # by the ends of the sentence; sentences do not overlap
    for citation in message.citations if conversation.cites else []:
        location = await conversation.location(citation, message.evidence[citation.evidence])
        if location is not None:
            cited.setdefault((citation.start, citation.end), []).append(location)
    text, at = message.content, 0
    blocks: list[AnswerText] = []
    for (start, end), locations in sorted(cited.items(), key=lambda item: item[0]):
        if start > at:
            blocks.append(AnswerText(text=text[at:start], citations=None))
        blocks.append(AnswerText(text=text[start:end], citations=locations))
        at = end
    if at < len(text):
        blocks.append(AnswerText(text=text[at:], citations=None))
    return blocks


def _message_start(view: dict[str, Any]) -> Event:
    return {"type": "message_start", "message": view}


def _block_start(index: int, cites: bool) -> Event:
    block: dict[str, Any] = {"type": "text", "text": "", "citations": [] if cites else None}
    return {"type": "content_block_start", "index": index, "content_block": block}


def _text_delta(index: int, text: str) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}}


def _citation_delta(index: int, citation: dict[str, Any]) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": {"type": "citations_delta", "citation": citation}}


def _end(view: dict[str, Any]) -> Iterator[Event]:
    delta = {"stop_reason": view["stop_reason"], "stop_sequence": view["stop_sequence"]}
    yield {"type": "message_delta", "delta": delta, "usage": view["usage"]}
    yield {"type": "message_stop"}
