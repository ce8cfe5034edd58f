"""Joins the lines of paragraphs in mail that is `format=flowed` (RFC 3676)."""

from __future__ import annotations

import re

_LINE_END = re.compile(r"\r\n?|\n")
_LINE = re.compile(r"(>*) ?(.*)", re.DOTALL)
"""The quote marks of a line, the space after which "From" and ">" may begin a line, and its text."""
_SIGNATURE = "-- "
"""The line before a signature: the only one with a space at its end that the next line does not continue."""


def join_flowed_lines(text: str, *, drops_space: bool) -> str:
    """Return the text with each paragraph in one line. Quoted lines keep their quote marks, and lines of another depth stay apart.

    `drops_space`: the space at the end of a line that goes on is no part of the text (`delsp=yes`).
    """
    parts: list[str] = []
    depth, goes_on = "", False
    for number, line in enumerate(_LINE_END.split(text)):
        marks, words = _split(line)
        if not (goes_on and marks == depth and words != _SIGNATURE):
            parts += "\n" if number else "", marks, " " if marks and words else ""
        depth, goes_on = marks, words.endswith(" ") and words != _SIGNATURE
        parts.append(words[:-1] if goes_on and drops_space else words)
    return "".join(parts)


def _split(line: str) -> tuple[str, str]:
    """Return the quote marks and the text of a line."""
    found = _LINE.fullmatch(line)
    assert found is not None, "the pattern fits every line"
    return found[1], found[2]
