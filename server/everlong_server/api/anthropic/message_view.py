"""Messages in the format of Anthropic's API: whole, as events while they are generated, and replayed from a record."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from everlong_models import ToolCall
from everlong_server.api.anthropic.conversation import Conversation
from everlong_server.api.anthropic.message_schemas import (
    AnswerText,
    AnthropicMessage,
    AnthropicUsage,
    CalledTool,
    Location,
)
from everlong_server.engine.answering.events import (
    ResponseCompleted,
    ResponseCreated,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallStarted,
    TurnEvents,
)
from everlong_server.store.idempotency import IdempotencyRecord
from everlong_server.store.messages import AnswerMessage, Usage

Event = dict[str, Any]


async def message_view(message_id: str, message: AnswerMessage, conversation: Conversation) -> dict[str, Any]:
    """Return a complete answer. Its text is split where the citations change."""
    return _message(message_id, message, await _content(message, conversation))


async def live_events(
    message_id: str, events: TurnEvents, conversation: Conversation, record: IdempotencyRecord
) -> AsyncGenerator[Event, None]:
    """Yield an answer in Anthropic's order of events. Its text is one block, whose citations follow the text; each call is one.

    Records the message before its last events, or releases the key if there are none.
    """
    blocks = _Blocks(conversation.cites)
    async with record, contextlib.aclosing(events):
        async for event in events:
            match event:
                case ResponseCreated(message):
                    yield _message_start(_message(message_id, message, []))
                case TextDelta(_, text, _) if text:
                    for each in blocks.text(text):
                        yield each
                case ToolCallStarted(_, _, id, name):
                    for each in blocks.call(id, name):
                        yield each
                case ToolArgumentsDelta(_, _, arguments):
                    for each in blocks.arguments(arguments):
                        yield each
                case ResponseCompleted(message):
                    view = await message_view(message_id, message, conversation)
                    await record.finish(view)
                    for each in [*blocks.end(view["content"]), *_end(view)]:
                        yield each


async def replayed_events(view: dict[str, Any]) -> AsyncGenerator[Event, None]:
    """Yield the events of a recorded message, with each block's text in one piece."""
    usage = view["usage"] | {"output_tokens": 0}
    yield _message_start(view | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage})
    for index, block in enumerate(view["content"]):
        if block["type"] == "text":
            yield _text_start(index, block.get("citations") is not None)
            yield _delta(index, "text_delta", text=block["text"])
            for citation in block.get("citations") or []:
                yield _delta(index, "citations_delta", citation=citation)
        else:
            yield _call_start(index, block["id"], block["name"])
            yield _delta(index, "input_json_delta", partial_json=json.dumps(block["input"], ensure_ascii=False))
        yield _stop(index)
    for last in _end(view):
        yield last


class _Blocks:
    """Makes the events of an answer's blocks. `cites`: the text has citations, which are known at its end.

    With citations, calls are held back until then, because the block of the text must end before them.
    """

    def __init__(self, cites: bool) -> None:
        self._cites = cites
        self._index = -1
        self._text = -1
        """The index of the block of text, once it began."""
        self._in_text = False
        self._holding = False
        self._held: list[Event] = []

    def text(self, text: str) -> Iterator[Event]:
        """Yield the events of a piece of text."""
        events: list[Event] = []
        if not self._in_text:
            events += self._stop_last()
            self._index, self._in_text = self._index + 1, True
            self._text = self._index
            events += [_text_start(self._index, self._cites), {"type": "ping"}]
        return self._sent([*events, _delta(self._index, "text_delta", text=text)])

    def call(self, id: str, name: str) -> Iterator[Event]:
        """Yield the events of the beginning of a call."""
        self._holding |= self._cites and self._in_text
        events = [] if self._in_text and self._holding else self._stop_last()
        self._index, self._in_text = self._index + 1, False
        return self._sent([*events, _call_start(self._index, id, name)])

    def arguments(self, arguments: str) -> Iterator[Event]:
        """Yield the events of a piece of a call's arguments."""
        return self._sent([_delta(self._index, "input_json_delta", partial_json=arguments)])

    def end(self, content: list[dict[str, Any]]) -> Iterator[Event]:
        """Yield the events of the end of the answer. `content`: its blocks, with their citations."""
        for citation in [each for block in content for each in block.get("citations") or []]:
            yield _delta(self._text, "citations_delta", citation=citation)
        if self._holding:
            yield _stop(self._text)
            yield from self._held
        yield from self._stop_last()

    def _stop_last(self) -> list[Event]:
        return [_stop(self._index)] if self._index >= 0 else []

    def _sent(self, events: list[Event]) -> Iterator[Event]:
        """Yield the events, or hold them back."""
        if self._holding:
            self._held += events
        else:
            yield from events


def _message(message_id: str, message: AnswerMessage, content: list[AnswerText | CalledTool]) -> dict[str, Any]:
    stop = _STOP_REASONS.get(message.finish_reason)
    view = AnthropicMessage(
        id=message_id,
        model=message.model,
        content=content,
        stop_reason="stop_sequence"
        if message.stop_sequence is not None
        else "tool_use"
        if message.tool_calls and stop == "end_turn"
        else stop,
        stop_sequence=message.stop_sequence,
        usage=_usage(message.usage),
    ).model_dump(mode="json")
    for block in view["content"]:
        if block.get("citations", ()) is None:  # left out, as in Anthropic's own answers: Vercel's SDK refuses a null
            del block["citations"]
    return view


_STOP_REASONS: dict[str, Any] = {
    "stop": "end_turn", "length": "max_tokens", "repetition": "max_tokens", "cancelled": "end_turn"
}  # fmt: skip


def _usage(usage: Usage) -> AnthropicUsage:
    return AnthropicUsage(
        input_tokens=usage.prompt_tokens - usage.reused_tokens,
        cache_read_input_tokens=usage.reused_tokens,
        output_tokens=usage.completion_tokens,
    )


async def _content(message: AnswerMessage, conversation: Conversation) -> list[AnswerText | CalledTool]:
    """Return the text in blocks: one for each cited sentence with its citations, and those between. Calls follow."""
    cited = dict[tuple[int, int], list[Location]]()  # by the ends of the sentence; sentences do not overlap
    for citation in message.citations if conversation.cites else []:
        location = await conversation.location(citation, message.evidence[citation.evidence])
        if location is not None:
            cited.setdefault((citation.start, citation.end), []).append(location)
    text, at = message.content, 0
    blocks: list[AnswerText | CalledTool] = []
    for (start, end), locations in sorted(cited.items(), key=lambda item: item[0]):
        if start > at:
            blocks.append(AnswerText(text=text[at:start], citations=None))
        blocks.append(AnswerText(text=text[start:end], citations=locations))
        at = end
    if at < len(text):
        blocks.append(AnswerText(text=text[at:], citations=None))
    return [*blocks, *(CalledTool(id=call.id, name=call.name, input=_input(call)) for call in message.tool_calls)]


def _input(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a call; {} if the answer was cut off before they were complete."""
    try:
        return dict(json.loads(call.arguments))
    except ValueError:
        return {}


def _message_start(view: dict[str, Any]) -> Event:
    return {"type": "message_start", "message": view}


def _text_start(index: int, cites: bool) -> Event:
    return _start(index, {"type": "text", "text": "", **({"citations": []} if cites else {})})


def _call_start(index: int, id: str, name: str) -> Event:
    return _start(index, {"type": "tool_use", "id": id, "name": name, "input": {}})


def _start(index: int, block: dict[str, Any]) -> Event:
    return {"type": "content_block_start", "index": index, "content_block": block}


def _delta(index: int, kind: str, **fields: Any) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def _stop(index: int) -> Event:
    return {"type": "content_block_stop", "index": index}


def _end(view: dict[str, Any]) -> Iterator[Event]:
    delta = {"stop_reason": view["stop_reason"], "stop_sequence": view["stop_sequence"]}
    yield {"type": "message_delta", "delta": delta, "usage": view["usage"]}
    yield {"type": "message_stop"}
