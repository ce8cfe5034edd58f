"""Sessions and answers over HTTP: whole, streamed, failing and cancelled."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest

from everlong_client import (
    APITimeoutError,
    AsyncEverlong,
    Citation,
    DocumentNotReadyError,
    Evidence,
    Message,
    Model,
    NotFoundError,
    NotSentError,
    OtherEvent,
    ResponseCompleted,
    ResponseCreated,
    ResponseEvidence,
    SessionBusyError,
    StreamError,
    TextDelta,
    Usage,
)
from everlong_client.cli.answer import citation_lines
from everlong_client.cli.originals import Originals
from everlong_client.types.record import from_json
from tests.client.fake_server import ANSWER, Fake, FakeServer


class Chunks(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A response body made of these chunks. An exception among them is raised when its turn comes."""

    def __init__(self, *chunks: bytes | Exception) -> None:
        self.chunks = chunks
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self.chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in iter(self):
            yield chunk

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


def streaming(body: Chunks) -> Callable[[httpx.Request], httpx.Response]:
    return lambda request: httpx.Response(200, stream=body, headers={"content-type": "text/event-stream"})


COMPLETED = b'data: {"type":"response.completed","message":{"id":"msg_1","content":"Yes."}}\n\n'
DELTA = b'data: {"type":"response.output_text.delta","delta":"Yes."}\n\n'


def test_create_wait_fork_delete(client: Any):
    id = client.documents.upload(b"x").id
    with pytest.raises(DocumentNotReadyError):
        client.sessions.create([id])
    client.documents.wait(id)
    session = client.sessions.create(documents=[id])
    assert (session.status, session.documents) == ("reading", (id,))
    assert client.sessions.wait(session.id, timeout=60).status == "ready"
    assert (session.title, client.sessions.rename(session.id, "Mine").title) == (None, "Mine")
    assert client.sessions.rename(session.id, None).title is None
    assert (session.recall, client.sessions.set_recall(session.id, False).recall) == (None, False)
    fork = client.sessions.fork(session.id)
    assert fork.documents == (id,)
    assert [s.id for s in client.sessions.list()] == [session.id, fork.id]
    assert [s.id for s in client.sessions.list(limit=1)] == [session.id]
    assert client.sessions.create([id], recall={"passages": 2}).recall == {"passages": 2}
    client.sessions.delete(session.id)
    with pytest.raises(NotFoundError):
        client.sessions.get(session.id)


def test_a_single_document_id_is_accepted_instead_of_a_list(client: Any):
    id = client.documents.upload(b"x").id
    client.documents.wait(id)
    assert client.sessions.create(id).documents == (id,)


def test_models(client: Any):
    assert client.models.list() == (
        Model(
            id="tiny", memory="rmt", memory_trained=True, segment_length=512, state_bytes=73728, fingerprint="abc",
            backbone="tiny-lm",
        ),
    )  # fmt: skip


def test_send(client: Any, fake: Fake, session: str):
    message = client.sessions.send(session, "Who?", temperature=0, stop=["\n"], max_tokens=None)
    usage = Usage(prompt_tokens=5, completion_tokens=7, reused_tokens=1000)
    assert message == Message(
        id="msg_1", content=ANSWER, finish_reason="stop", usage=usage, seed=7, session=session, model="tiny",
        created_at=1.5,
    )  # fmt: skip
    assert fake.questions == [{"content": "Who?", "temperature": 0, "stop": ["\n"]}], (
        "options that are None are not sent"
    )


def test_stream(client: Any, fake: Fake, session: str):
    with client.sessions.stream(session, "Who?", seed=7) as stream:
        events = list(stream)
    assert fake.questions == [{"content": "Who?", "stream": True, "seed": 7}]
    assert events[0] == ResponseCreated("msg_1")
    assert events[1] == OtherEvent("response.thinking", {"type": "response.thinking", "note": "from the future"})
    assert "".join(event.delta for event in events if isinstance(event, TextDelta)) == ANSWER
    assert events[-1] == ResponseCompleted(stream.message)
    assert stream.message.content == ANSWER


@pytest.mark.parametrize(
    ("content", "error", "code"),
    [
        ("busy", SessionBusyError, "session_busy"),
        ("fail", StreamError, "out_of_memory"),
        ("cut", StreamError, None),
        ("die", StreamError, None),
    ],
)
def test_a_stream_that_fails(client: Any, session: str, content: str, error: type[Exception], code: str | None):
    events = []
    with client.sessions.stream(session, content) as stream, pytest.raises(error) as raised:
        events.extend(stream)
    assert raised.value.code == code
    assert len(events) == {"busy": 0, "fail": 2}.get(content, 3), "the events before the error were delivered"
    with pytest.raises(StreamError, match="not complete"):
        _ = stream.message


def test_invalid_unicode_is_not_sent(client: Any, fake: Fake, session: str):
    half = "\ud83d of a pair"
    for ask in (
        lambda: client.sessions.send(session, half),
        lambda: list(client.sessions.stream(session, half)),
        lambda: client.sessions.connect(session).send(half),
        lambda: client.sessions.rename(session, half),
        lambda: client.documents.upload(b"text", filename=half),
        lambda: client.documents.upload([half]),
    ):
        with pytest.raises(NotSentError, match="not valid Unicode"):
            ask()
    assert fake.questions == []


def test_leaving_a_stream_cancels_the_answer(client: Any, fake: Fake, session: str):
    with client.sessions.stream(session, "hang") as stream:
        for event in stream:
            if isinstance(event, TextDelta):
                break
        assert not fake.closed.is_set()
    assert fake.closed.wait(10)


def test_a_stream_that_is_never_iterated_sends_nothing(client: Any, fake: Fake, session: str):
    with client.sessions.stream(session, "Who?"):
        pass
    client.sessions.send(session, "And now?")
    assert [question["content"] for question in fake.questions] == ["And now?"]


async def test_cancelling_a_task_cancels_the_answer(server: FakeServer):
    session, begun = server.fake.session([])["id"], asyncio.Event()

    async def ask(client: AsyncEverlong) -> None:
        async with client.sessions.stream(session, "hang") as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    begun.set()

    async with AsyncEverlong(server.url) as client:
        task = asyncio.create_task(ask(client))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(server.fake.closed.wait, 10)


@pytest.mark.parametrize(
    ("chunks", "error"),
    [
        ([DELTA, httpx.ReadError("reset")], StreamError),
        (
            [DELTA, httpx.RemoteProtocolError("peer closed connection without sending complete message body")],
            StreamError,
        ),
        ([DELTA, httpx.ReadTimeout("late")], APITimeoutError),
        ([DELTA, b"data: [DONE]\n\n"], StreamError),
        ([DELTA, b"data: {]\n\n"], StreamError),
        ([DELTA, b"data: 7\n\n"], StreamError),
        ([DELTA, b'event: error\ndata: {"error": "text"}\n\n'], StreamError),
        ([DELTA, b'data: {"type": "response.completed", "message": {}}\n\n'], StreamError),
        ([DELTA, COMPLETED[:-1]], StreamError),
        ([DELTA], StreamError),
    ],
)
def test_errors_in_the_middle_of_a_stream(make: Callable[..., Any], chunks: list[Any], error: type[Exception]):
    body = Chunks(*chunks)
    stream = make(handler=streaming(body)).sessions.stream("ses_1", "?")
    events = iter(stream)
    assert next(events) == TextDelta("Yes.")
    with pytest.raises(error):
        next(events)
    assert body.closed


def test_errors_after_the_last_event_are_ignored(make: Callable[..., Any]):
    body = Chunks(b": hello\n\n", DELTA, COMPLETED, httpx.ReadError("reset"))
    stream = make(handler=streaming(body)).sessions.stream("ses_1", "?")
    assert [type(event) for event in stream] == [TextDelta, ResponseCompleted]
    assert stream.message.content == "Yes."
    assert body.closed


def test_the_event_name_replaces_a_missing_type(make: Callable[..., Any]):
    body = Chunks(b'event: response.output_text.delta\ndata: {"delta": "Yes."}\n\n', COMPLETED)
    assert next(iter(make(handler=streaming(body)).sessions.stream("ses_1", "?"))) == TextDelta("Yes.")


def test_an_abandoned_stream_is_collected_without_a_warning(client: Any, session: str):
    for event in client.sessions.stream(session, "hang"):
        if isinstance(event, TextDelta):
            break
    gc.collect()


def test_the_request(make: Callable[..., Any]):
    requests: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(200, json={"id": "msg_1", "content": "Yes."})

    make(handler=handler, api_key="sesame").sessions.send("ses_1", "Größe?", top_k=3)
    (request,) = requests
    assert (request.method, request.url.path) == ("POST", "/v1/sessions/ses_1/messages")
    assert json.loads(request.content) == {"content": "Größe?", "top_k": 3}
    assert request.headers["authorization"] == "Bearer sesame"
    assert request.headers["user-agent"].startswith("everlong-client/")


def test_evidence_comes_as_an_event_and_with_the_message(make: Any):
    passage = {"document": "doc_1", "start": 1, "end": 4, "start_byte": 1, "end_byte": 5, "text": "yés", "score": 2.5}
    older, passage = passage, passage | {"start_token": 1, "end_token": 3}
    message = {"id": "msg_1", "content": "Yes.", "evidence": [passage]}
    frames = [
        {"type": "response.evidence", "response_id": "msg_1", "evidence": [passage, older]},
        {"type": "response.completed", "message": message},
    ]
    body = Chunks(*(f"data: {json.dumps(frame)}\n\n".encode() for frame in frames))
    with make(handler=streaming(body)).sessions.stream("ses_1", "?", recall={"passages": 1}) as stream:
        events = list(stream)
    assert events[0] == ResponseEvidence((Evidence(**passage), Evidence(**older)))
    assert [(e.start_token, e.end_token) for e in events[0].evidence] == [(1, 3), (None, None)]
    assert stream.message.evidence == (Evidence(**passage),)


def test_citations_are_parsed_and_written_as_lines() -> None:
    text = "Hi. The club owns\nfourteen boats. Juniors pay 120 euros."
    passage = {
        "document": "doc_1", "start": 100, "end": 100 + len(text), "start_byte": 100, "end_byte": 153, "text": text, "page": 3,
    }  # fmt: skip
    boats = {"evidence": 0, "document": "doc_1", "document_start": 104, "document_end": 133, "filename": "handbook.pdf"}
    content = "It owns fourteen. Juniors pay 120."
    first, second = {"start": 0, "end": 17} | boats, {"start": 18, "end": 34} | boats | {"filename": None}
    message = {"id": "msg_1", "content": content, "evidence": [passage], "citations": [first]}
    one = from_json(Message, message)
    assert one.citations == (Citation(**first),)
    quote = "“The club owns fourteen boats.”"
    assert citation_lines(one, Originals()) == [f"from handbook.pdf, page 3: {quote}"]
    assert citation_lines(from_json(Message, message | {"citations": [first, second]}), Originals()) == [
        f"“It owns fourteen.” from handbook.pdf, page 3: {quote}",
        f"“Juniors pay 120.” from doc_1, page 3: {quote}",
    ]
    assert citation_lines(from_json(Message, {"id": "msg_1", "content": "Hi."}), Originals()) == []
    passage["section"] = "1. Parties"
    assert citation_lines(from_json(Message, message), Originals()) == [
        f"from handbook.pdf, page 3, 1. Parties: {quote}"
    ]
    first |= {"page": 4, "section": "3. Term"}
    assert citation_lines(from_json(Message, message), Originals()) == [f"from handbook.pdf, page 4, 3. Term: {quote}"]
