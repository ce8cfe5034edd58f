"""`in_digits`: English text with its number words as digits."""

from __future__ import annotations

from text_to_num import alpha2digit

DIGITS = r"\d+(?:,\d{3}(?!\d))*"
"""Pattern of a whole number, which may have commas between its thousands."""
_LOWEST = 2
"""Number words below it stay words: "one" is more often a pronoun."""


def in_digits(text: str) -> str:
    """Replace the number words of a text by digits: "46" for "forty-six", "2nd" for "second". The text must be English and in lower case."""
    return alpha2digit(text, "en", threshold=_LOWEST)
