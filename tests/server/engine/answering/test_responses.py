"""`ResponseTurns`: the system text that holds for a response, and what its search looked for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from everlong_models import SamplingParams
from everlong_server.engine.answering.evidence.grounding import Recall
from everlong_server.engine.answering.responses import ResponseTurns
from everlong_server.store.records import Message
from everlong_server.store.responses import Response
from everlong_server.store.vector_stores.file_search import FileSearch

ASKED, TOLD = Message("user", "Who?"), Message("system", "Be kind.")


def created(previous: Response | None, instructions: str | None, *messages: Message) -> Response:
    model = SimpleNamespace(tools=None, fingerprint="model")
    turns = ResponseTurns(None, SimpleNamespace(model=model), None, None, None, SimpleNamespace(tenant="ann"), None)  # type: ignore[arg-type]
    return turns.create(previous, [], messages, instructions, SamplingParams(), Recall(4, 96), background=False)


def test_instructions_and_system_messages_hold_for_later_responses() -> None:
    plain = created(None, None, ASKED)
    assert "system" not in plain.request
    told = created(None, "Be brief.", TOLD, ASKED)
    assert told.request["system"] == "Be brief.\n\nBe kind."
    for instructions in (None, "Be brief."):  # unchanged
        assert created(told, instructions, ASKED).request["system"] == "Be brief.\n\nBe kind."
    assert (
        created(told, None, Message("system", "Rhyme."), ASKED).request["system"] == "Be brief.\n\nBe kind.\n\nRhyme."
    )
    assert created(told, "Be long.", ASKED).request["system"] == "Be long.", "new instructions replace all"


def test_instructions_of_a_response_of_the_release_before_hold_too() -> None:
    """Its requests have no `system`, only instructions and messages."""
    told = created(None, "Be brief.", TOLD, ASKED)
    before = replace(told, request={name: value for name, value in told.request.items() if name != "system"})
    assert before.system == "Be brief.\n\nBe kind."
    assert replace(before, said=(ASKED,)).system == "Be brief."
    assert replace(before, said=(TOLD, ASKED), instructions=None).system == "Be kind."
    assert created(before, None, ASKED).system == "Be brief.\n\nBe kind."
    assert created(None, None, ASKED).system is None


@pytest.mark.parametrize(("standalone", "searched"), [(None, "Who?"), ("Who is the captain?", "Who is the captain?")])
def test_a_file_search_names_the_question_that_was_searched_for(standalone: str | None, searched: str) -> None:
    turn = SimpleNamespace(standalone_question=standalone, evidence=())
    search = SimpleNamespace(files=AsyncMock(return_value={}), call=AsyncMock())
    turns = ResponseTurns(
        SimpleNamespace(answer=AsyncMock(return_value=turn)), None, None, None, None, None, search  # type: ignore[arg-type]
    )  # fmt: skip
    request = created(None, None, ASKED)
    request.request["file_search"] = FileSearch(("vs_1",), None).json()
    asyncio.run(turns.begin(request, None, None))
    assert search.call.await_args.args[0] == searched
