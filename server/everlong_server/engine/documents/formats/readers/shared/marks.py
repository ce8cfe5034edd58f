"""Marks superscripts, struck text and links in the text of a paragraph, and writes them out when the paragraph is whole.

Programs divide one superscript or link into several runs. Only the whole paragraph shows what belongs together.
"""

from __future__ import annotations

import re

from everlong_server.engine.documents.formats.readers.shared.addresses import labelled
from everlong_server.engine.documents.formats.readers.shared.scripts import written_superscript

_UP, _DOWN, _LINK, _LABEL, LINK_END, _STRUCK, _KEPT = "\ufdd0\ufdd1\ufdd2\ufdd3\ufdd4\ufdd5\ufdd6"
"""Code points that are no characters, so texts do not have them."""
_SUPERSCRIPT = re.compile(f"{_UP}([^{_UP}{_DOWN}]*){_DOWN}")
_LINKED = re.compile(
    f"{_LINK}([^{_LINK}{_LABEL}{LINK_END}]*){_LABEL}([^{_LINK}{_LABEL}{LINK_END}]*)(?:{LINK_END}|$|(?={_LINK}))"
)
_STRUCK_TEXT = re.compile(f"{_STRUCK}(\\s*)([^{_STRUCK}{_KEPT}]*?)(\\s*){_KEPT}")
_MARKS = re.compile(f"[{_UP}{_DOWN}{_LINK}{_LABEL}{LINK_END}{_STRUCK}{_KEPT}]")


def superscript(text: str) -> str:
    """Return the text, marked as raised."""
    return f"{_UP}{text}{_DOWN}" if text else ""


def struck(text: str) -> str:
    """Return the text, marked as struck through."""
    inner = text.replace(_STRUCK, "").replace(_KEPT, "")
    return f"{_STRUCK}{inner}{_KEPT}" if inner else ""


def link_begin(address: str) -> str:
    """Return the mark of the beginning of a link; "" without an address. `LINK_END` is that of its end."""
    return f"{_LINK}{address}{_LABEL}" if address else ""


def link(label: str, address: str) -> str:
    """Return the label of a link, marked with its address if it has one."""
    return f"{link_begin(address)}{label}{LINK_END}" if address else label


def written_out(text: str) -> str:
    """Return the text of a paragraph with its superscripts and the addresses of its links as text, and `~~` around struck text."""
    if not _MARKS.search(text):
        return text
    whole = text.replace(_KEPT + _STRUCK, "").replace(_DOWN + _UP, "")
    text = _SUPERSCRIPT.sub(lambda part: written_superscript(_before(whole, part.start()), part[1]), whole)
    text = _STRUCK_TEXT.sub(_written_strike, text)
    return _MARKS.sub("", _addressed(text))


def _written_strike(found: re.Match[str]) -> str:
    """Return struck text between `~~`, which must stand at its words."""
    return f"{found[1]}~~{found[2]}~~{found[3]}" if _MARKS.sub("", found[2]) else found[1] + found[3]


def _before(text: str, place: int) -> str:
    """Return the character before a place in the text; "" if there is none. Skips marks and the addresses of links."""
    while place > 0 and _MARKS.match(text, place - 1):
        place = text.rfind(_LINK, 0, place) if text[place - 1] == _LABEL else place - 1
    return text[place - 1 : place] if place > 0 else ""


def _addressed(text: str) -> str:
    """Return the text with the address of each link after its label. Links that follow each other are one if they agree."""
    parts: list[str] = []
    place, label, address = 0, "", ""
    for found in _LINKED.finditer(text):
        between = text[place : found.start()]
        if found[1] == address and not between.strip():
            label += between + found[2]
        else:
            parts += labelled(label, address), between
            address, label = found[1], found[2]
        place = found.end()
    return "".join([*parts, labelled(label, address), text[place:]])
