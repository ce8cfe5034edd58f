"""Tells how much a decoded text looks like one that people write, by the neighbours of its characters.

In the wrong encoding, letters of two scripts meet in a word, capitals follow small letters, and signs stand inside words. This shows in
texts that are too short for statistics of a language.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

_OTHER = re.compile(r"[^\x00-\x7f]")
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL", "IDEOGRAPHIC", "FULLWIDTH")
"""Scripts, by the first word of a character's name, whose letters stand next to those of any other."""
_APOSTROPHES = "’‘ʼ·…"
"""Punctuation that stands inside words or between them without spaces."""
_LEAST = 0.003
"""The plausibility of a text in which nothing is plausible."""


def plausibility(text: str) -> float:
    """Return the share, 0 to 1, of the characters outside ASCII that stand where people write such ones, to the power of three.

    A single letter of another script than Latin is plausible only if the text has two such letters side by side elsewhere. At least 0.003.
    """
    odd, counted = 0, 0
    alone, joined = dict[str, int](), set[str]()
    padded = f" {text}  "
    for found in _OTHER.finditer(padded):
        at = found.start()
        before, character, after = padded[at - 1], padded[at], padded[at + 1]
        script = _script(character)
        counted += 1
        if script:
            around = [_script(other) for other in (before, after)]
            odd += _is_odd_letter(before, character, after, script, around) or _is_double_capital(
                before, character, after, padded[at + 2]
            )
            if script in around:
                joined.add(script)
            elif script != "LATIN":
                alone[script] = alone.get(script, 0) + 1
        else:
            odd += _is_odd_sign(before, character, after)
    odd = min(counted, odd + sum(times for script, times in alone.items() if script not in joined))
    return max(_LEAST, (1 - odd / counted) ** 3) if counted else 1.0


@cache
def _script(character: str) -> str:
    """Return the first word of the name of a letter or of a digit outside ASCII, such as LATIN; "EAST ASIAN" for all of `_EAST_ASIAN`; ""
    for any other character."""
    is_digit = character.isdecimal() and not character.isascii()
    if not (character.isalpha() or is_digit) or unicodedata.category(character) == "Lm":
        return ""
    script = unicodedata.name(character, "UNKNOWN").partition(" ")[0]
    if script in ("FEMININE", "MASCULINE", "MICRO"):  # ª º µ
        return ""
    return "EAST ASIAN" if script in _EAST_ASIAN else script


def _is_odd_letter(before: str, character: str, after: str, script: str, around: list[str]) -> bool:
    others = [other for other in around if other and other != script]
    if script == "EAST ASIAN":
        return len(others) == 2
    if any(other != "EAST ASIAN" for other in others):
        return True
    if character.isupper():
        return before.islower()
    return character.islower() and after.isupper()


def _is_double_capital(before: str, character: str, after: str, last: str) -> bool:
    """Return whether the second of four characters begins a word like "ĄOlé"."""
    return not before.isalpha() and character.isupper() and after.isupper() and last.islower()


def _is_odd_sign(before: str, character: str, after: str) -> bool:
    category = unicodedata.category(character)
    inside = all(_script(other) not in ("", "EAST ASIAN") for other in (before, after))
    if category in ("Mn", "Mc"):
        return not (before.isalpha() or unicodedata.category(before) in ("Mn", "Mc"))
    is_accent = category == "Sk" or (category == "Lm" and character not in _APOSTROPHES and not before.isalpha())
    if category in ("Cc", "Cn", "Co") or (
        is_accent and character not in "´¨¸"
    ):  # accents without a letter, but for common ones
        return True
    if category == "Sc":
        return after.isalpha() and not before.isdigit()
    if character in "¿¡":
        return before.isalpha()
    return inside and category not in ("Pd", "Zs", "Cf") and character not in _APOSTROPHES
