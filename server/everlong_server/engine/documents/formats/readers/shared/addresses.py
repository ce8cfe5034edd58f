"""Tells which links of a document lead out of it, and writes their addresses after their labels."""

from __future__ import annotations

import re

_EXTERNAL = re.compile(r"\s*(?:(https?://\S.*)|mailto:([^?]*))", re.IGNORECASE | re.DOTALL)
_SCHEME = re.compile(r"^(?:https?://|mailto:)", re.IGNORECASE)
_FIELD = re.compile(r'\s*HYPERLINK\s+(?:"([^"]*)"|([^\s"\\]\S*))(?:.*?\\l\s+"([^"]*)")?', re.IGNORECASE | re.DOTALL)
"""The instruction of a field that is a link: its address, and a place in the page of that address."""
_MAX_LENGTH = 2000
"""Characters of an address. Longer ones are data."""


def external(target: str) -> str:
    """Return the address to write for the target of a link; "" for a place in the document, a file and the like."""
    found = _EXTERNAL.match(target)
    address = "" if found is None else (found[1] or found[2] or "").strip()
    return address if len(address) <= _MAX_LENGTH else ""


def field_address(instruction: str) -> str:
    """Return the address of a field with the instruction HYPERLINK; "" for other fields and places in the document."""
    found = _FIELD.match(instruction)
    if found is None:
        return ""
    address = external(found[1] or found[2] or "")
    return f"{address}#{found[3]}" if address and found[3] and "#" not in address else address


def labelled(label: str, address: str) -> str:
    """Return the label of a link with the address after it, unless the label shows it."""
    words = label.rstrip()
    if not words or not address or _bare(address) in _bare(words):
        return label
    return f"{words} ({address}){label[len(words) :]}"


def _bare(address: str) -> str:
    return _SCHEME.sub("", address.strip()).rstrip("/").lower()
