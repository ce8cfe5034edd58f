"""Scores how plausible it is that people wrote a text, from the Unicode properties of its characters alone."""

from __future__ import annotations

import re
import unicodedata
from functools import cache

_WORD = re.compile(r"\S+")
_LETTERS = re.compile(r"[^\W\d_]+")
_ASCII_LETTER = re.compile(r"[A-Za-z]")
_JOINS = "\N{RIGHT SINGLE QUOTATION MARK}\N{MIDDLE DOT}\N{HORIZONTAL ELLIPSIS}\N{ACUTE ACCENT}"
"""Signs that join the letters of a word, or stand for some, besides dashes."""
_IDEOGRAPHS = frozenset(
    {"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL", "HALFWIDTH", "FULLWIDTH", "IDEOGRAPHIC", "BOPOMOFO"}
)
"""First words of the Unicode names of characters that may touch Latin letters without a space."""
_SCRIPTS = frozenset({"LATIN", "CYRILLIC", "GREEK", "ARABIC", "HEBREW", "THAI"}) | _IDEOGRAPHS
_BEFORE_NUMBER = re.compile(r"(?<!\S)[^\W\d_](?=\s\d)")
"""A letter of its own before a number, where a sign such as © is likelier than a capital."""
_LINES = re.compile("[\u2500-\u259f]")
_MIN_LINES = 3
"""Characters that draw lines and boxes, and how many of them a drawing has at least."""
_MIN_WORD = 3
"""Minimum number of letters side by side that are evidence of their script. Fewer appear by chance."""


@cache
def _script(character: str) -> str:
    """Return the script of a character; an empty text for signs, as º and µ, and marks of every script."""
    if character.isascii():
        return "LATIN" if character.isalpha() else ""
    if unicodedata.east_asian_width(character) in "WF":
        return "CJK"
    first = unicodedata.name(character, "").split(" ", 1)[0]
    return first if first in _SCRIPTS else ""


def odd_share(text: str) -> float:
    """Return the share of the characters outside ASCII that are in places where people hardly write such characters.

    Those are letters of two scripts in one word, a few letters of another script among Latin words, a capital inside a word,
    a sign between two letters, a mark without its letter, and control characters.
    """
    others = native = 0
    odd = sum(
        each.isupper() and not each.isascii() and _script(each) == "LATIN" for each in _BEFORE_NUMBER.findall(text)
    )
    short = [0, 0, 0]  # letters in runs of this many
    ideographs = sum(_script(character) in _IDEOGRAPHS for character in text)
    for match in _WORD.finditer(text):
        word = match[0]
        if word.isascii():
            continue
        others += len(word) - len(word.encode("ascii", "ignore"))
        odd += _odd_in_word(word)
        for run in _runs(word):
            letters = sum(unicodedata.category(each)[0] == "L" for each in run)
            if letters < _MIN_WORD:
                short[letters] += len(run)
            else:
                native += len(run)
    latin = len(_ASCII_LETTER.findall(text))
    chance = short[0] + short[1] + (short[2] if latin else 0)
    if 10 * native <= latin + chance:
        odd += chance
    if ideographs == 1:
        odd += 1
    if len(lines := _LINES.findall(text)) < _MIN_LINES:
        odd += len(lines)
    return min(1.0, odd / others) if others else 0.0


def _runs(word: str) -> list[str]:
    """Return the runs of characters of one script that is neither Latin nor written beside it without a space."""
    runs: list[str] = []
    before = ""
    for character in word:
        script = _script(character)
        if script and script != "LATIN" and script not in _IDEOGRAPHS:
            if script == before:
                runs[-1] += character
            else:
                runs.append(character)
        before = script
    return runs


def _odd_in_word(word: str) -> int:
    """Return the number of characters outside ASCII that are odd where they stand in the word."""
    capitals = _inner_capitals(word)
    padded = f" {word} "
    return sum(
        not character.isascii() and (at in capitals or _is_odd(padded[at], character, padded[at + 2]))
        for at, character in enumerate(word)
    )


def _inner_capitals(word: str) -> set[int]:
    """Return the places of capitals inside words that are not all capitals, and of the letters before them."""
    found: set[int] = set()
    for match in _LETTERS.finditer(word):
        run = match[0]
        if run.isascii() or run.isupper() or run[1:].islower():
            continue
        found.update(match.start() + at - back for at in range(1, len(run)) if run[at].isupper() for back in (0, 1))
    return found


def _is_odd(before: str, character: str, after: str) -> bool:
    """Whether a character outside ASCII is odd between the other two."""
    category = unicodedata.category(character)
    if category in ("Cc", "Cn", "Co", "Cs") or character == "\N{REPLACEMENT CHARACTER}":
        return True
    beside = (_script(before), _script(after))
    script = _script(character)
    if script in _IDEOGRAPHS:
        return "LATIN" in beside and not _IDEOGRAPHS.intersection(beside)
    if script == "LATIN" and before.isdecimal() and not beside[1]:
        return True
    if script:
        is_strange = any(other and other != script and other not in _IDEOGRAPHS for other in beside)
        return is_strange or (category == "Mn" and beside[0] != script)
    if category == "Mn":
        return not beside[0]
    if character in _JOINS or category in ("Pd", "Cf", "Zs"):
        return False
    if category == "Sk" or _LINES.match(character):
        return any(beside)
    return all(beside)
