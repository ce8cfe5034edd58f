"""A response and its events in the format of OpenAI's API, for HTTP and WebSocket."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict
from typing import Any

from everlong_server.api.errors import as_server_error
from everlong_server.engine.answering.events import (
    AnswerEvent,
    ResponseCompleted,
    ResponseCreated,
    ResponseEvidence,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallStarted,
)
from everlong_server.engine.answering.responses import ResponseTurn
from everlong_server.store import responses as store
from everlong_server.store.messages import AnswerMessage, Citation, evidence_json
from everlong_server.store.texts.passage import Passage


def response_view(response: store.Response) -> dict[str, Any]:
    """Return a response in the format of OpenAI's API."""
    request, message = response.request, response.message
    params, usage = request["params"], None
    if message is not None:
        used = message.usage
        usage = {
            "input_tokens": used.prompt_tokens,
            "input_tokens_details": {"cached_tokens": used.reused_tokens, "cache_write_tokens": 0},
            "output_tokens": used.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used.prompt_tokens + used.completion_tokens,
        }
    return {
        "id": response.id, "object": "response", "created_at": int(response.created_at),
        "completed_at": None if response.completed_at is None else int(response.completed_at),
        "status": response.status, "background": response.background, "error": response.error,
        "incomplete_details": _incomplete(message) if response.status == "incomplete" else None,
        "instructions": request["instructions"], "max_output_tokens": params["max_tokens"],
        "metadata": request["metadata"], "model": request["model"],
        "output": [] if message is None else [*_search_items(response), *_output(message, response.status)],
        "parallel_tool_calls": request.get("parallel_tool_calls", False), "previous_response_id": response.previous,
        "store": request["store"], "temperature": params["temperature"], "text": request["text"],
        "tool_choice": request.get("tool_choice", "none"), "tools": request.get("tools", []),
        "top_logprobs": params["top_logprobs"], "top_p": params["top_p"], "truncation": request["truncation"],
        "usage": usage,
    }  # fmt: skip


def _incomplete(message: AnswerMessage | None) -> dict[str, str]:
    looped = message is not None and message.finish_reason == "repetition"
    return {"reason": "repetition" if looped else "max_output_tokens"}


def _search_items(response: store.Response) -> list[dict[str, Any]]:
    """Return the item of the search that the answer rests on, if there was one."""
    call = response.searched
    if call is None:
        return []
    results = None
    if "file_search_call.results" in response.request.get("include", ()):
        results = [asdict(each) | {"filename": each.filename or each.file_id} for each in call.results]
    return [
        {
            "id": call.id,
            "type": "file_search_call",
            "status": "completed",
            "queries": [*call.queries],
            "results": results,
        }
    ]


def _output(message: AnswerMessage, status: str) -> list[dict[str, Any]]:
    """Return the items of an answer: its text, unless it has only calls; then its calls."""
    calls = [_call_item(call.id, call.name, call.arguments, "completed") for call in message.tool_calls]
    if calls:
        calls[-1]["status"] = status
    if calls and not message.content:
        return calls
    text = _text(message.content, message.logprobs or [], [_annotation(citation) for citation in message.citations])
    text_status = "completed" if calls else status
    return [_item(message.id, text_status, [text], message.evidence, message.citations), *calls]


def _call_item(id: str, name: str, arguments: str, status: str) -> dict[str, Any]:
    return {
        "id": f"fc_{id.partition('_')[2]}", "type": "function_call", "call_id": id, "name": name, "arguments": arguments,
        "status": status,
    }  # fmt: skip


def _item(
    id: str,
    status: str,
    content: list[dict[str, Any]],
    evidence: Sequence[Passage],
    citations: Sequence[Citation] = (),
) -> dict[str, Any]:
    return {
        "id": id, "type": "message", "role": "assistant", "status": status, "content": content,
        "evidence": [evidence_json(passage) for passage in evidence],
        "citations": [citation.json() for citation in citations],
    }  # fmt: skip


def _text(text: str, logprobs: list[dict[str, Any]], annotations: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": logprobs}


def _annotation(citation: Citation) -> dict[str, Any]:
    return {
        "type": "file_citation", "file_id": citation.document, "filename": citation.filename or citation.document,
        "index": citation.end,
    }  # fmt: skip


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
    items = _Items(answering)
    async with contextlib.aclosing(answering.events) as turn:
        async for event in turn:
            for piece in items.pieces(event):
                yield piece
    for piece in _ending(response_view(answering.response)):
        yield piece


class _Items:
    """Opens the items of a response as they are generated: its text, then its calls."""

    def __init__(self, answering: ResponseTurn) -> None:
        self._answering = answering
        self._may_call = any(tool["type"] == "function" for tool in answering.response.request.get("tools", ()))
        self._searches = _search_items(answering.response)
        self._evidence: Sequence[Passage] = ()
        self._opened: list[str] = []
        """The ids of the items that the client knows."""

    def pieces(self, event: AnswerEvent) -> list[tuple[str, dict[str, Any]]]:
        """Return the types and fields of the events of OpenAI's API for an event of the turn."""
        match event:
            case ResponseCreated():
                begun = {"response": response_view(self._answering.response)}
                return [("response.created", begun), ("response.in_progress", begun)]
            case ResponseEvidence(_, evidence):
                self._evidence = evidence
                searched = [piece for n, item in enumerate(self._searches) for piece in _search_pieces(n, item)]
                # With functions, the answer may have no text.
                return searched if self._may_call else [*searched, *self._open_text()]
            case TextDelta(_, text, logprobs):
                if self._may_call and not text:
                    return []
                delta = _at_text(self._answering.turn.id, len(self._searches)) | {"delta": text, "logprobs": logprobs}
                return [*self._open_text(), ("response.output_text.delta", delta)]
            case ToolCallStarted(_, _, id, name):
                item = _call_item(id, name, "", "in_progress")
                self._opened.append(item["id"])
                return _opening(self._last, item)
            case ToolArgumentsDelta(_, _, arguments):
                at = {"item_id": self._opened[-1], "output_index": self._last}
                return [("response.function_call_arguments.delta", at | {"delta": arguments})]
            case ResponseCompleted():
                return self._open_text()

    def _open_text(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the first events of the text, unless an item is open."""
        if self._opened:
            return []
        self._opened.append(self._answering.turn.id)
        return _opening(self._last, _item(self._answering.turn.id, "in_progress", [], self._evidence))

    @property
    def _last(self) -> int:
        """The index of the item that was opened last."""
        return len(self._searches) + len(self._opened) - 1


def _at_text(item_id: str, index: int) -> dict[str, Any]:
    return {"item_id": item_id, "output_index": index, "content_index": 0}


def _search_pieces(index: int, item: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of a search, which has ended."""
    at = {"item_id": item["id"], "output_index": index}
    begun = {"output_index": index, "item": item | {"status": "in_progress", "results": None}}
    steps = [(f"response.file_search_call.{step}", at) for step in ("in_progress", "searching", "completed")]
    ended = ("response.output_item.done", {"output_index": index, "item": item})
    return [("response.output_item.added", begun), *steps, ended]


def _opening(index: int, item: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the first events of the item `index` of a response."""
    added = ("response.output_item.added", {"output_index": index, "item": item})
    if item["type"] == "function_call":
        return [added]
    return [added, ("response.content_part.added", _at_text(item["id"], index) | {"part": _text("", [])})]


def _ending(response: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the last events of an answered response."""
    pieces: list[tuple[str, dict[str, Any]]] = []
    for index, item in enumerate(response["output"]):
        if item["type"] == "file_search_call":
            continue  # it ended before the answer began
        if item["type"] == "function_call":
            at = {"item_id": item["id"], "output_index": index}
            done = {"name": item["name"], "arguments": item["arguments"]}
            pieces.append(("response.function_call_arguments.done", at | done))
        else:
            at, (part,) = _at_text(item["id"], index), item["content"]
            pieces += [
                ("response.output_text.annotation.added", at | {"annotation_index": number, "annotation": annotation})
                for number, annotation in enumerate(part["annotations"])
            ]
            pieces.append(("response.output_text.done", at | {"text": part["text"], "logprobs": part["logprobs"]}))
            pieces.append(("response.content_part.done", at | {"part": part}))
        pieces.append(("response.output_item.done", {"output_index": index, "item": item}))
    return [*pieces, (f"response.{response['status']}", {"response": response})]


async def replayed_events(response: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the events of a recorded response, with each text in one piece."""
    unanswered: dict[str, Any] = {
        "status": "in_progress",
        "completed_at": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
    }
    begun = {"response": response | unanswered}
    pieces = [("response.created", begun), ("response.in_progress", begun)]
    for index, item in enumerate(response["output"]):
        if item["type"] == "file_search_call":
            pieces += _search_pieces(index, item)
        elif item["type"] == "function_call":
            pieces += _opening(index, item | {"status": "in_progress", "arguments": ""})
            at = {"item_id": item["id"], "output_index": index}
            pieces.append(("response.function_call_arguments.delta", at | {"delta": item["arguments"]}))
        else:
            (part,) = item["content"]
            pieces += _opening(index, item | {"status": "in_progress", "content": [], "citations": []})
            delta = {"delta": part["text"], "logprobs": part["logprobs"]}
            pieces.append(("response.output_text.delta", _at_text(item["id"], index) | delta))
    for number, (kind, more) in enumerate([*pieces, *_ending(response)]):
        yield {"type": kind, "sequence_number": number, **more}
