"""Files that a request names or carries. Every error names the field of the request."""

from __future__ import annotations

import asyncio
import base64
import binascii

from everlong_server.errors import InvalidRequest, NotFound, ServerError
from everlong_server.services import Services
from everlong_server.store.records import Document


async def require_file(services: Services, file_id: str, name: str) -> Document:
    """Return the document of a file. `name`: the field of the request. Raises `NotFound`."""
    try:
        return await services.documents.get(file_id)
    except NotFound:
        raise NotFound(f"{name}: no file {file_id[:64]!r}", param=name, code="file_not_found") from None


async def decode_base64(data: str, name: str) -> bytes:
    """Return the content of the field `name`. Raises `InvalidRequest`."""
    try:
        return await asyncio.to_thread(base64.b64decode, data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"{name}: not valid base64: {error}", param=name) from None


def name_field(error: ServerError, name: str) -> None:
    """Make the error one of the field `name`, unless it is about the server or a quota."""
    if error.status in (400, 403, 413, 415, 422):
        error.message = f"{name}: {error.message.removeprefix('url: ')}"
        error.param = name
