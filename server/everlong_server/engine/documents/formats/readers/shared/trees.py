"""Parses the XML parts of files, also those with characters that XML does not allow, as programs write them by mistake."""

from __future__ import annotations

import html
import re
from typing import Any

from lxml import etree

_REFERENCE = re.compile(rb"&(?!(?:amp|lt|gt|quot|apos|#\d{1,7}|#x[0-9a-fA-F]{1,6});)(\w{1,32};)?")
"""An ampersand that begins no reference of XML, and the name after it if it looks like one of HTML."""
_CONTROL = re.compile(
    rb"[\x00-\x08\x0b\x0c\x0e-\x1f]|&#(?:0*(?:[0-8]|1[124-9]|2\d|3[01])|[xX]0*(?:[0-8bBcCeEfF]|1[0-9a-fA-F]));"
)
_WITH_ENTITIES = (b"<!ENTITY", b"<![CDATA[", b"\xff\xfe", b"\xfe\xff")
"""What a part may contain or begin with whose ampersands cannot be told from faults."""
OPTIONS: dict[str, Any] = {
    "resolve_entities": False, "no_network": True, "load_dtd": False, "huge_tree": True, "remove_comments": True, "remove_pis": True,
}  # fmt: skip
"""How XML is parsed: nothing is fetched, and nothing parts the text of an element but its elements."""
_NESTED = re.compile("[&<]")
_MAX_EXPANDED = 8 << 20
"""Characters that the entities of a part may add to it."""


def parse(data: bytes) -> tuple[Any, str | None]:
    """Return the tree of an XML part, None if nothing of it can be read, and what was wrong with it, if something was."""
    try:
        return _tree(data), None
    except etree.XMLSyntaxError as error:
        fault = str(error)
    mended = repaired(data)
    try:
        return _tree(mended), "it has characters that XML does not allow; they were repaired"
    except etree.XMLSyntaxError:
        tree = _tree(mended, recover=True) if mended.strip() else None
    lost = "was left out" if tree is None else "may have lost text"
    return tree, f"it is damaged and {lost} ({fault})"


def repaired(data: bytes) -> bytes:
    """Return XML without control characters, with names of HTML's characters replaced and other ampersands as characters."""
    data = data if data.startswith(_WITH_ENTITIES[2:]) else _CONTROL.sub(b"", data).lstrip()
    return data if any(each in data for each in _WITH_ENTITIES[:2]) else _REFERENCE.sub(_reference, data)


def _reference(match: re.Match[bytes]) -> bytes:
    name = (match[1] or b"").decode("ascii", "replace")
    known = html.unescape(f"&{name}") if name else ""
    if known and known != f"&{name}" and not known.endswith(";"):
        return known.encode("ascii", "xmlcharrefreplace")
    return b"&amp;" + (match[1] or b"")


def _tree(data: bytes, *, recover: bool = False) -> Any:
    # Comments and instructions would part the text around them, and readers would miss what follows.
    tree = etree.fromstring(data, etree.XMLParser(**OPTIONS, recover=recover))
    if tree is not None and b"<!ENTITY" in data:
        _write_out_entities(tree)
    return tree


def _write_out_entities(tree: Any) -> None:
    """Replace the references to entities that the part defines. Readers would miss them and the text after them."""
    declared = tree.getroottree().docinfo.internalDTD
    values = {each.name: each.content or "" for each in (() if declared is None else declared.entities())}
    room = _MAX_EXPANDED
    following: dict[tuple[Any, Any], list[str]] = {}
    """The texts after an element or, if there is none before them, at the beginning of their parent."""
    for reference in list(tree.iter(etree.Entity)):
        value = values.get(reference.name, "")
        text = value if len(value) <= room and not _NESTED.search(value) else ""
        room -= len(text)
        parent, before = reference.getparent(), reference.getprevious()
        following.setdefault((parent, before), []).extend((text, reference.tail or ""))
        parent.remove(reference)
    for (parent, before), texts in following.items():
        _append_text(parent, before, "".join(texts))


def remove(element: Any) -> None:
    """Remove an element but keep the text after it, which lxml's own `remove` would drop."""
    parent, before, text = element.getparent(), element.getprevious(), element.tail or ""
    parent.remove(element)
    _append_text(parent, before, text)


def _append_text(parent: Any, before: Any, text: str) -> None:
    if before is not None:
        before.tail = (before.tail or "") + text
    else:
        parent.text = (parent.text or "") + text
