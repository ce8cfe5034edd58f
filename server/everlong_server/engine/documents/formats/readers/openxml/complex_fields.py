"""Pairs the marks of complex fields in Word files. A mark without its partner would hide the text after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everlong_server.engine.documents.formats.readers.openxml.package import W

_MARK, _KIND = f"{W}fldChar", f"{W}fldCharType"
_STORIES = tuple(W + name for name in ("txbxContent", "footnote", "endnote", "comment"))
"""Elements with a text of their own: a field does not end outside of the one that it begins in."""


def paired_marks(tree: Any, is_skipped: Callable[[Any], bool]) -> set[Any]:
    """Return the marks of the fields in `tree` that have both a beginning and an end.

    `is_skipped`: tells elements that are not read, such as deletions. Their marks have no partners.
    """
    paired = set[Any]()
    open_fields: dict[Any, list[list[Any]]] = {}
    """The marks so far of each field that has begun, the innermost last, by the element with the text."""
    for mark in tree.iter(_MARK):
        outer = list(mark.iterancestors())
        if any(map(is_skipped, outer)):
            continue
        story = next((element for element in outer if element.tag in _STORIES), tree)
        fields = open_fields.setdefault(story, [])
        kind = mark.get(_KIND)
        if kind == "begin":
            fields.append([mark])
        elif fields:
            fields[-1].append(mark)
            if kind == "end":
                paired.update(fields.pop())
    return paired
