"""Files inside a request: as base64, or as the URL of an allowed host. The server stores them like uploaded files."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext

from everlong_server.api.bodies.fetched import open_url, parse_allowed_url
from everlong_server.api.bodies.request_file import HttpBody, RequestFile
from everlong_server.api.translation.files import decode_base64, name_field
from everlong_server.engine.documents.formats.catalogue import HEAD, detect
from everlong_server.engine.documents.inline import store_once
from everlong_server.errors import InvalidRequest, ServerError
from everlong_server.services import Services
from everlong_server.store.idempotency import IdempotencyRecord


class _DataBody:
    """The content of a file, as an `HttpBody`."""

    def __init__(self, content: bytes, media_type: str, filename: str | None) -> None:
        self._content = content
        self.headers: Mapping[str, str] = {"content-type": media_type, "content-length": str(len(content))}
        self.query_params: Mapping[str, str] = {"filename": filename} if filename else {}

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the content."""
        yield self._content


async def file_of_data(services: Services, data: str, filename: str | None, name: str) -> str:
    """Store the file in `data`, base64 or a data URL with base64, and return its id. `name`: the field of the request.

    The same file under the same name is stored once, so a request can be repeated while its file is being read.
    """
    media_type, encoded = "application/octet-stream", data
    if data.startswith("data:"):
        head, comma, encoded = data.removeprefix("data:").partition(",")
        media_type, base, _ = head.partition(";base64")
        if not comma or not base:
            raise InvalidRequest(f"{name} must be base64, or a data URL with base64", param=name)
    content = await decode_base64(encoded, name)
    digest = await asyncio.to_thread(hashlib.sha256, content)
    body = _DataBody(content, media_type, filename)
    kind = detect(
        content[:HEAD], filename, media_type.partition(";")[0]
    )  # the same bytes can be a web page or, as text, its source: two documents
    return await _stored(services, f"data {digest.hexdigest()} {kind} {filename}", lambda: nullcontext(body), name)


async def file_of_url(services: Services, url: str, filename: str | None, name: str) -> str:
    """Download and store the file at `url`, and return its id. `name`: the field of the request.

    A URL is downloaded once a day (`EVERLONG_IDEMPOTENCY_SECONDS`). Raises `PermissionDenied` for a host that is not in
    EVERLONG_FETCH_HOSTS.
    """
    try:
        address = parse_allowed_url(url, services.shared.settings.fetch_hosts)
    except ServerError as error:
        name_field(error, name)
        raise
    return await _stored(services, f"url {url} {filename}", lambda: open_url(address, filename), name)


async def _stored(
    services: Services, what: str, open_body: Callable[[], AbstractAsyncContextManager[HttpBody]], name: str
) -> str:
    """Return the id of the file that `what` identifies. Stores the file first if it is new."""

    async def add(record: IdempotencyRecord) -> None:
        try:
            async with open_body() as body:
                await services.ingest.add(RequestFile(body, limit=services.ingest.max_bytes), record, None)
        except ServerError as error:
            name_field(error, name)
            raise

    return await store_once(services.ingest, services.idempotency, what, add)
