"""What the styles and the properties of a Word file say about its paragraphs and runs."""

from __future__ import annotations

from typing import Any

from everlong_server.engine.documents.formats.readers.openxml.package import W

_SUPERSCRIPT = f"{W}rPr/{W}vertAlign"


def is_on(switch: Any) -> bool:
    """Whether a property is there and switched on. `switch`: its element, or None."""
    return switch is not None and switch.get(f"{W}val", "1") not in ("0", "false", "off")


def is_hidden(run: Any) -> bool:
    """Whether programs do not show the text of a run."""
    return is_on(run.find(f"{W}rPr/{W}vanish"))


def is_initial(block: Any) -> bool:
    """Whether a paragraph is the large first letter of the next one."""
    frame = block.find(f"{W}pPr/{W}framePr")
    return frame is not None and frame.get(f"{W}dropCap", "none") != "none"


def is_joined(block: Any) -> bool:
    """Whether a paragraph goes on in the next one, as somebody deleted its end while changes were tracked."""
    properties, after = block.find(f"{W}pPr"), block.getnext()
    return (
        properties is not None
        and properties.find(f"{W}rPr/{W}del") is not None
        and properties.find(f"{W}sectPr") is None
        and after is not None
        and after.tag == f"{W}p"
    )


class Styles:
    """The styles of a file by their id."""

    def __init__(self, tree: Any) -> None:
        """`tree`: of the part with the styles, or None."""
        found = () if tree is None else list(tree.iter(f"{W}style"))
        self._headings = {style.get(f"{W}styleId", "") for style in found if _is_of_headings(style)}
        self._struck = {style.get(f"{W}styleId", "") for style in found if _strikes(style)}
        self._raised = {style.get(f"{W}styleId", "") for style in found if _is_superscript(style)}

    def is_heading(self, paragraph: Any) -> bool:
        """Whether a paragraph is a heading or a title."""
        style = paragraph.find(f"{W}pPr/{W}pStyle")
        return style is not None and style.get(f"{W}val") in self._headings

    def is_raised(self, run: Any) -> bool:
        """Whether a run is a superscript, but not the mark of a note."""
        if any(run.find(f"{W}{kind}Reference") is not None for kind in ("footnote", "endnote")):
            return False
        style = run.find(f"{W}rPr/{W}rStyle")
        is_of_style = style is not None and style.get(f"{W}val") in self._raised
        return _is_superscript(run) or (is_of_style and run.find(_SUPERSCRIPT) is None)

    def is_struck(self, run: Any) -> bool:
        """Whether a run is struck through."""
        own, style = _strikes(run), run.find(f"{W}rPr/{W}rStyle")
        return (style is not None and style.get(f"{W}val") in self._struck) if own is None else own


def _strikes(element: Any) -> bool | None:
    """Whether a run or a style is struck through, by one line or two; None if its properties do not say so."""
    lines = [line for kind in ("strike", "dstrike") if (line := element.find(f"{W}rPr/{W}{kind}")) is not None]
    return any(map(is_on, lines)) if lines else None


def _is_superscript(element: Any) -> bool:
    found = element.find(_SUPERSCRIPT)
    return found is not None and found.get(f"{W}val") == "superscript"


def _is_of_headings(style: Any) -> bool:
    name = style.find(f"{W}name")
    return name is not None and name.get(f"{W}val", "").lower().startswith(("heading", "title"))
