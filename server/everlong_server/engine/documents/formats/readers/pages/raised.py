"""Finds the superscripts that a page makes with styles instead of `sup`, as Google Docs does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_ALIGNED = re.compile(r"(?:^|;)\s*vertical-align\s*:\s*([\w-]+)", re.IGNORECASE)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_CLASS = re.compile(r"(?:span)?\.([\w-]+)")


def mark_superscripts(tree: Any) -> None:
    """Make a `sup` of each `span` that a style raises: by its own attribute, or by a class of the page's styles."""
    raised = {name for style in tree.xpath("//style") for name in _raised_classes(style.text or "")}
    for span in tree.xpath("//span[@style or @class]"):
        own = _ALIGNED.search(span.get("style", ""))
        if own[1].lower() == "super" if own else not raised.isdisjoint(span.get("class", "").split()):
            span.tag = "sup"


def _raised_classes(styles: str) -> Iterator[str]:
    """Yield the names of the classes that are raised."""
    for rule in _COMMENT.sub("", styles).split("}"):
        selectors, _, properties = rule.rpartition("{")
        aligned = _ALIGNED.search(properties)
        if aligned and aligned[1].lower() == "super":
            # The selectors of a rule inside another follow its brace.
            for selector in selectors.rpartition("{")[2].split(","):
                if found := _CLASS.fullmatch(selector.strip()):
                    yield found[1]
