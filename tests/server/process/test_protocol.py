"""Requests that ask for a protocol other than HTTP/1.1, as Java's HTTP client sends them: `Upgrade: h2c` (HTTP/2 in plain text)."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator

import pytest
import uvicorn

from everlong_server.process.protocol import MAX_HEAD_BYTES, BoundedHeadersProtocol
from tests.process import wait_for


async def app(scope: dict, receive, send) -> None:
    """Answer a request with its method, its path and its body."""
    if scope["type"] != "http":
        return
    body, more = f"{scope['method']} {scope['path']} ".encode(), True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    config = uvicorn.Config(app, port=0, http=BoundedHeadersProtocol, log_level="warning", timeout_keep_alive=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(30)


H2C = b"Host: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
POST = b"POST /a HTTP/1.1\r\n" + H2C
LAST = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def answers(port: int, *parts: bytes) -> list[bytes]:
    """Send `parts`, each as soon as the server has had time to read the one before, and return the bodies of all answers."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as peer:
        for number, part in enumerate((*parts, LAST)):
            if number:
                threading.Event().wait(0.1)
            peer.sendall(part)
        received = b"".join(iter(lambda: peer.recv(65536), b""))
    return [answer.split(b"\r\n\r\n")[1] for answer in received.split(b"HTTP/1.1 200")[1:]]


@pytest.mark.parametrize(
    "parts",
    [
        (POST + b"Content-Length: 4\r\n\r\nbody",),
        (POST + b"Content-Length: 4\r\n\r\n", b"bo", b"dy"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nbod\r\n", b"1\r\ny\r\n0\r\n\r\n"),
        (POST[:40], POST[40:] + b"Content-Length: 4\r\n\r\nb", b"ody"),
    ],
)
def test_a_body_after_an_upgrade_that_the_server_ignores(port: int, parts: tuple[bytes, ...]) -> None:
    assert answers(port, *parts) == [b"POST /a body", b"GET /last "]


def test_upgrades_among_other_requests(port: int) -> None:
    plain = b"POST /c HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nc"
    upgrade = POST + b"Content-Length: 4\r\n\r\nbody"
    requests = plain + upgrade + b"GET /b HTTP/1.1\r\n" + H2C + b"\r\n" + plain + upgrade
    expected = [b"POST /c c", b"POST /a body", b"GET /b ", b"POST /c c", b"POST /a body", b"GET /last "]
    assert answers(port, requests) == expected


def test_a_long_body_after_a_head_in_two_parts(port: int) -> None:
    body = b"x" * (MAX_HEAD_BYTES + 1)
    assert answers(port, POST[:40], POST[40:] + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)) == [
        b"POST /a " + body,
        b"GET /last ",
    ]


def test_very_many_upgrades_at_once(port: int) -> None:
    count = sys.getrecursionlimit()
    assert answers(port, (b"GET /b HTTP/1.1\r\n" + H2C + b"\r\n") * count) == [b"GET /b "] * count + [b"GET /last "]


@pytest.mark.parametrize("connection", [b"Upgrade", b"Upgrade, close"])
def test_bytes_after_the_last_request_do_not_replace_its_answer(port: int, connection: bytes) -> None:
    upgrade = b"GET /a HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: %s\r\n\r\n" % connection
    with socket.create_connection(("127.0.0.1", port), timeout=30) as peer:
        peer.sendall(upgrade + LAST + LAST)
        assert peer.recv(65536).startswith(b"HTTP/1.1 200")


def test_connect_is_answered(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as peer:
        peer.sendall(b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n")
        assert peer.recv(65536).startswith(b"HTTP/1.1 ")
