"""`json_line`: JSON in one line, for streams and files that clients split into lines."""

from __future__ import annotations

import json
from typing import Any

_LINE_ENDS = ("\x85", "\u2028", "\u2029")


def json_line(value: Any) -> str:
    """Encode `value` as JSON without line ends. Raises `ValueError` for NaN, infinity or a lone surrogate, so that a stream ends with
    an error instead of being cut off."""
    line = escape_line_ends(json.dumps(value, ensure_ascii=False, allow_nan=False))
    line.encode()
    return line


def escape_line_ends(text: str) -> str:
    """Escape U+0085, U+2028 and U+2029 in JSON text.

    JSON allows them in strings, but Python splits lines at them (`str.splitlines`), and so does httpx's `iter_lines`, which Ollama's client uses.
    """
    for character in _LINE_ENDS:
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
