"""Writes the controls of forms in OpenDocument files as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_FORM = "{urn:oasis:names:tc:opendocument:xmlns:form:1.0}"


def controls(trees: Iterable[Any]) -> dict[str, str]:
    """Return the text of each control by its id: its label and its value."""
    found = {}
    for element in (each for tree in trees for each in tree.iter(f"{_FORM}*")):
        if (id := element.get("{http://www.w3.org/XML/1998/namespace}id") or element.get(f"{_FORM}id")) is not None:
            found[id] = _text(element)
    return found


def _text(control: Any) -> str:
    label, value = (
        control.get(f"{_FORM}label", ""),
        control.get(f"{_FORM}current-value", control.get(f"{_FORM}value", "")),
    )
    match control.tag.removeprefix(_FORM):
        case "checkbox" | "radio":
            state = control.get(f"{_FORM}current-state", control.get(f"{_FORM}current-selected", ""))
            return f"{'[x]' if state in ('checked', 'true') else '[ ]'} {label}".strip()
        case "listbox":
            chosen = (o for o in control.iter(f"{_FORM}option") if o.get(f"{_FORM}current-selected") == "true")
            return ", ".join(option.get(f"{_FORM}label", "") for option in chosen)
        case "password" | "hidden":
            return ""
    return f"{label} {value}".strip()
