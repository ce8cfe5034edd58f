"""Joins words that were hyphenated at the end of a line."""

from __future__ import annotations

import re
from collections.abc import Sequence

# PDFium writes U+FFFE for a hyphen at the end of a line, and the break after it; U+0002 for one at the end of a page. It writes
# other hyphens, which some programs use, as they are.
_HYPHEN = re.compile(r"(\w*)(?:[\ufffe\x02]|[\u00ad\u2010]\r?\n)[ \t]*(\w*)")


def joined_lines(lines: Sequence[str]) -> str:
    """Return the lines as text, with U+FFFE for a hyphen in a word that goes on in the next line, as PDFium writes it."""
    text = ""
    for line in lines:
        divided = text.endswith("-") and text[-2:-1].isalpha() and line[:1].islower()
        text = f"{text[:-1]}\ufffe{line}" if divided else f"{text}\n{line}"
    return text.removeprefix("\n")


def join_hyphens(text: str) -> str:
    """Join words that were hyphenated at the end of a line.

    The hyphen stays where the text has the word with a hyphen elsewhere, and before digits and capitals ("COVID-19").
    """
    if not any(hyphen in text for hyphen in "\ufffe\x02\u00ad\u2010"):
        return text
    hyphenated = {word.lower() for word in re.findall(r"\w+-\w+", text)}

    def join(match: re.Match[str]) -> str:
        before, after = match[1], match[2]
        keep = not after[:1].islower() or f"{before}-{after}".lower() in hyphenated
        return f"{before}{'-' if keep and before else ''}{after}"

    return _HYPHEN.sub(join, text).replace("\u00ad", "")
