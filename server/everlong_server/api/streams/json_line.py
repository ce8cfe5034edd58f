"""`json_line`: JSON in one line, for streams and files that clients split into lines."""

from __future__ import annotations

import json
from typing import Any

_LINE_ENDS = ("\x85", "\u2028", "\u2029")


def json_line(value: Any) -> str:
    """Encode `value` as JSON without line ends. Raises `ValueError` for a value that cannot be sent, so that a stream ends with an error
    instead of being cut off."""
    line = escape_line_ends(json.dumps(value, ensure_ascii=False, allow_nan=False))
    line.encode()
    return line


def escape_line_ends(text: str) -> str:
    """Return JSON text in which the line ends are escaped that JSON allows in a string: those of Unicode, such as U+2028.

    Python splits lines at them, too (`str.splitlines`), and so does httpx's `iter_lines`, which Ollama's client uses.
    """
    for character in _LINE_ENDS:
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
