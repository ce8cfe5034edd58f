"""Writes the numbers of lists as a page shows them."""

from __future__ import annotations

import re
from typing import Any

from everlong_server.engine.documents.formats.readers.pages.styles import Styles
from everlong_server.engine.documents.formats.readers.shared.numerals import numeral

_INTEGER = re.compile(r"\s*-?[0-9]{1,9}\s*")
_FORMS = {
    "decimal": "1", "decimal-leading-zero": "decimalZero", "lower-alpha": "a", "lower-latin": "a", "upper-alpha": "A", "upper-latin": "A",
    "lower-roman": "i", "upper-roman": "I",
}  # fmt: skip
"""The names that styles have for the forms of numbers."""
_BULLETS = {"none", "disc", "circle", "square"}


class ListForms:
    """The forms of the numbers of a page's lists. Create it before the page loses its styles."""

    def __init__(self, tree: Any) -> None:
        styles = Styles(tree, "list-style-type", "list-style")
        self._forms: dict[Any, str] = {}
        for element in tree.xpath("//ol[@style or @class] | //ol/li[@style or @class]"):
            own, given = styles.own(element), styles.of_class(element)
            # A page whose rules remove the numbers may write them with rules for `::before`, which are not read.
            words = (own or "").split() or [word for word in (given or "").split() if word != "none"]
            for word in words:
                if word in _FORMS or word in _BULLETS:
                    self._forms[element] = _FORMS.get(word, "none")
                    break

    def write_out(self, tree: Any) -> None:
        """Write the numbers of lists that do not count 1, 2, 3. inscriptis writes the others."""
        for numbered in tree.xpath("//ol"):
            items = numbered.xpath("./li")
            if any(numbered.get(name) is not None for name in ("start", "type", "reversed")) or any(
                item.get("value") is not None or item.get("type") is not None or item in self._forms
                for item in (numbered, *items)
            ):
                self._write_out(numbered, items)

    def _write_out(self, numbered: Any, items: list[Any]) -> None:
        step = -1 if numbered.get("reversed") is not None else 1
        count = _integer(numbered.get("start"), len(items) if step < 0 else 1)
        form = self._forms.get(numbered, numbered.get("type", "1"))
        for item in items:
            count = _integer(item.get("value"), count)
            inner = next((child for child in item if child.tag != "span" or child.text or child.tail), item)
            first = inner if not (item.text or "").strip() and inner.tag in ("p", "div") else item
            number = numeral(count, self._forms.get(item, item.get("type", form)))
            first.text = (f"{number}. " if number else "") + (first.text or "").lstrip()
            count += step
            item.tag = "div"
        numbered.tag = "section"


def _integer(text: str | None, default: int) -> int:
    return int(text) if text and _INTEGER.fullmatch(text) else default
