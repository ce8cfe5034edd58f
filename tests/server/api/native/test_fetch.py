"""Documents from other servers: only from allowed hosts, and uncompressed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import ValidationError

from everlong_lab.harness.ports import free_port
from everlong_server.api.bodies.fetched import parse_allowed_url
from everlong_server.errors import PermissionDenied
from everlong_server.settings import Settings
from tests import files
from tests.process import Server

PAGE = b"<!doctype html><html><body><h1>Harbours</h1><p>Ferries leave at dawn.</p></body></html>"


ANSWERS: dict[str, tuple[int, dict[str, str], bytes]] = {
    "/story.txt": (200, {"content-type": "text/plain; charset=utf-8"}, "Zwölf Katzen.".encode()),
    "/mislabelled.txt": (200, {"content-type": "text/plain; charset=iso-8859-1"}, "Zwölf Katzen.".encode()),
    "/latin.txt": (200, {"content-type": "text/plain; charset=iso-8859-1"}, "Zwölf Katzen schlafen.".encode("latin-1")),
    "/page": (200, {"content-type": "text/html"}, PAGE),
    "/no%0Aname": (200, {"content-type": "text/plain"}, b"Nameless."),
    f"/{'x' * 300}": (200, {"content-type": "text/plain"}, b"Nameless."),
    "/paper.pdf": (200, {"content-type": "application/pdf"}, files.pdf(["The first page."])),
    "/picture": (200, {"content-type": "image/png"}, b"\x89PNG"),
    "/blank": (200, {"content-type": "text/plain"}, b"\n"),
    "/moved": (302, {"location": "/story.txt"}, b""),
    "/packed": (200, {"content-type": "text/plain", "content-encoding": "gzip"}, b"\x1f\x8b"),
    "/cut": (200, {"content-type": "text/plain", "content-length": "100"}, b"only this"),
}


class _Web(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, headers, body = ANSWERS.get(self.path, (404, {}, b"no"))
        self.send_response(status)
        for name, value in ({"content-length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    """A web server, as host:port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Web)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.long
def test_documents_from_an_allowed_host(new_server: Callable[..., Server], web: str) -> None:
    closed = f"127.0.0.1:{free_port()}"
    server = new_server(fetch_hosts=[web, closed], max_document_bytes=2000).start()

    def fetch(path: str, **more: str) -> dict:
        answer = server.http.post("/v1/documents/fetch", json={"url": f"http://{web}{path}", **more})
        assert answer.status_code == 202, answer.text
        return server.wait_read(answer.json()["id"])

    story = fetch("/story.txt")
    assert (story["filename"], story["format"], story["bytes"]) == ("story.txt", None, len("Zwölf Katzen.".encode()))
    assert story["state_digest"] == server.read("Zwölf Katzen.")["state_digest"]
    for name, words in (("/mislabelled.txt", "Zwölf Katzen."), ("/latin.txt", "Zwölf Katzen schlafen.")):
        assert server.http.get(f"/v1/documents/{fetch(name)['id']}/text").json()["text"] == words
    assert fetch("/page", filename="harbours")["filename"] == "harbours"
    assert fetch("/page")["format"] == "html"
    assert fetch("/paper.pdf")["format"] == "pdf"
    for nameless in ("/no%0Aname", f"/{'x' * 300}"):
        assert fetch(nameless)["filename"] is None
    before = server.http.get("/v1/documents").json()
    for path, status, code in (
        ("/nothing", 422, "fetch_failed"), ("/moved", 422, "fetch_failed"), ("/packed", 422, "fetch_failed"),
        ("/cut", 422, "fetch_failed"), ("/blank", 422, "empty_document"), ("/picture", 422, "unreadable_document"),
    ):  # fmt: skip
        answer = server.http.post("/v1/documents/fetch", json={"url": f"http://{web}{path}"})
        server.error(answer, status, code)
    down = server.http.post("/v1/documents/fetch", json={"url": f"http://{closed}/story.txt"})
    assert "ConnectError" in server.error(down, 422, "fetch_failed", "url")["message"]
    host, _, port = web.partition(":")
    for url, status, code in (
        (f"http://localhost:{port}/story.txt", 403, "host_not_allowed"),
        (f"http://{host}/story.txt", 403, "host_not_allowed"),
        (f"http://me:secret@{web}/story.txt", 422, "invalid_value"),
        (f"http://{web}@elsewhere.example/", 422, "invalid_value"),
        (f"//{web}/story.txt", 422, "invalid_value"),
        ("file:///etc/passwd", 422, "invalid_value"),
        ("http://[::1", 422, "invalid_value"),
        ("http://xn--a/", 422, "invalid_value"),
    ):
        server.error(server.http.post("/v1/documents/fetch", json={"url": url}), status, code, "url")
    assert server.http.get("/v1/documents").json() == before


@pytest.mark.parametrize(
    ("host", "good", "bad"),
    [
        ("127.0.0.1:80", ["http://127.0.0.1/x", "http://127.0.0.1:80/x"], ["https://127.0.0.1/", "http://127.0.0.1:8080/"]),
        ("www.example.org:443", ["https://www.example.org/", "http://www.example.org:443/"], ["http://www.example.org/"]),
        ("www.example.org", ["http://www.example.org:80", "https://www.example.org"], ["http://www.example.org:443/"]),
        ("WWW.Example.com", ["https://www.example.com/", "https://WWW.EXAMPLE.com"], ["https://example.com/"]),
        ("bücher.example", ["https://bücher.example/", "https://xn--bcher-kva.example/"], ["https://bucher.example/"]),
        ("[::1]:80", ["http://[::1]/"], ["http://[::1]:81/"]),
    ],
)  # fmt: skip
def test_hosts_are_compared_in_their_url_form(host: str, good: list[str], bad: list[str]) -> None:
    hosts = Settings(fetch_hosts=(host,)).fetch_hosts
    for url in good:
        parse_allowed_url(url, hosts)
    for url in bad:
        with pytest.raises(PermissionDenied):
            parse_allowed_url(url, hosts)


@pytest.mark.parametrize(
    "host", ["", "https://www.example.org", "www.example.org/x", "me@www.example.org", "xn--a", "[::1"]
)
def test_invalid_hosts_are_refused_as_settings(host: str) -> None:
    with pytest.raises(ValidationError, match="host"):
        Settings(fetch_hosts=(host,))


def test_by_default_nothing_is_fetched(server: Server, web: str) -> None:
    answer = server.http.post("/v1/documents/fetch", json={"url": f"http://{web}/story.txt"})
    assert "EVERLONG_FETCH_HOSTS" in server.error(answer, 403, "host_not_allowed", "url")["message"]
