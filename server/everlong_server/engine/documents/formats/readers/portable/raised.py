"""Superscript numbers of a PDF. The file only draws them smaller and higher: without a mark, 10⁶ would become 106."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everlong_server.engine.documents.formats.readers.portable.changes import Change
from everlong_server.engine.documents.formats.readers.portable.letters import GAP, OVERLAP, SIZES, Letter, Letters

_CANDIDATE = re.compile(r"[0-9]|(?<=[\w)\]\n])[^\W\d_A-Zaeo](?!\w)")
"""A digit, or the last letter of a word, such as the n of xⁿ. Ordinals end with a, e and o."""
_CARRIES_LETTER = re.compile(
    r"(?:[)\]]|[0-9](?!d)|(?<!\w)[^\W\d_A-Z]+|\w{3}[^\W\d_A-Z]|(?<!\w)[A-Z](?=[ijkmnpxy]))\w\Z"
)
"""A single raised letter, and the end of what can carry it: no number of an ordinal (3d), no short word with a capital, as in Mr."""
_RAISED = str.maketrans("0123456789+-\u2212\u2013=()ni", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁻⁼⁽⁾ⁿⁱ")
_HAS_FORM = re.compile(r"[0-9+\-\u2212\u2013=()ni,.*\u2020]+")
"""Superscripts whose characters have a raised form, or need none."""
_BACK, _FORTH = 8, 24
"""Characters of a superscript before and after one of its digits."""
_NEAR, _SPACE = 0.3, 1.0
"""How far a superscript may be from the character that carries it, without and with a space between them, as a share of its size."""
_FRACTION = re.compile(r"\s*[/\u2044]\s*[0-9]")


@dataclass(frozen=True, slots=True)
class Superscript(Change):
    """A superscript, and how it is written in the text of the page.

    `index`: of its first character on the page. `carrier`: the character before it; "" if it carries the next one. `plain`: as
    PDFium has it.
    """

    index: int
    carrier: str
    plain: str


class _Page:
    """Finds the superscript numbers of a page. `text`: all of the page, as PDFium has it."""

    def __init__(self, text: str, letters: Letters) -> None:
        self._text = text
        self._letter = letters.at

    def superscripts(self) -> Iterator[Superscript]:
        done = 0
        for candidate in _CANDIDATE.finditer(self._text):
            place = candidate.start()
            if place < done or (first := self._letter(place)) is None:
                continue
            start, end = place, place + 1
            if candidate[0].isalpha() and place and self._goes_on(place - 1, first):
                continue
            while start > max(done, place - _BACK) and self._goes_on(start - 1, first):
                start -= 1
            while end < min(len(self._text), place + _FORTH) and self._goes_on(end, first):
                end += 1
            if (found := self._superscript(start, end)) is not None:
                yield found
                end = max(end, found.end)
            done = end

    def _goes_on(self, place: int, first: Letter) -> bool:
        """Whether the character at a place is drawn like `first`. White space ends a superscript."""
        letter = None if self._text[place].isspace() else self._letter(place)
        return letter is not None and first.goes_with(letter)

    def _superscript(self, start: int, end: int) -> Superscript | None:
        """Return the superscript that these characters are, which are drawn alike; None if they are none."""
        first, last, plain = self._letter(start), self._letter(end - 1), self._text[start:end]
        if first is None or last is None:
            return None
        base = len(self._text[:start].rstrip()) - 1 if start else -1
        before = self._letter(base) if base >= max(0, start - 4) else None
        after_place = end + len(self._text[end : end + 4]) - len(self._text[end : end + 4].lstrip())
        after = self._letter(after_place) if after_place < len(self._text) else None
        space = self._text[base + 1 : start]
        if before is not None and before.carries(first) and before.is_near(first, _SPACE if space else _NEAR):
            carrier = before
        elif (not start or space) and after is not None and after.carries(first) and last.is_near(after, _SPACE):
            carrier = after
        else:
            return None
        if (
            plain.isalpha() and after is not None and first.goes_with(after)
        ):  # a word after an initial that is drawn larger
            return None
        written = self._written(plain, end, self._text[base] if carrier is before else "", carrier)
        if written is None:
            return None
        is_added = space and not any(self._letter(place) for place in range(base + 1, start))
        if carrier is before and is_added:  # PDFium takes the superscript for another word or line
            written = (" " if first.start - before.end > _NEAR * before.size else "") + written
            start = base + 1
        if after is not None and "\n" in self._text[end:after_place] and self._is_same_line(last, carrier, after):
            has_space = " " in self._text[end:after_place] or after.start - last.end > GAP * carrier.size
            written, end = written + " " * has_space, after_place
        return Superscript(start, end, written, first.index, self._text[base] if carrier is before else "", plain)

    def _written(self, plain: str, end: int, base: str, carrier: Letter) -> str | None:
        """Return a superscript as text: in raised characters, or after `^`. The upper number of a fraction stays as it is."""
        if fraction := _FRACTION.match(self._text, end):
            lower = self._letter(fraction.end() - 1)
            if lower is not None and lower.size <= SIZES[1] * carrier.size:
                return f" {plain}" if base.isdigit() else plain
        if plain.isalpha() and (
            len(plain) > 1 or not _CARRIES_LETTER.search(self._text[max(0, end - 8) : end - 1].rstrip() + plain)
        ):
            return None
        if _HAS_FORM.fullmatch(plain):
            return plain.translate(_RAISED)
        if not base:
            return None
        return f"^{plain}" if plain.isalnum() else f"^({plain})"

    @staticmethod
    def _is_same_line(last: Letter, carrier: Letter, after: Letter) -> bool:
        """Whether the line of the superscript's carrier continues with `after`."""
        return carrier.is_level_with(after) and after.start >= last.end - OVERLAP * carrier.size


def superscripts(text: str, letters: Letters) -> Iterator[Superscript]:
    """Yield the superscript numbers of a page, such as exponents and marks of footnotes. `text`: all of the page, as PDFium has it."""
    return _Page(text, letters).superscripts()


def with_superscripts_of_line(line: str, raised: Sequence[Superscript]) -> str:
    """Return one line of a page with its superscript numbers in raised characters. `raised`: those of this line, in their order."""
    done = 0
    for found in raised:
        drawn = re.compile(rf"({re.escape(found.carrier)})(?:\r\n)?{re.escape(found.plain)}(?:\r\n)?")
        if match := drawn.search(line, done):
            line = f"{line[: match.end(1)]}{found.written.rstrip()}{line[match.end() :]}"
            done = match.end(1) + len(found.written.rstrip())
    return line
