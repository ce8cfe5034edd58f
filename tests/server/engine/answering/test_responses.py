"""`ResponseTurns`: the system text that holds for a response, and what its search looked for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from everlong_models import SamplingParams
from everlong_server.engine.answering import responses
from everlong_server.engine.answering.evidence.grounding import Recall
from everlong_server.engine.answering.responses import ResponseTurns
from everlong_server.engine.answering.turn_context import Exchange, newest_exchanges
from everlong_server.errors import Damaged, KeyMissing, NotFound
from everlong_server.store.messages import AnswerMessage
from everlong_server.store.records import Message, Session
from everlong_server.store.responses import Response
from everlong_server.store.vector_stores.file_search import FileSearch, SearchCall

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
    search = SimpleNamespace(
        files=AsyncMock(return_value={}), call=AsyncMock(return_value=SearchCall("fs_1", (searched,), ()))
    )
    turns = ResponseTurns(
        SimpleNamespace(answer=AsyncMock(return_value=turn)), None, None, None, None, None, search  # type: ignore[arg-type]
    )  # fmt: skip
    request = created(None, None, ASKED)
    request.request["file_search"] = FileSearch(("vs_1",), None).json()
    asyncio.run(turns.begin(request, None, None))
    assert search.call.await_args.args[0] == searched


def chain(*turns: tuple[str, str]) -> dict[str, Response]:
    """Return answered responses by id, each of which continues from the one before it. The oldest has the id "r0"."""
    found: dict[str, Response] = {}
    for n, (question, answer) in enumerate(turns):
        response = replace(created(None, None, Message("user", question)), id=f"r{n}", documents=("doc_1",))
        response = replace(response, previous=f"r{n - 1}" if n else None)
        message = AnswerMessage("m", "s", "model", 0.0, 0, (), content=answer)
        found[response.id] = response.answered(message, Session("", "model", "model", ("doc_1",)))
    return found


def newest_of(stored: dict[str, Response], monkeypatch: pytest.MonkeyPatch, **next: Any) -> tuple[list[Exchange], int]:
    """Return the exchanges that a question after the last of the responses can refer to, and how many responses were fetched."""

    async def get(id: str) -> Response:
        if isinstance(response := stored.get(id, NotFound(id)), Exception):
            raise response
        return response

    fetch, chats = AsyncMock(side_effect=get), SimpleNamespace(count_tokens=AsyncMock(return_value=7))
    monkeypatch.setattr(responses, "load_state", lambda *_: None)
    model = SimpleNamespace(tools=None, fingerprint="model")
    turns = ResponseTurns(chats, SimpleNamespace(model=model), SimpleNamespace(get=fetch), None, None, None, None)  # type: ignore[arg-type]
    previous = list(stored.values())[-1]
    asked = replace(created(None, None, Message("user", "Why?")), previous=previous.id, documents=previous.documents)
    assert asyncio.run(turns.count_tokens(replace(asked, **next), previous)) == 7
    checkpoint = chats.count_tokens.await_args.kwargs["checkpoint"]
    return newest_exchanges(checkpoint.newest), fetch.await_count


FOUR = [("Who waited?", "Kitty."), ("Who slept?", "Dinah."), ("Thanks!", "Glad to help."), ("Who left?", "The queen.")]


def test_a_follow_up_can_refer_to_the_three_newest_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    newest, _ = newest_of(chain(("Who sang?", "Nobody."), *FOUR), monkeypatch)
    assert newest == [Exchange(*FOUR[0]), Exchange(*FOUR[1]), Exchange(*FOUR[3])]


def test_few_of_many_responses_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    newest, fetched = newest_of(chain(*FOUR * 10), monkeypatch)
    assert newest == [Exchange(*FOUR[0]), Exchange(*FOUR[1]), Exchange(*FOUR[3])]
    assert fetched <= 5


@pytest.mark.parametrize("gone", [NotFound("no response"), KeyMissing("no key"), Damaged("damaged")])
def test_an_earlier_response_that_cannot_be_fetched_is_left_out(
    monkeypatch: pytest.MonkeyPatch, gone: Exception
) -> None:
    stored: dict[str, Any] = chain(*FOUR)
    stored["r1"] = gone
    assert newest_of(stored, monkeypatch)[0] == [Exchange(*FOUR[3])]


def test_the_question_of_a_response_after_calls_is_known_although_the_one_before_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = chain(("Who left?", "<call>"), ("<results>", "The queen."))
    last = stored["r1"]
    stored["r1"] = replace(last, request=last.request | {"asked": "Who left?"}, said=(Message("system", "Be kind."),))
    del stored["r0"]
    assert newest_of(stored, monkeypatch)[0] == [Exchange("Who left?", "The queen.")]


def test_earlier_responses_are_fetched_only_for_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {id: replace(response, documents=()) for id, response in chain(*FOUR).items()}
    assert newest_of(stored, monkeypatch) == ([Exchange(*FOUR[3])], 0)
    searching = {"file_search": FileSearch(("vs_1",), None).json()}
    request = created(None, None, ASKED).request | searching
    stores = SimpleNamespace(files=AsyncMock(return_value={}))
    monkeypatch.setattr(ResponseTurns, "_recall", AsyncMock(return_value=(Recall(4, 96), stores)))
    assert len(newest_of(stored, monkeypatch, request=request)[0]) == 3
