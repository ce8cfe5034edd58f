"""Writes superscripts as text: without a mark, 10⁶ would become 106."""

from __future__ import annotations

import re

_EXPONENT = re.compile(r"[+\-\u2212\u2013\u00b1]?\d|[^\W\d_aeoªº]$", re.IGNORECASE)
"""What an exponent begins with: a digit, or a sign and a digit. Or it is a single letter, but none that ends ordinals (XXe, 1o, 1a)."""
_TERMS = r"[+\-\u2212]?[^\W_]{1,3}(?:\s*[+\-\u2212*/·]\s*[^\W_]{1,3})+"
_SUM = re.compile(rf"(?=.*[0-9+\u2212*/·])(?:\({_TERMS}\)|{_TERMS})")
"""An exponent of several terms, such as n+1, but no range of letters, such as a-c."""
_BRACKETS = (")", "]", "}")


def written_superscript(before: str, text: str) -> str:
    """Return a superscript as it follows `before`: `^` and the text if it looks like an exponent, or else the text.

    Exponents follow a letter, a digit or a closing bracket; those of several terms get brackets. Ordinals (1st, XXe), ™ and marks of notes ([1]) are none.
    """
    is_base = before[-1:].isalnum() or before.endswith(_BRACKETS)
    if is_base and _SUM.fullmatch(text) and any(map(str.isalpha, text)):
        return f"^{text}" if text.startswith("(") else f"^({text})"
    return f"^{text}" if is_base and _EXPONENT.match(text) else text
