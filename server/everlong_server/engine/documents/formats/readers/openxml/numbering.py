"""Counts the paragraphs of numbered lists in Word files (ISO/IEC 29500-1, 17.9)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from everlong_server.engine.documents.formats.readers.openxml.package import W
from everlong_server.engine.documents.formats.readers.openxml.styles import is_on
from everlong_server.engine.documents.formats.readers.shared.numerals import count, numeral

_MAX_LEVELS = 9


@dataclass(frozen=True, slots=True)
class _Level:
    """How a level is numbered. `text`: such as "%1.%2", with the numbers of the levels. `style`: of the paragraphs that it numbers.

    `is_legal`: whether all numbers are in digits. `restarts`: number of upper levels after which the level begins again; None: all.
    """

    start: int
    form: str
    text: str
    style: str
    is_legal: bool = False
    restarts: int | None = None


class Numbering:
    """The lists of a file, and how far each has been counted."""

    def __init__(self, numbering: Any, styles: Any) -> None:
        """`numbering`, `styles`: the trees of these parts, or None."""
        abstract = {} if numbering is None else _definitions(numbering)
        self._lists: dict[str, tuple[str, dict[int, _Level]]] = {}
        self._restarts: dict[str, set[int]] = {}
        for each in () if numbering is None else numbering.iterchildren(f"{W}num"):
            base = each.find(f"{W}abstractNumId")
            key = "" if base is None else base.get(f"{W}val", "")
            id = each.get(f"{W}numId", "")
            levels = dict(abstract.get(key, {}))
            for override in each.iterchildren(f"{W}lvlOverride"):
                levels |= dict(_levels(override))
                if (start := override.find(f"{W}startOverride")) is not None:
                    level = _number(override.get(f"{W}ilvl"))
                    self._restarts.setdefault(id, set()).add(level)
                    if level in levels:
                        levels[level] = replace(levels[level], start=_value(start))
            self._lists[id] = key, levels
        self._counts: dict[str, dict[int, int]] = {}
        self._styles = {} if styles is None else {
            style.get(f"{W}styleId", ""): style for style in styles.iterchildren(f"{W}style")
        }  # fmt: skip

    def of(self, paragraph: Any) -> str:
        """Count a paragraph, and return its number or bullet; "" if it has none."""
        id, level = self._place(paragraph)
        key, levels = self._lists.get(id, ("", {}))
        if level not in levels:
            return ""
        counts = self._counts.setdefault(key, {})
        for restarted in self._restarts.pop(id, ()):
            counts.pop(restarted, None)
        kept = {at: number for at, number in counts.items() if at > level and not _begins_again(levels.get(at), level)}
        count(counts, level, levels[level].start)
        counts |= kept
        form, text = levels[level].form, levels[level].text
        if form == "bullet":
            return "•"
        for upper in sorted(each for each in levels if each <= level):
            number = counts.setdefault(upper, levels[upper].start)
            is_digits = levels[level].is_legal and levels[upper].form != "none"
            text = text.replace(f"%{upper + 1}", numeral(number, "decimal" if is_digits else levels[upper].form))
        return text.strip()

    def _place(self, paragraph: Any) -> tuple[str, int]:
        """Return the list of a paragraph and the level in it, which the paragraph has itself or by its style."""
        properties = paragraph.find(f"{W}pPr")
        if properties is None:
            return "", 0
        style = properties.find(f"{W}pStyle")
        name = "" if style is None else style.get(f"{W}val", "")
        chain = list(self._chain(name))
        for place, holder in [("", properties), *chain]:
            if (found := holder.find(f"{W}numPr")) is None or (id := found.find(f"{W}numId")) is None:
                continue
            number, level = id.get(f"{W}val", ""), found.find(f"{W}ilvl")
            if level is not None:
                return number, _value(level)
            named = {at: each.style for at, each in self._lists.get(number, ("", {}))[1].items() if each.style}
            return number, next((at for at, style in named.items() if style in (place, name)), 0)
        return "", 0

    def _chain(self, name: str) -> Iterator[tuple[str, Any]]:
        """Yield the names and the properties of a style and of those that it is based on."""
        seen = set[str]()
        while name in self._styles and name not in seen:
            seen.add(name)
            style = self._styles[name]
            if (properties := style.find(f"{W}pPr")) is not None:
                yield name, properties
            base = style.find(f"{W}basedOn")
            name = "" if base is None else base.get(f"{W}val", "")


def _definitions(numbering: Any) -> dict[str, dict[int, _Level]]:
    """Return the levels of each definition of a list. A definition may refer to the definition of a list style (`numStyleLink`)."""
    found = {each.get(f"{W}abstractNumId", ""): each for each in numbering.iterchildren(f"{W}abstractNum")}
    styled = {link.get(f"{W}val"): each for each in found.values() if (link := each.find(f"{W}styleLink")) is not None}
    made = {}
    for id, each in found.items():
        link = each.find(f"{W}numStyleLink")
        made[id] = dict(_levels(each if link is None else styled.get(link.get(f"{W}val"), each)))
    return made


def _begins_again(level: _Level | None, counted: int) -> bool:
    """Whether a deeper level begins again after a paragraph of the level `counted`."""
    return level is None or level.restarts is None or counted < level.restarts


def _levels(parent: Any) -> Iterator[tuple[int, _Level]]:
    for level in parent.iterchildren(f"{W}lvl"):
        named = {name: level.find(f"{W}{name}") for name in ("start", "numFmt", "lvlText", "pStyle")}
        form, text, style = (
            "" if named[name] is None else named[name].get(f"{W}val", "") for name in ("numFmt", "lvlText", "pStyle")
        )
        start = 0 if named["start"] is None else _value(named["start"])
        restart = level.find(f"{W}lvlRestart")
        restarts = None if restart is None else _value(restart)
        yield _number(level.get(f"{W}ilvl")), _Level(start, form, text, style, is_on(level.find(f"{W}isLgl")), restarts)


def _value(element: Any) -> int:
    return _number(element.get(f"{W}val"))


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < _MAX_LEVELS else 0
