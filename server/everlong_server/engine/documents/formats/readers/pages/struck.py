"""Writes `~~` around the text that a page shows struck through, such as former prices and tasks that are done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lxml import etree

from everlong_server.engine.documents.formats.readers.pages.styles import Styles
from everlong_server.engine.documents.formats.readers.pages.tables import INLINE

_MARK = "struck-through"
"""An attribute of elements that a style strikes through."""
_STRUCK = f"//del | //s | //strike | //*[@{_MARK}]"


def mark_strikes(tree: Any) -> None:
    """Mark the elements that a style strikes through: by their own attribute, or by a class of the page's styles."""
    styles = Styles(tree, "text-decoration", "text-decoration-line")
    for element in tree.xpath("//body//*[@style or @class]"):
        if "line-through" in styles.of(element):
            element.set(_MARK, "")


def write_out_strikes(tree: Any) -> None:
    """Write `~~` around struck text. In elements with several lines, such as whole lists, around the text of each line."""
    done = set[Any]()
    for element in tree.xpath(_STRUCK):
        if done.isdisjoint(element.iterancestors()):
            done.add(element)
            for line in list(_lines(element)):
                _surround(line)


def _lines(element: Any) -> Iterator[list[tuple[Any, str]]]:
    """Yield the texts of each line in an element: the nodes, and whether a text is their `text` or their `tail`."""
    line: list[tuple[Any, str]] = []
    for event, node in etree.iterwalk(element, events=("start", "end", "comment", "pi")):
        if event == "end" and node is element:
            break
        if event in ("start", "end") and node.tag not in INLINE and node.tag != "br":
            yield line
            line = []
        place = "text" if event == "start" else "tail"
        if (getattr(node, place) or "").strip():
            line.append((node, place))
    yield line


def _surround(line: list[tuple[Any, str]]) -> None:
    """Write `~~` before the first word of a line and after its last one."""
    if line:
        first, last = line[0], line[-1]
        text = getattr(*first)
        setattr(*first, f"{text[: len(text) - len(text.lstrip())]}~~{text.lstrip()}")
        text = getattr(*last)
        setattr(*last, f"{text.rstrip()}~~{text[len(text.rstrip()) :]}")
