"""What the styles and the masters of an OpenDocument file say about its texts and slides."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_NS = "urn:oasis:names:tc:opendocument:xmlns:"
_DRAW, _PRESENTATION, _STYLE = (f"{{{_NS}{name}:1.0}}" for name in ("drawing", "presentation", "style"))
_SUPERSCRIPT = re.compile(r"super|[1-9]")
"""A position of letters above their line: the word, or a share of the font's height."""


def struck_styles(trees: Iterable[Any]) -> set[str]:
    """Return the names of the styles of text that is struck through. The arguments: see `_styles`."""
    return _styles(trees, "text-line-through-style", lambda line: line != "none")


def raised_styles(trees: Iterable[Any]) -> set[str]:
    """Return the names of the styles of superscripts. The arguments: see `_styles`."""
    return _styles(trees, "text-position", lambda position: _SUPERSCRIPT.match(position) is not None)


def _styles(trees: Iterable[Any], name: str, accepts: Callable[[str], bool]) -> set[str]:
    """Return the names of the styles whose property `name` has an accepted value, also of those that inherit it.

    `trees`: with styles. Those of the file come before those that are based on them.
    """
    found = set[str]()
    for style in (each for tree in trees for each in tree.iter(f"{_STYLE}style")):
        properties = style.find(f"{_STYLE}text-properties")
        value = None if properties is None else properties.get(f"{_STYLE}{name}")
        if style.get(f"{_STYLE}parent-style-name") in found if value is None else accepts(value):
            found.add(style.get(f"{_STYLE}name", ""))
    return found


class Masters:
    """What slides show besides their own shapes, each once: footers that somebody typed, and the shapes of their masters."""

    def __init__(self, trees: Iterable[Any]) -> None:
        """`trees`: of the parts with styles and slides."""
        trees = list(trees)
        self._footers = _footer_texts(trees)
        self._masters = {
            each.get(f"{_STYLE}name", ""): each for tree in trees for each in tree.iter(f"{_STYLE}master-page")
        }
        self._hidden = {
            (kind, style.getparent().get(f"{_STYLE}name", ""))
            for tree in trees
            for style in tree.iter(f"{_STYLE}drawing-page-properties")
            for kind, name in _SWITCHES.items()
            if style.get(f"{_PRESENTATION}{name}") == "false"
        }
        """Kinds of things, and the styles of slides that do not show them."""

    def footers(self, slide: Any) -> Iterator[str]:
        """Yield the footer and the date that somebody typed for a slide, unless a slide before has the same."""
        style = slide.get(f"{_DRAW}style-name", "")
        for kind in ("footer", "date-time"):
            name = slide.get(f"{_PRESENTATION}use-{kind}-name", "")
            if (kind, style) not in self._hidden and (text := self._footers.pop((kind, name), "")):
                yield text

    def shapes(self, slide: Any) -> list[Any]:
        """Return the shapes of the master of a slide, unless a slide before has the same. Those of placeholders are none."""
        if ("shapes", slide.get(f"{_DRAW}style-name", "")) in self._hidden:
            return []
        found = self._masters.pop(slide.get(f"{_DRAW}master-page-name", ""), ())
        return [each for each in found if str(each.tag).startswith(_DRAW) and not each.get(f"{_PRESENTATION}class")]


_SWITCHES = {"footer": "display-footer", "date-time": "display-date-time", "shapes": "background-objects-visible"}


def _footer_texts(trees: Iterable[Any]) -> dict[tuple[str, str], str]:
    """Return the footers and dates that somebody typed for slides, by their kind and name."""
    return {
        (kind, found.get(f"{_PRESENTATION}name", "")): " ".join("".join(found.itertext()).split())
        for tree in trees
        for kind in ("footer", "date-time")
        for found in tree.iter(f"{_PRESENTATION}{kind}-decl")
        if found.get(f"{_PRESENTATION}source", "fixed") == "fixed"
    }
