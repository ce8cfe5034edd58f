"""Looks up the styles of a page's elements: in their own attribute, and in rules for a class such as `.old` or `span.old`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_COMMENT = re.compile(r"/\*.*?(?:\*/|\Z)", re.DOTALL)
_PRINT = re.compile(r"@media\b(?!.*\b(?:screen|all)\b).*\bprint\b", re.IGNORECASE | re.DOTALL)
"""Around rules for paper alone."""
_CLASS = re.compile(r"([a-z][a-z0-9]*)?\.([\w-]+)", re.IGNORECASE)


class Styles:
    """The values of some CSS properties."""

    def __init__(self, tree: Any, *properties: str) -> None:
        """`properties`: the names of those to look up. The later ones are other names of the first."""
        names = "|".join(map(re.escape, properties))
        self._declared = re.compile(rf"(?:^|[;{{\s])(?:{names})\s*:\s*([^;]*)", re.IGNORECASE)
        self._of_classes = dict[tuple[str, str], str]()
        for style in tree.xpath("//style"):
            for selectors, declarations in _rules(style.text or ""):
                if (value := self._value(declarations)) is not None:
                    self._of_classes.update(dict.fromkeys(selectors, value))

    def own(self, element: Any) -> str | None:
        """Return the value in the attribute of an element, in lower case; None if there is none."""
        return self._value(element.get("style", ""))

    def of_class(self, element: Any) -> str | None:
        """Return the value that the page gives to the element's classes, in lower case; None if there is none."""
        for name in element.get("class", "").split() if self._of_classes else ():
            for selector in ((element.tag, name), ("", name)):
                if selector in self._of_classes:
                    return self._of_classes[selector]
        return None

    def of(self, element: Any) -> str:
        """Return the value for an element, in lower case; "" if there is none."""
        own = self.own(element)
        return (self.of_class(element) if own is None else own) or ""

    def _value(self, declarations: str) -> str | None:
        found = self._declared.findall(declarations)
        return found[-1].strip().lower() if found else None


def _rules(styles: str) -> Iterator[tuple[list[tuple[str, str]], str]]:
    """Yield the selectors of each rule for classes, as element ("" for any) and class, and the rule's declarations."""
    is_print = False
    for rule in _COMMENT.sub("", styles).split("}"):
        selectors, brace, declarations = rule.rpartition("{")
        # The selectors of the first rule inside another follow its brace. A second brace ends that other rule.
        around, is_first, selectors = selectors.rpartition("{")
        if is_first or not brace:
            is_print = bool(_PRINT.match(around.rpartition(";")[2].strip()))
        if not is_print:
            found = [_CLASS.fullmatch(selector.strip()) for selector in selectors.split(",")]
            yield [((each[1] or "").lower(), each[2]) for each in found if each], declarations
