"""`POST /v1/documents/fetch`: downloads a document from a host in EVERLONG_FETCH_HOSTS. By default the list is empty.

The list protects hosts that only this server can reach (server-side request forgery). Redirects are not followed for the
same reason.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
from fastapi import APIRouter
from pydantic import Field

from everlong_server.api import schemas
from everlong_server.api.bodies.json_body import JsonRoute
from everlong_server.api.bodies.request_file import RequestFile
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.idempotency import IdempotencyKey
from everlong_server.api.views import CallerServices, document_view
from everlong_server.engine.documents.text_checker import clean_filename
from everlong_server.errors import InvalidRequest, PermissionDenied
from everlong_server.observability.tracing import current_span

router = APIRouter(prefix="/v1/documents", tags=["documents"], responses=ERROR_RESPONSES, route_class=JsonRoute)

_TIMEOUT = httpx.Timeout(30.0, connect=10.0)


class Fetch(schemas.Wire):
    """The address of a document."""

    url: str = Field(max_length=2048, description="http:// or https:// URL on a host in EVERLONG_FETCH_HOSTS")
    filename: str | None = Field(
        None, max_length=255, description="name to show for the document; default: last part of the URL's path"
    )


class _FetchedBody:
    """The response of another server, as an `HttpBody`."""

    def __init__(self, answer: httpx.Response, filename: str) -> None:
        self._answer = answer
        self.headers = answer.headers
        self.query_params = {"filename": filename} if filename else {}

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the response's bytes. Raises `InvalidRequest` if the connection breaks."""
        try:
            async for data in self._answer.aiter_raw():
                yield data
        except httpx.HTTPError as error:
            raise _fetch_error(f"the connection broke: {type(error).__name__}") from None


@router.post("/fetch", status_code=202)
async def fetch(body: Fetch, services: CallerServices, key: IdempotencyKey = None) -> schemas.Document:
    """Downloads a file from a URL and stores it as `POST /v1/documents` does. The server reads it in the background.

    A retry with the same Idempotency-Key returns the first document and does not download the file again.
    """
    url = _parse_allowed_url(body.url, services.shared.settings.fetch_hosts)
    async with await services.idempotency.begin(key) as record:
        await record.check_same_request("fetch", body.model_dump_json())
        if record.answer is not None:
            return schemas.Document.model_validate(record.answer)
        id = f"doc_{record.id}"
        # If it exists, the first server died before it recorded the result.
        if not record.first and await services.documents.exists(id):
            document = await services.documents.get(id)
        else:
            async with _open_url(url, body.filename) as page:
                source = RequestFile(page, limit=services.ingest.max_bytes)
                document = await services.ingest.add(source, record, None)
        view = await document_view(services, document)
        await record.finish(view.model_dump(mode="json"))
        return view


def _parse_allowed_url(given: str, hosts: tuple[str, ...]) -> httpx.URL:
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
async def _open_url(url: httpx.URL, filename: str | None) -> AsyncIterator[_FetchedBody]:
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
            yield _FetchedBody(answer, filename or _last_part(url))
        finally:
            await answer.aclose()


def _last_part(url: httpx.URL) -> str:
    """Return the last part of the URL's path, or "" if it is not a valid file name."""
    with suppress(InvalidRequest):
        return clean_filename(url.path.rpartition("/")[2]) or ""
    return ""


def _fetch_error(why: str) -> InvalidRequest:
    return InvalidRequest(f"url: {why}", param="url", code="fetch_failed")
