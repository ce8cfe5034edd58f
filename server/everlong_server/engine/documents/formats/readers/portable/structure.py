"""Reads the structure of a tagged PDF: the descriptions of its figures."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

from pypdfium2 import raw

_MAX_ELEMENTS = 10_000
"""Elements of a page's structure that are looked at."""
_DESCRIBED = ("Figure", "Formula")


def descriptions(page: Any) -> Iterator[str]:
    """Yield the descriptions (alternative texts) of a page's figures and formulas."""
    tree = raw.FPDF_StructTree_GetForPage(page)
    if not tree:
        return
    try:
        count = raw.FPDF_StructTree_CountChildren(tree)
        waiting = [raw.FPDF_StructTree_GetChildAtIndex(tree, index) for index in reversed(range(count))]
        seen = 0
        while waiting and seen < _MAX_ELEMENTS:
            element = waiting.pop()
            seen += 1
            if not element:
                continue
            if _string(raw.FPDF_StructElement_GetType, element) in _DESCRIBED and (
                text := " ".join(_string(raw.FPDF_StructElement_GetAltText, element).split())
            ):
                yield f"[{text}]"
            count = raw.FPDF_StructElement_CountChildren(element)
            waiting += [raw.FPDF_StructElement_GetChildAtIndex(element, index) for index in reversed(range(count))]
    finally:
        raw.FPDF_StructTree_Close(tree)


def _string(get: Callable[..., int], element: Any) -> str:
    size = get(element, None, 0)
    buffer = ctypes.create_string_buffer(size)
    get(element, buffer, size)
    return buffer.raw.decode("utf-16-le", "replace").rstrip("\0")
