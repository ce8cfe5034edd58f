"""Writes superscripts as text: without a mark, 10⁶ would become 106."""

from __future__ import annotations

import re

_EXPONENT = re.compile(r"[+\-\u2212\u2013\u00b1]?\d|[^\W\d_aeoªº]$", re.IGNORECASE)
"""What an exponent begins with: a digit, or a sign and a digit. Or it is a single letter, but none that ends ordinals (XXe, 1o, 1a)."""
_BRACKETS = (")", "]", "}")


def written_superscript(before: str, text: str) -> str:
    """Return a superscript as it follows `before`: `^` and the text if it looks like an exponent, or else the text.

    Exponents follow a letter, a digit or a closing bracket. Ordinals (1st, XXe), ™ and marks of notes ([1]) are none.
    """
    is_base = before[-1:].isalnum() or before.endswith(_BRACKETS)
    return f"^{text}" if is_base and _EXPONENT.match(text) else text
