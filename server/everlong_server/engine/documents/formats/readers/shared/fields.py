"""Returns the text of fields that have no saved result: part of the field's instruction, such as a prompt or a symbol."""

from __future__ import annotations

import re

from everlong_server.engine.documents.formats.readers.shared.symbols import character, is_symbol_font

_SYMBOL = re.compile(r'\s*SYMBOL\s+(0x[0-9a-fA-F]{1,4}|\d{1,5})(?:.*?\\f\s+"?([^"\\]+?)"?\s*(?:\\|$))?', re.DOTALL)
"""The instruction of a field that shows one character of a font."""
_PROMPT = re.compile(r"\s*(?:MACROBUTTON|GOTOBUTTON)\s+\S+\s+(.*)", re.DOTALL | re.IGNORECASE)
_QUOTE = re.compile(r'\s*QUOTE\s+"([^"]*)"', re.IGNORECASE)


_AS_DEFAULT = 25
"""The state of a control in RTF that nobody changed."""


class Control:
    """A control of a form in RTF: a list or a box. Its options and state precede its instruction."""

    def __init__(self) -> None:
        self.options: list[str] = []
        self._chosen = 0

    def choose(self, state: int) -> None:
        """Set the number of the chosen option, or 1 for a box that is checked."""
        if state != _AS_DEFAULT:
            self._chosen = state

    def take_text(self, instruction: str) -> str:
        """Return the state as text, and begin the next control. `instruction`: the field's, such as "FORMCHECKBOX"."""
        options, chosen = self.options, self._chosen
        self.options, self._chosen = [], 0
        if instruction.startswith("FORMCHECKBOX"):
            return "[x]" if chosen == 1 else "[ ]"
        return options[chosen] if 0 <= chosen < len(options) else ""


def field_text(instruction: str, font: str = "") -> str:
    """Return what a field without a result shows; "" for those that show nothing. `font`: of the characters around it."""
    if symbol := _SYMBOL.match(instruction):
        name, code = symbol[2] or font, int(symbol[1], 0) & 0xFFFF
        return (character(name, code) or "") if is_symbol_font(name) else chr(code)
    words = _PROMPT.match(instruction) or _QUOTE.match(instruction)
    return words[1].strip() if words else ""
