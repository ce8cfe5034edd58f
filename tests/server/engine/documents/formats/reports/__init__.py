"""Small files after public bug reports of other readers, with what a reader of the text must and must not find."""

from __future__ import annotations

from typing import NamedTuple


class Report(NamedTuple):
    """A file. `holds`, `lacks`: words that its text must and must not have; `notes`: words of the notes on it."""

    name: str
    filename: str | None
    data: bytes
    holds: list[str]
    lacks: list[str]
    notes: list[str]
