"""`POST /v1/documents/fetch`: a document from another server, of those that this one may ask. By default there is none.

Nothing but the list of hosts decides: whoever may upload could else reach what only this server can. So redirects are
not followed either.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
from fastapi import APIRouter
from pydantic import Field

from everlong_server.api import schemas
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.native.documents import stored
from everlong_server.api.upload import clean_filename
from everlong_server.api.views import CallerServices, document_view
from everlong_server.errors import InvalidRequest, PermissionDenied
from everlong_server.observability.tracing import current_span

router = APIRouter(prefix="/v1/documents", tags=["documents"], responses=ERROR_RESPONSES)

_TIMEOUT = httpx.Timeout(30.0, connect=10.0)


class Fetch(schemas.Wire):
    """Where a document is."""

    url: str = Field(max_length=2048, description="http:// or https://, of a host in EVERLONG_FETCH_HOSTS")
    filename: str | None = Field(None, max_length=255, description="a name for people; default the address's last part")


class _FetchedSource:
    """What another server sends, in the place of a request."""

    def __init__(self, answer: httpx.Response, filename: str) -> None:
        self._answer = answer
        self.headers = answer.headers
        self.query_params = {"filename": filename} if filename else {}

    async def stream(self) -> AsyncIterator[bytes]:
        """As it comes. Raises `InvalidRequest` if it breaks off."""
        try:
            async for data in self._answer.aiter_raw():
                yield data
        except httpx.HTTPError as error:
            raise _fetch_error(f"broke off: {type(error).__name__}") from None


@router.post("/fetch", status_code=202)
async def fetch(body: Fetch, services: CallerServices) -> schemas.Document:
    """Uploads what another server has under an address: what `POST /v1/documents` takes. Reading goes on in the background."""
    url = _parse_allowed_url(body.url, services.settings.fetch_hosts)
    async with _open_url(url, body.filename) as page, await services.idempotency.begin(None) as record:
        return await document_view(services, await stored(page, services, record))


def _parse_allowed_url(given: str, hosts: tuple[str, ...]) -> httpx.URL:
    try:
        url = httpx.URL(given)
        host = url.host  # which is decoded only now
    except (httpx.InvalidURL, UnicodeError) as error:
        raise InvalidRequest(f"url: {error}", param="url") from None
    if url.scheme not in ("http", "https") or not host:
        raise InvalidRequest(f"url: {given[:100]!r} does not begin with http:// or https:// and a host", param="url")
    if url.userinfo:
        raise InvalidRequest("url: it holds a user's name or password; no server is sent one", param="url")
    port = url.port or {"http": 80, "https": 443}[url.scheme]
    # A port that an address need not name may be named in the setting, and need not be.
    if not {url.netloc.decode(), f"{url.copy_with(port=None).netloc.decode()}:{port}"} & set(hosts):
        raise PermissionDenied(
            f"url: this server fetches nothing from {url.netloc.decode()[:100]!r} (EVERLONG_FETCH_HOSTS)",
            param="url",
            code="host_not_allowed",
        )
    return url


@asynccontextmanager
async def _open_url(url: httpx.URL, filename: str | None) -> AsyncIterator[_FetchedSource]:
    # Without the environment's proxies and passwords, and nothing that would have to be decompressed.
    async with httpx.AsyncClient(timeout=_TIMEOUT, follow_redirects=False, trust_env=False) as client:
        traceparent = current_span().traceparent
        told = {"traceparent": traceparent} if traceparent else {}
        try:
            request = client.build_request(
                "GET", url, headers={"accept-encoding": "identity", "user-agent": "everlong"} | told
            )
            answer = await client.send(request, stream=True)
        except httpx.HTTPError as error:
            raise _fetch_error(f"cannot be fetched: {type(error).__name__}") from None
        try:
            if answer.status_code != httpx.codes.OK:
                raise _fetch_error(f"answers with status {answer.status_code}")
            if answer.headers.get("content-encoding", "identity") != "identity":
                raise _fetch_error("is compressed, though it was asked for as it is")
            yield _FetchedSource(answer, filename or _last_part(url))
        finally:
            await answer.aclose()


def _last_part(url: httpx.URL) -> str:
    """Of an address, if a document may be called so."""
    with suppress(InvalidRequest):
        return clean_filename(url.path.rpartition("/")[2]) or ""
    return ""


def _fetch_error(why: str) -> InvalidRequest:
    return InvalidRequest(f"url: it {why}", param="url", code="fetch_failed")
