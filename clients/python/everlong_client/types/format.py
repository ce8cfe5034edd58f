"""The file formats that a server accepts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """A file format. `id`: such as "pdf". `extensions`: usual ones, with the dot; text files may have any."""

    id: str
    name: str
    extensions: tuple[str, ...]
    media_types: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Formats:
    """All file formats. `max_bytes`: the limit for a file, and for the text in it."""

    data: tuple[Format, ...]
    max_bytes: int
