"""Writes `~~` around the text that a page shows struck through, such as former prices and tasks that are done."""

from __future__ import annotations

from typing import Any

from everlong_server.engine.documents.formats.readers.pages.tables import INLINE

_STRUCK = "//del | //s | //strike | //*[contains(translate(@style, 'LINETHROUG', 'linethroug'), 'line-through')]"


def write_out_strikes(tree: Any) -> None:
    """Write `~~` around struck text. In elements with several lines, such as whole lists, around the text of each line."""
    done = set[Any]()
    for element in tree.xpath(_STRUCK):
        for each in _lines(element):
            if each not in done and done.isdisjoint(each.iterancestors()) and each.text_content().strip():
                done.add(each)
                _surround(each)


def _lines(element: Any) -> list[Any]:
    """Return the element, or else the innermost elements in it that begin lines."""
    blocks = [
        each
        for each in element.iterdescendants()
        if isinstance(each.tag, str) and each.tag not in INLINE and each.text_content().strip()
    ]
    outer = {block.getparent() for block in blocks}
    return [each for each in blocks if each not in outer] if blocks else [element]


def _surround(element: Any) -> None:
    """Write `~~` before the first word of an element and after its last one."""
    text = element.text or ""
    element.text = f"{text[: len(text) - len(text.lstrip())]}~~{text.lstrip()}"
    if len(element):
        tail = element[-1].tail or ""
        element[-1].tail = f"{tail.rstrip()}~~{tail[len(tail.rstrip()) :]}"
    else:
        text = element.text
        element.text = f"{text.rstrip()}~~{text[len(text.rstrip()) :]}"
