"""Writes equations in one line of text: those of Office files (OMML, ISO/IEC 29500-1, 22.1) and MathML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise, zip_longest
from typing import Any

M = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"

_LIMITS = {"limLow": {"lim": "sub"}, "limUpp": {"lim": "sup"}}
"""Limits are written like scripts."""
_NO_TEXT = ("annotation", "annotation-xml")
"""Elements of MathML with the equation in another language."""
_INVISIBLE = str.maketrans("", "", "\N{INVISIBLE TIMES}\N{INVISIBLE SEPARATOR}\N{INVISIBLE PLUS}")
_STRUCTURED_START = re.compile(r"\w+[/¦√]")
"""The start of a fraction without brackets, or the degree of a root."""
_STRUCTURED_END = re.compile(r"[/¦^_]\w+$")
"""The end of a fraction, an index or an exponent without brackets."""
_MAX_END = 32
"""Characters that such an end has at most; a longer one is a word."""


def linear(element: Any) -> str:
    """Return an equation as text: a/b, x^2, x_i, √(x), ∑_(i=1)^n(x)."""
    if element.tag == f"{M}t":
        return element.text or ""
    if not isinstance(element.tag, str) or not element.tag.startswith(M):
        return _side_by_side(linear(child) for child in element if isinstance(child.tag, str))
    name = element.tag.removeprefix(M)
    if name.endswith("Pr"):
        return ""
    parts = {_LIMITS.get(name, {}).get(tag, tag): child for child in element for tag in _names(child)}

    def part(key: str) -> str:
        return linear(parts[key]) if key in parts else ""

    match name:
        case "f":
            line = "¦" if _property(parts.get("fPr"), "type", "bar") == "noBar" else "/"
            return f"{grouped(part('num'))}{line}{grouped(part('den'))}"
        case "sSup" | "sSub" | "sSubSup" | "sPre" | "limLow" | "limUpp":
            scripts = _script("_", part("sub")) + _script("^", part("sup"))
            return scripts + part("e") if name == "sPre" else part("e") + scripts
        case "rad":
            return f"{part('deg')}√{grouped(part('e'), always=True)}"
        case "nary":
            sign = _property(parts.get("naryPr"), "chr", "∫")
            return f"{sign}{_script('_', part('sub'))}{_script('^', part('sup'))}{grouped(part('e'), always=True)}"
        case "d":
            begin = _property(parts.get("dPr"), "begChr", "(")
            end = _property(parts.get("dPr"), "endChr", ")")
            separator = _property(parts.get("dPr"), "sepChr", "|")
            return begin + separator.join(linear(e) for e in element.iterchildren(f"{M}e")) + end
        case "m":
            rows = ([linear(e) for e in row.iterchildren(f"{M}e")] for row in element.iterchildren(f"{M}mr"))
            return f"[{'; '.join(', '.join(row) for row in rows)}]"
        case "eqArr":
            # An ampersand is where the lines are aligned.
            return "; ".join(linear(e).replace("&", "") for e in element.iterchildren(f"{M}e"))
        case "func":
            return f"{part('fName')} {part('e')}"
        case "acc":
            return part("e") + _property(parts.get("accPr"), "chr", "\N{COMBINING CIRCUMFLEX ACCENT}")
    return _side_by_side(linear(child) for child in element if isinstance(child.tag, str))


def _side_by_side(parts: Iterable[str]) -> str:
    """Join parts of an equation, with a space where digits and letters would run together: 2 and 1/2 are not 21/2."""
    shown = [part for part in parts if part]
    text = "".join(shown[:1])
    for before, part in pairwise(shown):
        is_open = before[-1].isalnum() and (
            _STRUCTURED_END.search(before, max(0, len(before) - _MAX_END)) or _STRUCTURED_START.match(part)
        )
        text += f" {part}" if is_open and part[0].isalnum() else part
    return text


def _names(element: Any) -> list[str]:
    return [element.tag.removeprefix(M)] if isinstance(element.tag, str) else []


def _property(properties: Any, name: str, default: str) -> str:
    found = None if properties is None else properties.find(f"{M}{name}")
    return default if found is None else found.get(f"{M}val", "")


def _script(sign: str, text: str) -> str:
    return sign + grouped(text) if text else ""


def grouped(text: str, *, always: bool = False) -> str:
    """Return a part of an equation, in brackets if it is more than a number or a name."""
    return f"({text})" if always or (len(text) > 1 and not text.isalnum()) else text


def linear_mathml(element: Any) -> str:
    """Return an equation in MathML as text, as `linear` does."""
    if not isinstance(element.tag, str) or element.tag.endswith(_NO_TEXT):
        return ""
    name = element.tag.rpartition("}")[2]
    parts = [linear_mathml(child) for child in element]
    match name, parts:
        case "mfrac", [above, below]:
            line = "¦" if element.get("linethickness", "").startswith("0") else "/"
            return f"{grouped(above)}{line}{grouped(below)}"
        case "mfenced", _:
            return _fenced(element, parts)
        case "mmultiscripts", [base, *_]:
            return _with_scripts(element, base, parts)
        case (("msup" | "mover"), [base, script]):
            return base + _script("^", script)
        case (("msub" | "munder"), [base, script]):
            return base + _script("_", script)
        case (("msubsup" | "munderover"), [base, low, high]):
            return base + _script("_", low) + _script("^", high)
        case "msqrt", _:
            return f"√{grouped(_side_by_side(parts), always=True)}"
        case "mroot", [base, degree]:
            return f"{degree}√{grouped(base, always=True)}"
        case "mtr", _:
            return ", ".join(parts)
        case "mtable", _:
            return f"[{'; '.join(parts)}]"
        case "mtext", _:
            return element.text or ""
    return "".join((element.text or "").split()).translate(_INVISIBLE) + _side_by_side(parts)


def _fenced(element: Any, parts: Sequence[str]) -> str:
    """Return a list in brackets, each item but the last with its separator."""
    separators = "".join(element.get("separators", ",").split())
    signs = [separators[min(at, len(separators) - 1)] for at in range(len(parts) - 1)] if separators else []
    items = [part + sign for part, sign in zip_longest(parts, signs, fillvalue="")]
    inside = "".join(items) if separators else _side_by_side(items)
    return f"{element.get('open', '(')}{inside}{element.get('close', ')')}"


def _with_scripts(element: Any, base: str, parts: Sequence[str]) -> str:
    """Return a base with its scripts, which come in pairs: an index and an exponent. Those after `mprescripts` precede the base."""
    names = [child.tag.rpartition("}")[2] if isinstance(child.tag, str) else "" for child in element]
    middle = names.index("mprescripts") if "mprescripts" in names else len(names)

    def scripts(place: int, end: int) -> str:
        return "".join(_script("^" if (at - place) % 2 else "_", parts[at]) for at in range(place, end))

    return scripts(middle + 1, len(parts)) + base + scripts(1, middle)
