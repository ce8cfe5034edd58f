"""Conversations over the WebSocket: asking, cancelling, and what its closing means."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from everlong_client import (
    APIStatusError,
    APITimeoutError,
    AsyncEverlong,
    AuthenticationError,
    Everlong,
    ResponseCompleted,
    ResponseCreated,
    ServiceUnavailableError,
    StreamError,
    TextDelta,
)
from everlong_client.transport.call import session_socket
from everlong_client.transport.wire import Wire
from tests.client.fake_server import ANSWER, Fake, FakeServer


def until_text(events: Any) -> str:
    return next(event.delta for event in events if isinstance(event, TextDelta))


def test_questions_one_after_the_other(client: Any, fake: Fake, session: str):
    with client.sessions.connect(session) as conversation:
        for question in ("Who?", "Where?"):
            answer = conversation.send(question, max_tokens=9)
            events = list(answer)
            assert events[0] == ResponseCreated("msg_1")
            assert "".join(event.delta for event in events if isinstance(event, TextDelta)) == ANSWER
            assert events[-1] == ResponseCompleted(answer.message)
            assert answer.message.content == ANSWER
        assert list(answer) == [], "an answer ends once"
    assert fake.questions == [{"content": "Who?", "max_tokens": 9}, {"content": "Where?", "max_tokens": 9}]
    assert fake.closed.wait(10)


def test_cancel(client: Any, fake: Fake, session: str):
    with client.sessions.connect(session) as conversation:
        conversation.cancel()  # nothing to cancel, nothing sent
        answer = conversation.send("hang")
        text = until_text(answer)
        assert not fake.cancelling.is_set()
        conversation.cancel()
        assert [type(event) for event in answer] == [ResponseCompleted]
        assert (answer.message.content, answer.message.finish_reason) == (text, "cancelled")
        assert list(conversation.send("Who?"))[-1].message.content == ANSWER
    assert fake.cancelled.is_set()


def test_cancel_from_another_thread(server: FakeServer):
    session = server.fake.session([])["id"]
    with Everlong(server.url) as client, client.sessions.connect(session) as conversation:
        answer = conversation.send("hang")
        until_text(answer)
        threading.Thread(target=conversation.cancel).start()
        list(answer)
        assert answer.message.finish_reason == "cancelled"


async def test_cancel_from_another_task(server: FakeServer):
    session = server.fake.session([])["id"]
    async with AsyncEverlong(server.url) as client, client.sessions.connect(session) as conversation:
        answer = await conversation.send("hang")
        async for event in answer:
            if isinstance(event, TextDelta):
                asyncio.get_running_loop().call_soon(asyncio.ensure_future, conversation.cancel())
        assert answer.message.finish_reason == "cancelled"


@pytest.mark.parametrize("close", [True, False])
def test_events_of_an_abandoned_answer_do_not_reach_the_next(client: Any, fake: Fake, session: str, close: bool):
    with client.sessions.connect(session) as conversation:
        first = conversation.send("hang")
        until_text(first)
        if close:
            first.close()
            assert fake.cancelled.is_set(), "closing waits for the end"
        second = conversation.send("Who?")
        first.close()  # over: it is not the second's end
        assert "".join(event.delta for event in second if isinstance(event, TextDelta)) == ANSWER


def test_leaving_ends_the_answer(client: Any, fake: Fake, session: str):
    with client.sessions.connect(session) as conversation:
        until_text(conversation.send("hang"))
    assert fake.closed.wait(10)


def test_an_error_event_ends_the_answer_not_the_conversation(client: Any, session: str):
    with client.sessions.connect(session) as conversation:
        with pytest.raises(StreamError, match="no room for the answer") as raised:
            list(conversation.send("fail"))
        assert raised.value.code == "out_of_memory"
        assert list(conversation.send("Who?"))[-1].message.content == ANSWER


def test_a_closed_connection_is_opened_again(client: Any, fake: Fake, session: str):
    with client.sessions.connect(session) as conversation:
        with pytest.raises(StreamError, match="no room for the answer"):
            list(conversation.send("full"))
        assert fake.closed.wait(10), "the server closes the connection after the error; no one reads from it"
        assert list(conversation.send("Who?"))[-1].message.content == ANSWER


def test_a_restarting_server(client: Any, session: str):
    with client.sessions.connect(session) as conversation:
        with pytest.raises(StreamError, match="the server is restarting: see you soon") as raised:
            list(conversation.send("die"))
        assert raised.value.close_code == 1012
        assert list(conversation.send("Who?"))[-1].message.content == ANSWER, "over a new connection"


def test_an_unknown_session(client: Any):
    with client.sessions.connect("ses_none") as conversation:
        with pytest.raises(StreamError, match="the server refused the request: no session ses_none") as raised:
            list(conversation.send("Who?"))
        assert raised.value.close_code == 1008


def test_a_lost_connection(make: Callable[..., Any]):
    server = FakeServer()
    server.reset()
    client = make(server.url)
    with client.sessions.connect(server.fake.session([])["id"]) as conversation:
        answer = conversation.send("hang")
        until_text(answer)
        server.stop()
        with pytest.raises(StreamError) as raised:
            list(answer)
    assert raised.value.close_code in (1006, 1012)


def test_closing_from_another_thread(server: FakeServer):
    session = server.fake.session([])["id"]
    with Everlong(server.url) as client:
        conversation = client.sessions.connect(session)
        answer = conversation.send("hang")
        until_text(answer)
        threading.Thread(target=conversation.close).start()
        with pytest.raises(StreamError):
            list(answer)


def test_no_websocket_here(make: Callable[..., Any], server: FakeServer):
    """A refused handshake raises the same errors as a refused request."""
    with pytest.raises(APIStatusError, match="HTTP 403") as raised:
        make(server.url + "/elsewhere").sessions.connect("ses_1").send("?")
    assert raised.value.status == 403


def test_a_handshake_that_is_never_answered(make: Callable[..., Any], mute_url: str):
    with pytest.raises(APITimeoutError, match="did not respond in time"):
        make(mute_url, timeout=0.1).sessions.connect("ses_1").send("?")
    assert Wire(mute_url, None, 0.1).socket(session_socket("ses_1"))["open_timeout"] == 0.1, "not websockets' own 10 s"


def test_a_handshake_that_is_refused_for_now_is_tried_again(make: Callable[..., Any], fake: Fake, server: FakeServer):
    client, session = make(server.url, retries=2), fake.session([])["id"]
    fake.refused_sockets = 2
    with client.sessions.connect(session) as conversation:
        assert list(conversation.send("Who?"))[-1].message.content == ANSWER
    fake.refused_sockets = 4
    with pytest.raises(ServiceUnavailableError, match="too many answers at once"):
        client.sessions.connect(session).send("Who?")
    assert fake.refused_sockets == 1


def test_the_key_is_sent(make: Callable[..., Any], server: FakeServer, session: str):
    server.fake.api_key = "sesame"
    with make(server.url, api_key="sesame").sessions.connect(session) as conversation:
        assert list(conversation.send("Who?"))[-1].message.content == ANSWER
    with pytest.raises(AuthenticationError):
        make(server.url).sessions.connect(session).send("Who?")
