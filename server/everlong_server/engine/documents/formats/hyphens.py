"""Joins words that were hyphenated at the end of a line."""

from __future__ import annotations

import re
from collections.abc import Sequence

# PDFium writes U+FFFE for a hyphen at the end of a line, and the break after it; U+0002 for one at the end of a page. It writes
# other hyphens, which some programs use, as they are.
_HYPHEN = re.compile(r"(\w*)(?:[\ufffe\x02]|[\u00ad\u2010]\r?\n)[ \t]*(\w*)")
_ADDRESS = re.compile(
    r"[^\w/~.\\]*(?:\w+://|www\.|[\w.+-]+@|(?:[\w-]+\.)+[a-z]{2,}/|~?\.{0,2}/\w|[\w.-]+/[\w.-]+/|[a-z]:\\|\\\\)",
    re.IGNORECASE,
)
"""How a web address or the path of a file begins, also after a bracket or a quote."""
_MAX_ADDRESS = 1000


def joined_lines(lines: Sequence[str]) -> str:
    """Return the lines as text, with U+FFFE for a hyphen in a word that goes on in the next line, as PDFium writes it."""
    text = ""
    for line in lines:
        divided = text.endswith("-") and text[-2:-1].isalpha() and line[:1].islower()
        text = f"{text[:-1]}\ufffe{line}" if divided else f"{text}\n{line}"
    return text.removeprefix("\n")


def join_hyphens(text: str) -> str:
    """Join words that were hyphenated at the end of a line.

    The hyphen stays where the text has the word with a hyphen elsewhere, before digits and capitals ("COVID-19"), and in web addresses
    and paths of files, which programs do not hyphenate.
    """
    if not any(hyphen in text for hyphen in "\ufffe\x02\u00ad\u2010"):
        return text
    hyphenated = {word.lower() for word in re.findall(r"\w+-\w+", text)}

    def join(match: re.Match[str]) -> str:
        before, after = match[1], match[2]
        keep = not after[:1].islower() or f"{before}-{after}".lower() in hyphenated
        return f"{before}{'-' if (keep and before) or _is_in_address(match) else ''}{after}"

    return _HYPHEN.sub(join, text).replace("\u00ad", "")


def _is_in_address(match: re.Match[str]) -> bool:
    """Whether the hyphen is inside a web address or the path of a file, of which a part is before it."""
    before = match.string[max(0, match.start() - _MAX_ADDRESS) : match.end(1)]
    return not before[-1:].isspace() and _ADDRESS.match(before.split()[-1] if before else "") is not None
