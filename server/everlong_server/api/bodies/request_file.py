"""`RequestFile`: the file in an HTTP request, as its body or as a part of a multipart form."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Protocol

from python_multipart.multipart import parse_options_header

from everlong_server.api.bodies.charset import Decoder
from everlong_server.api.bodies.multipart import FormFields, FormParser
from everlong_server.engine.documents.formats.catalogue import is_accepted
from everlong_server.engine.documents.text_checker import too_large
from everlong_server.errors import UnsupportedMedia

# `curl --data-binary` sends application/x-www-form-urlencoded by default.
_RAW_TYPES = ("", "application/octet-stream", "application/x-www-form-urlencoded")
_FORM_OVERHEAD = 4096
"""Bytes that a form may have around the file."""


BINARY = {"type": "string", "format": "binary"}
"""The JSON Schema of a file."""


def request_body(form: dict[str, Any], **others: Any) -> dict[str, Any]:
    """Return the `openapi_extra` of an endpoint that takes a form with these required fields, each with its JSON Schema.

    `others`: further content of `requestBody`, by media type.
    """
    schema = {"type": "object", "required": list(form), "properties": form}
    return {"requestBody": {"required": True, "content": {**others, "multipart/form-data": {"schema": schema}}}}


class HttpBody(Protocol):
    """A body with its headers, such as a request."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers, of which `content-type` and `content-length` are read."""

    @property
    def query_params(self) -> Mapping[str, str]:
        """Query parameters, of which `filename` is read."""

    def stream(self) -> AsyncIterator[bytes]:
        """Yield the content in chunks."""


class RequestFile:
    """A `FileSource` of a request. Accepts a plain body and a form, whose part `part` is the file.

    `limit`: maximum number of bytes, checked early against `content-length`. `fields`: required fields of the form; if it is
    given, a plain body is refused.
    """

    def __init__(
        self, body: HttpBody, *, part: str = "file", fields: FormFields | None = None, limit: int | None = None
    ) -> None:
        self._body = body
        self._part = part
        self._fields = fields
        self._limit = limit
        self.filename: str | None = None
        self.media_type: str | None = None
        self.values: dict[str, str] = {}
        """Values of the form's fields before the chunk that was yielded last; at the end, of all."""

    @property
    def announced_bytes(self) -> int:
        """The `content-length`; 0 if there is none."""
        length = self._body.headers.get("content-length", "")
        return int(length) if length.isdigit() else 0

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the content of the file. Raises `TooLarge`, `UnsupportedMedia` or `InvalidRequest`."""
        header, options = parse_options_header(self._body.headers.get("content-type", ""))
        kind, multipart = header.decode("latin-1"), header == b"multipart/form-data"
        if self._limit is not None and self.announced_bytes > self._limit + (_FORM_OVERHEAD if multipart else 0):
            raise too_large(self._limit)
        filename = self._body.query_params.get("filename")
        if multipart:
            form = FormParser(options.get(b"boundary", b""), self._fields or {}, self._part)
            async with contextlib.aclosing(form.chunks(self._body.stream())) as chunks:
                decoder: Decoder | None = None
                async for chunk in chunks:
                    self.filename, self.media_type = form.filename or filename, form.media_type
                    self.values = form.fields
                    # A part of a multipart upload may begin inside a character.
                    decoder = decoder or Decoder(
                        form.media_type, form.charset if self._part == "file" else None, self.filename
                    )
                    yield decoder.decode(chunk)
            self.filename, self.values = form.filename or filename, form.fields
            if decoder is not None:
                yield decoder.decode(b"", is_last=True)
            return
        if self._fields is not None:
            raise UnsupportedMedia(
                f"content type {kind[:60]!r} is not supported: send multipart/form-data", param="content-type"
            )
        charset = options.get(b"charset")
        _check_type(kind)
        decoder = Decoder(kind, None if charset is None else charset.decode("latin-1"), filename)
        self.filename, self.media_type = filename, kind
        async for chunk in self._body.stream():
            yield decoder.decode(chunk)
        yield decoder.decode(b"", is_last=True)


def _check_type(kind: str) -> None:
    if not (kind in _RAW_TYPES or is_accepted(kind)):
        raise UnsupportedMedia(
            f"content type {kind[:60]!r} is not supported: send text/plain, multipart/form-data or the type of a supported "
            "format (GET /v1/formats)",
            param="content-type",
        )
