"""Joins words that a program divided at the end of a line, and keeps the hyphens of compounds."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

# PDFium writes U+FFFE for a hyphen at the end of a line, and the break after it; U+0002 for one at the end of a page. It writes
# other hyphens, which some programs use, as they are.
_HYPHEN = re.compile(r"(?:[\ufffe\x02]|[\u00ad\u2010]\r?\n)[ \t]*")
_HYPHENS = "\ufffe\x02\u00ad\u2010"
_ADDRESS = re.compile(
    r"[^\w/~.\\]*(?:\w+://|www\.|[\w.+-]+@|(?:[\w-]+\.)+[a-z]{2,}/|~?\.{0,2}/\w|[\w.-]+/[\w.-]+/|[a-z]:\\|\\\\)",
    re.IGNORECASE,
)
"""How a web address or the path of a file begins, also after a bracket or a quote."""
_ADDRESS_SIGNS = "/@.\\"
"""Each address has one of these. Looking for them takes much less time than the expression."""
_MAX_ADDRESS = 1000
_MAX_WORD = 100
_LETTERS = re.compile(r"\w*")
_TOKEN = re.compile(r"(?<![\w\ufffe\x02-])\w+(?:-\w+)*(?![\w\ufffe\x02-])")
"""A word, or a compound with hyphens. The halves of a divided word are none."""
_PLAIN_HYPHENS = str.maketrans("\u2010\u2011", "--")
_APOSTROPHES = ("'", "\u2019")
_CONJUNCTIONS = frozenset(("and", "or", "und", "oder", "bzw", "och", "og"))
"""What follows a hyphen that stands for the end of a later word, as in "pre- and post-war"."""
_PER_COMPOUND, _PER_WORD = 0.2, 0.001
"""Words divided at line ends, for each compound within a line and for each word, up to which a document may divide compounds alone."""
_MIN_COMPOUNDS = 3
"""Compounds of two words that show that a document's language writes them with hyphens. German and Swedish join them."""
_MIN_LETTERS = 3


def joined_lines(lines: Sequence[str]) -> str:
    """Return the lines as text, with U+FFFE for a hyphen in a word that goes on in the next line, as PDFium writes it."""
    text = ""
    for line in lines:
        divided = text.endswith("-") and text[-2:-1].isalpha() and line[:1].islower()
        text = f"{text[:-1]}\ufffe{line}" if divided else f"{text}\n{line}"
    return text.removeprefix("\n")


def join_hyphens(text: str) -> str:
    """Join the words that are divided at the end of a line. Only the text itself shows which hyphens belong to compounds."""
    words = Vocabulary()
    words.add(text)
    return words.joined(text)


class Vocabulary:
    """The words of a document. They show which hyphens at line ends belong to compounds, and which only divide a word.

    Call `add` with each part of the document, and then `joined` with each part.
    """

    def __init__(self) -> None:
        self._words = Counter[str]()
        self._compounds = Counter[str]()
        self._following = defaultdict[str, set[str]](set)
        self._preceding = defaultdict[str, set[str]](set)
        self._divided = list[tuple[str, str]]()
        self._divides_words: bool | None = None

    def add(self, text: str) -> None:
        """Count the words of a part."""
        self._divides_words = None
        for token in _TOKEN.findall(text.lower().translate(_PLAIN_HYPHENS)):
            if "-" not in token:
                self._words[token] += 1
                continue
            parts = token.split("-")
            for left, right in pairwise(parts):
                self._compounds[f"{left}-{right}"] += 1
                self._following[left].add(right)
                self._preceding[right].add(left)
        self._divided += (_halves(text, found) for found in _HYPHEN.finditer(text))

    def joined(self, text: str) -> str:
        """Return a part with its divided words joined.

        The hyphen stays in web addresses and paths of files, which programs do not hyphenate, and in compounds: beside digits and capitals
        ("COVID-19"), after a single letter ("e-mail"), and where the words of the document show one.
        """
        if not any(hyphen in text for hyphen in _HYPHENS):
            return text
        return _HYPHEN.sub(self._join, text).replace("\u00ad", "")

    def _join(self, found: re.Match[str]) -> str:
        before, after = _halves(found.string, found)
        if _is_in_address(found):
            return "-"
        if not before:
            return ""
        if after in _CONJUNCTIONS and f"{before}{after}".lower() not in self._words:
            return "- "
        return "-" if self._is_compound(before, after, found) else ""

    def _is_compound(self, before: str, after: str, found: re.Match[str]) -> bool:
        left, right = before.lower(), after.lower()
        apart, together = self._compounds[f"{left}-{right}"], self._words[left + right]
        if apart or together:
            return apart >= together
        if not after[:1].islower() or before[-1:].isdigit() or before.isupper():
            return True
        start, end = found.start() - len(before), found.end() + len(after)
        if len(before) == 1:
            return found.string[max(0, start - 1) : start] not in _APOSTROPHES  # French divides "l'é-cole"
        are_words = left in self._words and right in self._words
        is_part = found.string[max(0, start - 1) : start] == "-" or found.string[end : end + 1] == "-"
        return (are_words and is_part) or not self._has_divided_words() or self._is_like_others(left, right, are_words)

    def _is_like_others(self, left: str, right: str, are_words: bool) -> bool:
        """Whether the compounds of the document make another one likely."""
        following, preceding = self._following.get(left, ()), self._preceding.get(right, ())
        if following and preceding:
            return True
        if (len(following) > 1 and right in self._words) or (len(preceding) > 1 and left in self._words):
            return True
        return are_words and min(len(left), len(right)) >= _MIN_LETTERS and self._writes_compounds()

    def _writes_compounds(self) -> bool:
        return len(self._compounds) >= _MIN_COMPOUNDS

    def _has_divided_words(self) -> bool:
        """Whether the document has words that are divided at line ends. Word and browsers divide none unless they are told to."""
        if self._divides_words is None:
            known = sum(self._words[f"{left}{right}".lower()] > 0 for left, right in self._divided)
            usual = max(_PER_COMPOUND * self._compounds.total(), _PER_WORD * self._words.total())
            self._divides_words = known > 0 or len(self._divided) > usual
        return self._divides_words


def _halves(text: str, found: re.Match[str]) -> tuple[str, str]:
    """Return the parts of a word before and after the end of a line."""
    before = _first_word(text[max(0, found.start() - _MAX_WORD) : found.start()][::-1])
    return before[::-1], _first_word(text[found.end() : found.end() + _MAX_WORD])


def _first_word(text: str) -> str:
    """Return the letters that a text begins with."""
    found = _LETTERS.match(text)
    return found[0] if found else ""


def _is_in_address(found: re.Match[str]) -> bool:
    """Whether the hyphen is inside a web address or the path of a file, of which a part is before it."""
    before = found.string[max(0, found.start() - _MAX_ADDRESS) : found.start()]
    if not before or before[-1].isspace():
        return False
    last = before.rsplit(maxsplit=1)[-1]
    return any(sign in last for sign in _ADDRESS_SIGNS) and _ADDRESS.match(last) is not None
