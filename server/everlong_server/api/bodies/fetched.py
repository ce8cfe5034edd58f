"""A file on a host in EVERLONG_FETCH_HOSTS, as the body of a request. By default the list is empty.

The list protects hosts that only this server can reach (server-side request forgery). Redirects are not followed for the
same reason.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx

from everlong_server.engine.documents.text_checker import clean_filename
from everlong_server.errors import InvalidRequest, PermissionDenied
from everlong_server.observability.tracing import current_span

_TIMEOUT = httpx.Timeout(30.0, connect=10.0)


class FetchedBody:
    """The response of another server, as an `HttpBody`."""

    def __init__(self, answer: httpx.Response, filename: str) -> None:
        self._answer = answer
        self.headers = answer.headers.copy()
        # Without a charset, the encoding is recognised: many web servers name the same one for all their files.
        self.headers["content-type"] = answer.headers.get("content-type", "").partition(";")[0]
        self.query_params = {"filename": filename} if filename else {}

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the response's bytes. Raises `InvalidRequest` if the connection breaks."""
        try:
            async for data in self._answer.aiter_raw():
                yield data
        except httpx.HTTPError as error:
            raise _fetch_error(f"the connection broke: {type(error).__name__}") from None


def parse_allowed_url(given: str, hosts: tuple[str, ...]) -> httpx.URL:
    """Return the URL. Raises `InvalidRequest`, or `PermissionDenied` if its host is not among `hosts`."""
    try:
        url = httpx.URL(given)
        host = url.host  # decodes it, which may raise an error
    except (httpx.InvalidURL, UnicodeError) as error:
        raise InvalidRequest(f"url: {error}", param="url") from None
    if url.scheme not in ("http", "https") or not host:
        raise InvalidRequest(f"url: {given[:100]!r} is not an http:// or https:// URL with a host", param="url")
    if url.userinfo:
        raise InvalidRequest("url: user names and passwords are not supported; leave them out", param="url")
    port = url.port or {"http": 80, "https": 443}[url.scheme]
    # The scheme's default port may be left out of the URL and of the setting.
    if not {url.netloc.decode(), f"{url.copy_with(port=None).netloc.decode()}:{port}"} & set(hosts):
        raise PermissionDenied(
            f"url: {url.netloc.decode()[:100]!r} is not among the hosts that this server fetches from (EVERLONG_FETCH_HOSTS)",
            param="url",
            code="host_not_allowed",
        )
    return url


@asynccontextmanager
async def open_url(url: httpx.URL, filename: str | None) -> AsyncIterator[FetchedBody]:
    """Download a file. Raises `InvalidRequest` if the host does not send it."""
    # Ignores proxies and passwords of the environment, and accepts no compressed content.
    async with httpx.AsyncClient(timeout=_TIMEOUT, follow_redirects=False, trust_env=False) as client:
        traceparent = current_span().traceparent
        trace_headers = {"traceparent": traceparent} if traceparent else {}
        try:
            request = client.build_request(
                "GET", url, headers={"accept-encoding": "identity", "user-agent": "everlong"} | trace_headers
            )
            answer = await client.send(request, stream=True)
        except httpx.HTTPError as error:
            raise _fetch_error(f"the request failed: {type(error).__name__}") from None
        try:
            if answer.status_code != httpx.codes.OK:
                raise _fetch_error(f"the host answered with status {answer.status_code}, not 200")
            if answer.headers.get("content-encoding", "identity") != "identity":
                raise _fetch_error("the host sent compressed content, although `identity` was requested")
            yield FetchedBody(answer, filename or _last_part(url))
        finally:
            await answer.aclose()


def _last_part(url: httpx.URL) -> str:
    """Return the last part of the URL's path, or "" if it is not a valid file name."""
    with suppress(InvalidRequest):
        return clean_filename(url.path.rpartition("/")[2]) or ""
    return ""


def _fetch_error(why: str) -> InvalidRequest:
    return InvalidRequest(f"url: {why}", param="url", code="fetch_failed")
