"""`FormParser`: reads the file in a multipart form as it arrives."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from everlong_server.errors import InvalidRequest

FormFields = Mapping[str, Sequence[str]]
"""Required fields of a form, and the allowed values of each."""

_MAX_VALUE = 255
"""Longer than any allowed value of a field."""


class FormParser:
    """Yields the bytes of the part named `part`. Parts in `fields` are required; all others are errors."""

    def __init__(self, boundary: bytes, fields: FormFields, part: str) -> None:
        self._boundary = boundary
        self._required = fields
        self._part = part
        self._name = bytearray()
        self._value = bytearray()
        self._header: dict[bytes, bytes] = {}
        self._waiting: list[bytes] = []
        """Bytes of the file that were parsed and not yielded yet."""
        self._files: list[str | None] = []
        """The file name of the part, once its headers are parsed."""
        self._media_type: str | None = None
        self._charset: str | None = None
        self._fields: dict[str, bytearray] = {}
        self._complete: set[str] = set()
        """The fields whose values are parsed."""
        self._field: str | None = None
        """The field whose value is being parsed; None: the file."""
        self._ended = False

    @property
    def filename(self) -> str | None:
        """Name of the file, if the form gives one."""
        return self._files[0] if self._files else None

    @property
    def media_type(self) -> str | None:
        """Media type of the file, if the form gives one."""
        return self._media_type

    @property
    def charset(self) -> str | None:
        """The encoding that the media type of the file names, if it does."""
        return self._charset

    @property
    def fields(self) -> dict[str, str]:
        """Values of the required fields that were parsed so far."""
        return {name: value.decode() for name, value in self._fields.items() if name in self._complete}

    async def chunks(self, stream: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Parse the form and yield the content of the file. Raises `InvalidRequest` for a malformed or incomplete form."""
        if not self._boundary:
            raise InvalidRequest(
                "the content type multipart/form-data has no boundary", param="content-type", code="invalid_multipart"
            )
        try:
            parser = MultipartParser(
                self._boundary,
                {
                    "on_header_field": lambda data, start, stop: self._name.extend(data[start:stop]),
                    "on_header_value": lambda data, start, stop: self._value.extend(data[start:stop]),
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._headers_finished,
                    "on_part_data": self._part_data,
                    "on_part_end": self._part_end,
                    "on_end": self._end,
                },
            )
            async for data in stream:
                parser.write(data)
                for part in self._waiting:
                    yield part
                self._waiting.clear()
            parser.finalize()
        except FormParserError as error:  # also raised for a boundary that is too long
            raise InvalidRequest(f"malformed multipart body: {error}", code="invalid_multipart") from None
        self._finish()

    def _header_end(self) -> None:
        self._header[bytes(self._name).lower()] = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._header.get(b"content-disposition", b""))
        part = options.get(b"name", b"").decode("utf-8", "replace")
        media_type, of_type = parse_options_header(self._header.get(b"content-type", b""))
        self._header.clear()
        self._field = None
        if part in self._required and part not in self._fields:
            self._field, self._fields[part] = part, bytearray()
            return
        if part != self._part:
            raise InvalidRequest(
                f"unknown part {part[:60]!r}: send the document as the part {self._part!r}",
                param=part[:60],
                code="unknown_parameter",
            )
        if self._files:
            raise InvalidRequest("the request has more than one document: send one", param=self._part)
        given = options.get(b"filename")
        self._media_type = media_type.decode("latin-1") or None
        charset = of_type.get(b"charset")
        self._charset = None if charset is None else charset.decode("latin-1")
        self._files.append(given.decode("utf-8", "replace") if given is not None else None)

    def _part_data(self, data: bytes, start: int, stop: int) -> None:
        if self._field is None:
            self._waiting.append(data[start:stop])
            return
        value = self._fields[self._field]
        value += data[start : min(stop, start + _MAX_VALUE)]
        if len(value) > _MAX_VALUE:  # longer than any allowed value
            self._part_end()

    def _part_end(self) -> None:
        if self._field is not None:
            given, allowed = self._fields[self._field].decode("utf-8", "replace"), self._required[self._field]
            if given not in allowed:
                raise InvalidRequest(
                    f"{self._field} must be {' or '.join(map(repr, allowed))}, got {given[:60]!r}", param=self._field
                )
            self._complete.add(self._field)

    def _end(self) -> None:
        self._ended = True

    def _finish(self) -> None:
        """Raise `InvalidRequest` if a part is missing or the body is incomplete."""
        if not self._files:
            raise InvalidRequest(
                f"the multipart body has no part {self._part!r}", param=self._part, code="missing_parameter"
            )
        for name in self._required:
            if name not in self._fields:
                raise InvalidRequest(f"the multipart body has no part {name!r}", param=name, code="missing_parameter")
        if not self._ended:
            raise InvalidRequest("the multipart body ends before its last boundary", code="invalid_multipart")
