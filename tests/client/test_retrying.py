"""Retries in both clients: which calls, when, and with the same idempotency key."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import everlong_client as el
from everlong_client.transport import call as calls
from everlong_client.transport.retrying import Retrying
from tests.process import Server

DOCUMENT = {
    "id": "doc_1", "object": "document", "filename": None, "status": "ready", "bytes": 4, "tokens": 1, "segments": 0,
    "progress": 1.0, "tokens_per_second": None, "model": "m", "state_digest": None, "error": None, "created_at": 0.0,
}  # fmt: skip
SESSION = {"id": "ses_1", "object": "session", "documents": [], "status": "ready", "messages": 0}


def lost(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("the connection broke", request=request)


def unconnected(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectTimeout("", request=request)


def late(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("", request=request)


def refused(status: int, code: str = "overloaded", retry_after: str = "0") -> Callable[[httpx.Request], httpx.Response]:
    error = {"message": "not now", "type": "t", "param": None, "code": code}
    return lambda request: httpx.Response(status, json={"error": error}, headers={"retry-after": retry_after})


def good(body: Any) -> Callable[[httpx.Request], httpx.Response]:
    return lambda request: httpx.Response(200, json=body)


@pytest.fixture
def meet(make: Callable[..., Any]) -> Callable[..., tuple[Any, list[httpx.Request]]]:
    """Makes a client and the list of its requests. They get `answers` in turn; the last one repeats."""

    def meet(*answers: Callable[[httpx.Request], httpx.Response]) -> tuple[Any, list[httpx.Request]]:
        seen: list[httpx.Request] = []

        async def read(request: httpx.Request) -> httpx.Response:
            await request.aread()
            return answer(request)

        def handler(request: httpx.Request) -> Any:
            nonlocal answer
            answer = answers[min(len(seen), len(answers) - 1)]
            seen.append(request)
            if isinstance(request.stream, httpx.AsyncByteStream) and not isinstance(
                request.stream, httpx.SyncByteStream
            ):
                return read(request)
            request.read()
            return answer(request)

        answer = answers[0]
        return make(handler=handler, retries=3), seen

    return meet


@pytest.mark.parametrize(
    "failure", [lost, unconnected, refused(429), refused(503, "loading"), refused(409, "idempotency_in_progress")]
)
def test_a_retry_has_the_same_idempotency_key(meet: Callable[..., Any], failure: Any) -> None:
    client, seen = meet(failure, good(SESSION))
    assert client.sessions.create(["doc_1"]).id == "ses_1"
    first, second = seen
    assert first.content == second.content == b'{"documents":["doc_1"]}'
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    client.sessions.create(["doc_1"])
    assert seen[2].headers["idempotency-key"] != first.headers["idempotency-key"]
    client.sessions.get("ses_1")
    assert "idempotency-key" not in seen[3].headers


@pytest.mark.parametrize("failure", [refused(409, "session_busy"), refused(422), refused(429, retry_after="3600")])
def test_a_call_that_cannot_succeed_is_not_retried(meet: Callable[..., Any], failure: Any) -> None:
    client, seen = meet(failure)
    with pytest.raises(el.APIStatusError):
        client.sessions.send("ses_1", "?")
    with pytest.raises(el.APIStatusError):
        list(client.sessions.stream("ses_1", "?"))
    assert len(seen) == 2


def test_a_read_timeout_is_not_retried(meet: Callable[..., Any]) -> None:
    """The server has the request, and the caller's time is used up."""
    client, seen = meet(late)
    with pytest.raises(el.APITimeoutError):
        client.sessions.send("ses_1", "?")
    assert len(seen) == 1


def test_the_number_of_retries_is_limited(meet: Callable[..., Any]) -> None:
    client, seen = meet(refused(429))
    with pytest.raises(el.RateLimitError):
        client.models.list()
    assert len(seen) == 4
    with pytest.raises(el.RateLimitError):
        list(client.sessions.stream("ses_1", "?"))
    assert len(seen) == 8


def test_a_retried_deletion_that_gets_404_is_no_error(meet: Callable[..., Any]) -> None:
    client, _ = meet(lost, refused(404, "document_not_found"))
    client.documents.delete("doc_1")
    with pytest.raises(el.NotFoundError):
        client.documents.delete("doc_1")


def test_an_upload_is_retried_from_its_start_if_the_source_is_repeatable(
    meet: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("text")
    for source in (path, b"text"):
        client, seen = meet(refused(503), good(DOCUMENT))
        sent: list[int] = []
        client.documents.upload(source, progress=lambda n, total, sent=sent: sent.append(n))
        assert sent == [0, 4, 0, 4]
        assert len(seen) == 2

    def pieces() -> Iterator[bytes]:
        yield b"text"

    for source in (io.BytesIO(b"text"), pieces()):
        client, seen = meet(refused(503))
        with pytest.raises(el.ServiceUnavailableError):
            client.documents.upload(source)
        assert len(seen) == 1


def test_the_pauses_grow() -> None:
    tries = Retrying(calls.list_models(), 6, random=lambda: 0.5)
    error = el.APIConnectionError("lost")
    assert [tries.pause(error) for _ in range(6)] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0]
    with pytest.raises(el.APIConnectionError):
        tries.pause(error)


def test_a_real_server_does_it_once(shared_server: Server) -> None:
    """The first response is lost."""

    class Lossy(httpx.HTTPTransport):
        lose = True

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            answer = super().handle_request(request)
            if request.method == "POST" and self.lose:
                self.lose = False
                answer.read()
                raise httpx.ReadError("lost", request=request)
            return answer

    for act in (
        lambda client: client.documents.upload(b"text"),
        lambda client: client.sessions.create([]),
        lambda client: client.sessions.fork(client.sessions.list(limit=1)[0].id),
    ):
        with el.Everlong(shared_server.url, http_client=httpx.Client(transport=Lossy())) as client:
            before = (len(client.documents.list()), len(client.sessions.list()))
            act(client)
            after = (len(client.documents.list()), len(client.sessions.list()))
        assert sum(after) == sum(before) + 1


@pytest.mark.parametrize("kind", [el.Everlong, el.AsyncEverlong])
def test_a_long_file_is_sent_in_parts_and_a_lost_part_is_retried(
    shared_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    monkeypatch.setattr("everlong_client.transport.upload.PART", 1000)
    text = "Où est la 鯨? " * 200
    path = tmp_path / "whale.txt"
    path.write_text(text)
    sent: list[tuple[int, int | None]] = []
    lost: list[str] = []

    def lose(request: httpx.Request) -> bool:
        """Lose the first response of every path, and the third part's."""
        lost.append(request.url.path)
        if request.method == "POST" and (lost.count(request.url.path) in (1, 3)):
            raise httpx.ReadError("lost", request=request)
        return True

    class Lossy(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            answer = super().handle_request(request)
            answer.read()
            lose(request)
            return answer

    class AsyncLossy(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            answer = await super().handle_async_request(request)
            await answer.aread()
            lose(request)
            return answer

    def progress(n: int, total: int | None) -> None:
        sent.append((n, total))

    if kind is el.Everlong:
        with el.Everlong(shared_server.url, http_client=httpx.Client(transport=Lossy())) as client:
            document = client.documents.upload(path, progress=progress)
    else:

        async def upload() -> el.Document:
            http = httpx.AsyncClient(transport=AsyncLossy())
            async with el.AsyncEverlong(shared_server.url, http_client=http) as client:
                return await client.documents.upload(path, progress=progress)

        document = asyncio.run(upload())
    size = len(text.encode())
    assert sent == [(n, size) for n in (0, 1000, 2000, 3000, size)]
    assert document.filename == "whale.txt"
    assert shared_server.http.get(f"/v1/files/{document.id}/content").text == text
    assert len([path for path in lost if path.endswith("/parts")]) == 4 + 2


def test_a_call_that_waits_for_restarts_is_retried_for_a_minute() -> None:
    now = [0.0]
    tries = Retrying(calls.add_part("upload_1", b"part"), 3, random=lambda: 0.5, clock=lambda: now[0])
    error = el.APIConnectionError("lost")
    waited = 0.0
    while waited < 60:
        now[0] = waited
        waited += tries.pause(error)
    now[0] = waited
    with pytest.raises(el.APIConnectionError):
        tries.pause(error)
