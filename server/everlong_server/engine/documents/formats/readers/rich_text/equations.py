"""Writes the parts of equations in RTF (version 1.9.1, mathematics) in one line, as `shared.equations` does."""

from __future__ import annotations

from typing import Protocol

from everlong_server.engine.documents.formats.readers.shared.equations import grouped

PARTS = {"mnum", "mden", "msub", "msup", "mdeg", "mrad", "md", "mbegChr", "mendChr", "mnary", "me"}
"""Destinations whose text is written in another form than it has."""
PROPERTIES = {
    "mctrlPr", "mlimLoc", "mgrow", "mdegHide", "msubHide", "msupHide", "mtype", "mshp", "mpos", "mvertJc", "mmaxDist", "mobjDist", "mrSpRule",
    "mrSp", "mbaseJc", "mcount", "mmcJc", "mcGp", "mcGpRule", "mcSp", "mplcHide", "mopEmu", "mnoBreak", "mdiff", "maln", "malnScr", "mshow",
    "mtransp", "mzeroAsc", "mzeroDesc", "mzeroWid", "mhideTop", "mhideBot", "mhideLeft", "mhideRight", "mstrikeBLTR", "mstrikeH",
    "mstrikeTLBR", "mstrikeV", "msepChr", "margSz",
}  # fmt: skip
"""Destinations whose text is no part of the equation, such as "undOvr"."""


class Part(Protocol):
    """A destination. `details`: its brackets, or the degree of a root, by the destination that they are in."""

    kind: str
    parts: list[str]
    details: dict[str, str]

    def text(self) -> str:
        """Return the text of the destination."""


def write_part(part: Part, outer: Part) -> None:
    """Add a part that has ended to the destination that it is in."""
    text = part.text().strip()
    match part.kind:
        case "mnum":
            outer.parts.append(f"{grouped(text)}/")
        case "mden":
            outer.parts.append(grouped(text))
        case "msub" | "msup":
            outer.parts.append(f"{'_' if part.kind == 'msub' else '^'}{grouped(text)}" if text else "")
        case "me" if outer.kind == "mnary":
            outer.parts.append(f"({text})")
        case "me" | "mnary":
            outer.parts.append(text)
        case "mrad":
            outer.parts.append(f"{part.details.get('mdeg', '')}√({text})")
        case "md":
            outer.parts.append(f"{part.details.get('mbegChr', '(')}{text}{part.details.get('mendChr', ')')}")
        case kind:
            outer.details[kind] = text
