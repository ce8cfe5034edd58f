"""Clients that trickle bytes are disconnected: their headers have a deadline, and their bodies a minimum rate."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn

from everlong_server.process import protocol
from everlong_server.process.protocol import BoundedHeadersProtocol
from tests.process import Server, wait_for

pytestmark = pytest.mark.long


async def app(scope: dict, receive, send) -> None:
    """Answer every request after `wait` seconds, with the length of its body; to /refused at once, without reading the body."""
    if scope["type"] != "http":
        return
    length, more = 0, scope["path"] != "/refused"
    while more:
        message = await receive()
        length, more = length + len(message.get("body", b"")), message.get("more_body", False)
    await asyncio.sleep(float(scope["query_string"] or 0))
    body = str(length).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a small server with short deadlines."""
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(protocol, "SILENT_SECONDS", 1.0)
    config = uvicorn.Config(app, port=0, http=BoundedHeadersProtocol, log_level="warning", timeout_keep_alive=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(30)


def trickled(peer: socket.socket, data: bytes, pause: float) -> bytes:
    """Send `data` byte by byte until the server ends the connection. Return what it answers."""

    def send() -> None:
        try:
            for byte in data:
                peer.sendall(bytes([byte]))
                time.sleep(pause)
        except OSError:
            pass  # the server has closed the connection

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    answer = b""
    try:
        while piece := peer.recv(4096):
            answer += piece
    except ConnectionResetError:
        pass  # it was closed while bytes were on their way
    thread.join(60)
    return answer


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\nX: ", b"\r\n" * 500, b"GET /"])
def test_headers_that_trickle(port: int, start: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
        answer = trickled(peer, start + b"a" * 1000, 0.05)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"


def test_a_connection_without_a_request_is_closed(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
        assert peer.recv(100) == b""


def test_a_second_request_that_trickles(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert peer.recv(1000).endswith(b"\r\n\r\n0")
        assert trickled(peer, b"GET / HTTP/1.1\r\nX: " + b"a" * 1000, 0.05).startswith(b"HTTP/1.1 408 ")


REFUSED = b"POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n"


def test_the_rest_of_a_refused_body_that_trickles(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
        peer.sendall(REFUSED)
        answer = trickled(peer, b"a" * 2000, 0.05)
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_silence_after_a_refused_body(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
        peer.sendall(REFUSED)
        assert peer.recv(1000).endswith(b"\r\n\r\n0")
        peer.sendall(b"a" * 2000)
        assert peer.recv(1000) == b""


def test_the_rest_of_a_refused_body_that_is_fast_enough(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
        peer.sendall(REFUSED.replace(b"2000", b"500000"))
        assert peer.recv(1000).endswith(b"\r\n\r\n0")
        for _ in range(50):  # for longer than the deadline of headers, which is when the rate is looked at
            peer.sendall(b"a" * 10_000)
            time.sleep(0.03)
        peer.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert peer.recv(1000).endswith(b"\r\n\r\n0")


def test_slow_answers_and_slow_bodies_are_not_slow_headers(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
        for _ in range(2):
            # The beginning of the next request waits behind an answer that takes longer than headers may.
            peer.sendall(b"POST /?2 HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\n")
            for byte in b"12345678":
                time.sleep(0.2)
                peer.sendall(bytes([byte]))
            answer = b""
            while not answer.endswith(b"\r\n\r\n8"):
                piece = peer.recv(1000)
                assert piece, f"closed after {answer!r}"
                answer += piece


@pytest.fixture(scope="module")
def impatient(tiny_model, tmp_path_factory) -> Iterator[Server]:
    """A server that waits two seconds for bodies, and as long for WebSocket frames."""
    with Server(tiny_model, tmp_path_factory.mktemp("data"), keepalive_seconds=0.5, websocket_idle_seconds=2) as server:
        server.start()
        yield server


@pytest.mark.parametrize("path", ["/v1/sessions", "/v1/documents", "/v1/chat/completions"])
def test_a_body_that_trickles(impatient: Server, path: str) -> None:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=60) as peer:
        peer.sendall(head.replace("application/json", "text/plain").encode() if "doc" in path else head.encode())
        answer = trickled(peer, b"x" * 1000, 0.1)
    assert answer.startswith(b"HTTP/1.1 408 "), answer[:200]
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "request_timeout"
    assert "at least 500 bytes per second" in error["message"]
    wait_for(lambda: not list((impatient.data / "documents").glob(".*")))


def test_a_body_that_is_slow_but_fast_enough(impatient: Server) -> None:
    """It takes longer than a silence may, at more than the minimum rate."""

    def pieces() -> Iterator[bytes]:
        for _ in range(16):
            time.sleep(0.25)
            yield b"some words " * 100

    answer = impatient.http.post("/v1/documents", content=pieces(), headers={"content-type": "text/plain"})
    assert answer.status_code == 202, answer.text


def test_a_frame_that_trickles(impatient: Server) -> None:
    session = impatient.session()["id"]
    head = (
        f"GET /v1/sessions/{session}/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=60) as peer:
        peer.sendall(head.encode())
        assert b" 101 " in peer.recv(4096)
        closed = trickled(peer, b"\x81\xfe\x03\xe8\0\0\0\0" + b"a" * 1000, 0.05)  # a frame of 1,000 characters
    assert closed[:1] in (b"", b"\x88", b"\x89"), "neither the end, nor a closing frame or a ping"
