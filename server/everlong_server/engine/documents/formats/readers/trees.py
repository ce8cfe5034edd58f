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


def parse(data: bytes) -> tuple[Any, str | None]:
    """Return the tree of an XML part, None if nothing of it can be read, and what was wrong with it, if something was."""
    try:
        return etree.fromstring(data, _parser()), None
    except etree.XMLSyntaxError as error:
        fault = str(error)
    mended = repaired(data)
    try:
        return etree.fromstring(mended, _parser()), "it has characters that XML does not allow; they were repaired"
    except etree.XMLSyntaxError:
        tree = etree.fromstring(mended, _parser(recover=True)) if mended.strip() else None
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


def _parser(*, recover: bool = False) -> Any:
    return etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=True, recover=recover, remove_comments=True
    )
