"""A response and its events in the format of OpenAI's API, for HTTP and WebSocket."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict
from typing import Any

from everlong_server.api.errors import as_server_error
from everlong_server.engine.answering.events import ResponseCompleted, ResponseCreated, ResponseEvidence, TextDelta
from everlong_server.engine.answering.responses import ResponseTurn
from everlong_server.store import responses as store
from everlong_server.store.messages import AnswerMessage, Citation, evidence_json
from everlong_server.store.search.passages import Passage


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
        "output": [] if message is None else [_output(message, response.status)],
        "parallel_tool_calls": False, "previous_response_id": response.previous, "store": request["store"],
        "temperature": params["temperature"], "text": request["text"], "tool_choice": "none", "tools": [],
        "top_logprobs": params["top_logprobs"], "top_p": params["top_p"], "truncation": request["truncation"],
        "usage": usage,
    }  # fmt: skip


def _incomplete(message: AnswerMessage | None) -> dict[str, str]:
    looped = message is not None and message.finish_reason == "repetition"
    return {"reason": "repetition" if looped else "max_output_tokens"}


def _output(message: AnswerMessage, status: str) -> dict[str, Any]:
    text = _text(message.content, message.logprobs or [], [_annotation(citation) for citation in message.citations])
    return _item(message.id, status, [text], message.evidence, message.citations)


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
        "citations": [asdict(citation) for citation in citations],
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
    item = answering.turn.id
    evidence: Sequence[Passage] = ()
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
            match event:
                case ResponseCreated():
                    for name in ("created", "in_progress"):
                        yield f"response.{name}", {"response": response_view(answering.response)}
                case ResponseEvidence(_, evidence):
                    for piece in open_item():
                        yield piece
                case TextDelta(_, text, logprobs):
                    for piece in open_item():
                        yield piece
                    yield "response.output_text.delta", at | {"delta": text, "logprobs": logprobs}
                case ResponseCompleted():
                    for piece in open_item():
                        yield piece
    for piece in _ending(response_view(answering.response)):
        yield piece


def _ending(response: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the last events of an answered response."""
    (output,) = response["output"]
    (part,) = output["content"]
    at = {"item_id": output["id"], "output_index": 0, "content_index": 0}
    annotations = [
        ("response.output_text.annotation.added", at | {"annotation_index": number, "annotation": annotation})
        for number, annotation in enumerate(part["annotations"])
    ]
    return [
        *annotations,
        ("response.output_text.done", at | {"text": part["text"], "logprobs": part["logprobs"]}),
        ("response.content_part.done", at | {"part": part}),
        ("response.output_item.done", {"output_index": 0, "item": output}),
        (f"response.{response['status']}", {"response": response}),
    ]


async def replayed_events(response: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the events of a recorded response, with its text in one piece."""
    unanswered: dict[str, Any] = {
        "status": "in_progress",
        "completed_at": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
    }
    (output,) = response["output"]
    (part,) = output["content"]
    at = {"item_id": output["id"], "output_index": 0, "content_index": 0}
    begun = {"response": response | unanswered}
    pieces = [
        ("response.created", begun),
        ("response.in_progress", begun),
        (
            "response.output_item.added",
            {"output_index": 0, "item": output | {"status": "in_progress", "content": [], "citations": []}},
        ),
        ("response.content_part.added", at | {"part": _text("", [])}),
        ("response.output_text.delta", at | {"delta": part["text"], "logprobs": part["logprobs"]}),
        *_ending(response),
    ]
    for number, (kind, more) in enumerate(pieces):
        yield {"type": kind, "sequence_number": number, **more}
