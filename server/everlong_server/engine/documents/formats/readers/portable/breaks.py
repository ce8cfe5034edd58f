"""Corrects the line breaks that PDFium guesses. PDFium can mistake a column of cells for vertical writing.

It then breaks lines between letters, and joins the last word of a line to the first word below it: the cells 1 and 2 become 12.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from everlong_server.engine.documents.formats.readers.portable.changes import Change
from everlong_server.engine.documents.formats.readers.portable.letters import GAP, SIZES, Letter, Letters

_END = re.compile(r"(?<=\S)( *)\r\n( *)(?=\S)")
_DIGITS = re.compile(r"[0-9](?=[0-9])")
_WORDS = re.compile(r"[^\s\u2e80-\U0003ffff](?=[^\s\u2e80-\U0003ffff])")
"""Characters that follow each other, but not those of scripts that are written downwards."""
_NEAR, _SPACE = 0.3, 1.0
"""Largest gap between a superscript or subscript and its base character, and between two words, as a share of the font size."""
_BELOW = 0.8
"""Distance of two lines, as a share of the size."""
_MAX_STACKED = 8
"""Characters of a superscript or subscript that share their base with the other."""
_CARRIES_BOTH = re.compile(r"[^\W\d_]\Z|[)\]}|]\Z")
"""The end of a base. A digit or an opening bracket is followed by a small fraction instead."""
_LOWERED = str.maketrans("0123456789+-\u2212=()", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎")
_HAS_FORM = re.compile(r"[0-9+\-\u2212=()]+")


def corrected_breaks(text: str, letters: Letters) -> Iterator[Change]:
    """Yield the changes of the line ends of a page, in any order. `text`: all of the page, as PDFium has it."""
    is_trusted = True
    for found in _END.finditer(text):
        before, after = letters.at(found.start() - 1), letters.at(found.end())
        if before is None or after is None:
            continue
        if subscript := _stacked_subscript(text, letters, found):
            yield Change(*found.span(), "")
            yield from _lowered(text, *subscript)
        elif _is_one_line(before, after):
            is_trusted = is_trusted and not before.goes_with(after)
            has_space = bool(found[1] + found[2]) or after.start - before.end > GAP * max(before.size, after.size)
            yield Change(*found.span(), " " if has_space else "")
    for pair in (_DIGITS if is_trusted else _WORDS).finditer(text):
        before, after = letters.at(pair.start()), letters.at(pair.end())
        if before is not None and after is not None and _is_below(before, after):
            yield Change(pair.end(), pair.end(), "\r\n")


def _is_one_line(before: Letter, after: Letter) -> bool:
    """Whether a character continues the line of the one before, which may be its superscript or subscript."""
    if before.is_level_with(after) or after.carries(before) or after.carries_below(before):
        return before.is_near(after, _SPACE)
    return (before.carries(after) or before.carries_below(after)) and before.is_near(after, _NEAR)


def _stacked_subscript(text: str, letters: Letters, found: re.Match[str]) -> tuple[int, int] | None:
    """Return the places of the subscript if a superscript and a subscript of one base are before and after a line end."""
    first, second = letters.at(found.start() - 1), letters.at(found.end())
    if first is None or second is None or first.is_level_with(second):
        return None
    # The second begins at the base's end, so at the start of the first, which is as wide as its characters.
    if not -_MAX_STACKED * first.size <= second.start - first.start <= _NEAR * first.size / SIZES[0]:
        return None
    start = found.start() - 1
    while start > max(0, found.start() - _MAX_STACKED) and _is_drawn_like(letters.at(start - 1), first):
        start -= 1
    before = text[max(0, start - 4) : start].rstrip()
    if not _CARRIES_BOTH.search(before):
        return None
    base = letters.at(max(0, start - 4) + len(before) - 1)
    if base is None or not base.is_near(second, _NEAR):
        return None
    if base.carries_below(first) and base.carries(second):
        return start, found.start()
    if not (base.carries(first) and base.carries_below(second)):
        return None
    end = found.end() + 1
    while end < min(len(text), found.end() + _MAX_STACKED) and _is_drawn_like(letters.at(end), second):
        end += 1
    return found.end(), end


def _is_drawn_like(letter: Letter | None, other: Letter) -> bool:
    return letter is not None and other.goes_with(letter)


def _lowered(text: str, start: int, end: int) -> Iterator[Change]:
    """Yield the change of a subscript to lowered characters, or `_k`: after a superscript, it would look like the line's text."""
    plain = text[start:end]
    if _HAS_FORM.fullmatch(plain):
        yield Change(start, end, plain.translate(_LOWERED))
    elif plain.isalnum() and not text[start - 1].isalnum():
        yield Change(start, start, "_")


def _is_below(before: Letter, after: Letter) -> bool:
    """Whether a character begins another line, below the one before."""
    size = min(before.size, after.size)
    return (
        before.angle == after.angle
        and before.baseline - after.baseline >= _BELOW * size
        and after.start < before.end - _NEAR * size
    )
