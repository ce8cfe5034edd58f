"""The field `agreement` of chat completions, whole and streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from everlong_server.api.openai.chat_view import completion_view, live_chunks, replayed_chunks
from everlong_server.engine.answering.events import AnswerEvent, ResponseCompleted
from everlong_server.store.messages import AnswerMessage

HEAD = {"id": "chatcmpl-1"}


class Record(AbstractAsyncContextManager["Record"]):
    """Takes the completion that is recorded."""

    completion: dict[str, Any]

    async def finish(self, completion: dict[str, Any]) -> None:
        self.completion = completion

    async def __aexit__(self, *error: object) -> None:
        pass


async def completed(message: AnswerMessage) -> AsyncGenerator[tuple[int, AnswerEvent], None]:
    yield 0, ResponseCompleted(message)


async def deltas(chunks: AsyncGenerator[dict[str, Any], None]) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] async for chunk in chunks]


@pytest.mark.parametrize("agreement", [0.25, 0.0, None])
def test_the_agreement_of_a_vote_is_in_the_message_and_in_its_streams(agreement: float | None) -> None:
    message = AnswerMessage(
        "msg_1", "ses_1", "model", 0.0, 0, content="Ahab.", finish_reason="stop", agreement=agreement
    )
    record, expected = Record(), [] if agreement is None else [agreement]

    async def streams() -> list[list[dict[str, Any]]]:
        live = await deltas(live_chunks(HEAD, completed(message), 1, record, usage=False))  # type: ignore[arg-type]
        return [live, await deltas(replayed_chunks(record.completion, usage=False))]

    for stream in asyncio.run(streams()):
        assert [delta["agreement"] for delta in stream if "agreement" in delta] == expected
    (choice,) = completion_view(HEAD, {0: message})["choices"]
    assert choice["message"].get("agreement") == agreement
    assert ("agreement" in choice["message"]) is bool(expected)
