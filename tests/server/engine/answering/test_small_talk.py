"""Small talk about a document that fits into the open segment of the window memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.process import Server
from tests.tinymodel import make_tool_model

GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
NOTE = "Dear Ann,\nthe picnic by the river is on Sunday. Bring the basket.\nYours, Tom"


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = make_tool_model(tmp_path_factory.mktemp("model"))
    with Server(model, tmp_path_factory.mktemp("data"), recall_tokens=100) as server:
        yield server.start()


@pytest.mark.parametrize("message", ["hi!", "Thanks"])
def test_small_talk_does_not_see_a_short_text(own_server: Server, message: str) -> None:
    note = own_server.read(NOTE)["id"]
    without = own_server.say(own_server.session()["id"], message, **GREEDY)
    beside = own_server.say(own_server.session(note)["id"], message, **GREEDY)
    assert beside["evidence"] == []
    assert beside["content"] == without["content"]


def test_a_request_about_a_short_text_has_it_as_evidence(own_server: Server) -> None:
    """The search finds nothing about it, but the model sees the text."""
    note, request = own_server.read(NOTE)["id"], "Please turn that into nice German prose."
    answer = own_server.say(own_server.session(note)["id"], request, **GREEDY)
    plain = own_server.say(own_server.session(note)["id"], request, **GREEDY, recall=False)
    assert "".join(passage["text"] for passage in answer["evidence"]).split() == NOTE.split()
    assert answer["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    assert answer["content"] == plain["content"]


def test_a_question_sees_a_short_text(own_server: Server) -> None:
    note, question = own_server.read(NOTE)["id"], "When is the picnic?"
    without = own_server.say(own_server.session()["id"], question, **GREEDY)
    beside = own_server.say(own_server.session(note)["id"], question, **GREEDY)
    assert beside["usage"]["prompt_tokens"] > without["usage"]["prompt_tokens"] + 20
    assert beside["content"] != without["content"]
