"""Each status raises its error, with all fields of the server's response, in both clients."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import httpx
import pytest

import everlong_client as el
from everlong_client.errors import parse_retry_after


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "bad_request", el.APIStatusError),
        (401, "invalid_api_key", el.AuthenticationError),
        (404, "document_not_found", el.NotFoundError),
        (409, "document_not_ready", el.DocumentNotReadyError),
        (409, "session_busy", el.SessionBusyError),
        (409, "something_new", el.ConflictError),
        (413, "document_too_large", el.PayloadTooLargeError),
        (415, "unsupported_media_type", el.UnsupportedMediaTypeError),
        (422, "invalid_value", el.UnprocessableEntityError),
        (429, "rate_limited", el.RateLimitError),
        (500, "internal_error", el.InternalServerError),
        (503, "overloaded", el.ServiceUnavailableError),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_status(make: Callable[..., Any], status: int, code: str, kind: type[Exception], streamed: bool):
    error = {"message": "the reason", "type": "some_error", "param": "content", "code": code}
    client = make(handler=lambda request: httpx.Response(status, json={"error": error}, headers={"retry-after": "1.5"}))
    with pytest.raises(el.APIStatusError) as raised:
        list(client.sessions.stream("ses_1", "?")) if streamed else client.sessions.send("ses_1", "?")
    assert type(raised.value) is kind
    assert str(raised.value) == "the reason"
    assert vars(raised.value) == {**error, "status": status, "retry_after": 1.5}


@pytest.mark.parametrize("body", ["<html>Bad Gateway</html>", "", "[]", '{"error": "text"}', '{"detail": "Not Found"}'])
def test_a_proxys_error(make: Callable[..., Any], body: str):
    client = make(handler=lambda request: httpx.Response(502, text=body, headers={"content-type": "text/html"}))
    with pytest.raises(el.InternalServerError, match=r"^HTTP 502 Bad Gateway") as raised:
        client.documents.get("doc_1")
    assert raised.value.code is None


@pytest.mark.parametrize("body", ["<html>Welcome</html>", '"text"', "[1]", "{}"])
def test_a_proxys_success(make: Callable[..., Any], body: str):
    client = make(handler=lambda request: httpx.Response(200, text=body))
    with pytest.raises(el.UnexpectedAnswerError):
        client.documents.get("doc_1")
    with pytest.raises(el.UnexpectedAnswerError):
        client.documents.list()
    with pytest.raises(el.UnexpectedAnswerError, match="instead of an event stream"):
        list(client.sessions.stream("ses_1", "?"))


def test_connection_refused(make: Callable[..., Any], closed_url: str):
    client = make(closed_url)
    with pytest.raises(el.APIConnectionError, match=closed_url):
        client.models.list()
    with pytest.raises(el.APIConnectionError, match=closed_url):
        list(client.sessions.stream("ses_1", "?"))
    with pytest.raises(el.APIConnectionError, match=closed_url):
        client.sessions.connect("ses_1").send("?")
    with pytest.raises(el.APIConnectionError, match=closed_url), client.sessions.connect("ses_1"):
        pass


def test_timeout(make: Callable[..., Any]):
    def late(request: httpx.Request) -> httpx.Response:
        assert request.extensions["timeout"]["read"] == 3
        raise httpx.ReadTimeout("", request=request)

    with pytest.raises(el.APITimeoutError, match=r"everlong\.test did not respond in time"):
        make(handler=late, timeout=3).models.list()


def test_api_key(make: Callable[..., Any], server: Any):
    server.fake.api_key = "sesame"
    assert make(server.url, api_key="sesame").models.list()
    with pytest.raises(el.AuthenticationError, match="wrong API key"):
        make(server.url).models.list()
    assert make(server.url, api_key=" sesame\n").models.list()


@pytest.mark.parametrize("key", ["evl_top\nsecret", "evl_tôp", "evl top", "evl_\x00top"])
def test_the_error_for_an_invalid_api_key_does_not_contain_it(make: Callable[..., Any], key: str):
    with pytest.raises(ValueError, match="the API key may contain only") as raised:
        make("http://everlong.test", api_key=key)
    assert "evl" not in str(raised.value)


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://host", ""])
def test_an_invalid_address(make: Callable[..., Any], url: str):
    with pytest.raises(ValueError, match="must start with http"):
        make(url)


def test_an_empty_id_is_refused(make: Callable[..., Any]):
    client = make(handler=lambda request: pytest.fail("DELETE /v1/documents/ could mean all of them"))
    with pytest.raises(ValueError, match="empty"):
        client.documents.delete("")


def test_ids_are_escaped(make: Callable[..., Any]):
    paths: list[bytes] = []

    def handler(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.raw_path)
        return httpx.Response(200, json={"id": "x", "status": "ready"})

    client = make("http://host/prefix/", handler=handler)
    client.documents.get("../a b?c")
    client.documents.get("doc_\udcff")  # a shell's argument that is not UTF-8
    assert paths == [b"/prefix/v1/documents/..%2Fa%20b%3Fc", b"/prefix/v1/documents/doc_%3F"]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("3", 3),
        ("0.25", 0.25),
        ("-1", 0),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
    ],
)
def test_retry_after(value: str | None, seconds: float | None):
    assert parse_retry_after(value) == seconds


def test_retry_after_as_a_date():
    assert parse_retry_after(formatdate(time.time() + 60, usegmt=True)) == pytest.approx(60, abs=5)


def test_the_drawn_tree_matches_the_classes():
    """The drawing at the top of errors.py has every class, under its base class."""
    parents: list[str] = []
    drawn = {}
    for line in (el.errors.__doc__ or "").splitlines():
        name = line.lstrip("│├└─ ").split(" ")[0]
        if name.endswith("Error"):
            depth = (len(line) - len(line.lstrip("│├└─ "))) // 4
            parents[depth:] = [name]
            drawn[name] = parents[depth - 1] if depth else "Exception"
    classes = [
        kind for kind in vars(el.errors).values() if isinstance(kind, type) and issubclass(kind, el.EverlongError)
    ]
    assert drawn == {kind.__name__: kind.__base__.__name__ for kind in classes}  # type: ignore[union-attr]
