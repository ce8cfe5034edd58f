"""Draw the pictures of concepts.md: `python docs/pictures.py`. A test compares them with the committed files."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent / "pictures"
INK, PALE, DEEP, WARM = "#37474f", "#eceff1", "#5c6bc0", "#ffb74d"

KV_BYTES_PER_TOKEN = 2 * 30 * 3 * 64 * 4
"""Of the default backbone: keys and values × layers × heads × width of a head × 4 bytes."""
STATES = {"infinite": 35_389_448, "armt": 2_995_200, "rmt": 36_864, "window": 8_456}
"""Bytes of a session's state with each memory; operations.md has the same figures, checked against the code."""


def svg(width: int, height: int, parts: Iterator[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="14" fill="{INK}">\n<rect width="{width}" height="{height}" fill="white"/>\n'
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>\n{body}\n</svg>\n'
    )


def box(x: float, y: float, w: float, h: float, label: str = "", fill: str = PALE, ink: str = INK) -> str:
    text = f'<text x="{x + w / 2:g}" y="{y + h / 2 + 5:g}" text-anchor="middle" fill="{ink}">{label}</text>'
    return f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="4" fill="{fill}" stroke="{INK}"/>' + text


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{INK}" marker-end="url(#head)"/>'


def label(x: float, y: float, text: str, anchor: str = "start", size: int = 14) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}">{text}</text>'


def reading() -> Iterator[str]:
    """Segments are read into a state of fixed size, one after the other, except the last, open one."""
    for n in range(4):
        x = 20 + n * 170
        yield box(x, 20, 130, 40, f"segment {n + 1}" if n < 3 else "open segment", PALE if n < 3 else WARM)
        if n < 3:
            yield arrow(x + 65, 60, x + 65, 108)
            yield box(x + 15, 112, 100, 40, f"state {n + 1}", DEEP, "white")
            if n < 2:
                yield arrow(x + 115, 132, x + 183, 132)
    yield arrow(475, 132, 545, 132)
    yield arrow(595, 60, 595, 108)
    yield box(548, 112, 100, 40, "answer")
    yield label(20, 190, "All states have the same size. The open segment is kept as at most S − 1 token ids.")


def fork() -> Iterator[str]:
    """A document is read once; each session starts from a copy of its state."""
    yield box(20, 90, 130, 40, "document", PALE)
    yield arrow(150, 110, 218, 110)
    yield box(222, 90, 120, 40, "its state", DEEP, "white")
    for n, y in enumerate((20, 90, 160)):
        yield arrow(342, 110, 428, y + 20)
        yield box(432, y, 120, 40, f"session {n + 1}", DEEP, "white")
        yield box(570, y, 110, 40, "its messages", WARM)
    yield label(178, 102, "read", "middle", 12)
    yield label(386, 62, "copied", "middle", 12)


def cost() -> Iterator[str]:
    """Bytes of a session by tokens read, on logarithmic scales."""
    left, right, top, bottom = 80, 560, 20, 300

    def at(tokens: float, size: float) -> tuple[float, float]:
        x = left + (math.log10(tokens) - 2) / 4 * (right - left)
        return x, bottom - (math.log10(size) - 3) / 8 * (bottom - top)

    for power, name in ((3, "1 KB"), (6, "1 MB"), (9, "1 GB")):
        y = at(100, 10.0**power)[1]
        yield f'<path d="M{left} {y:g}H{right}" stroke="{PALE}"/>' + label(left - 8, y + 5, name, "end", 12)
    for tokens, name in ((100, "100"), (1e4, "10,000"), (1e6, "1,000,000 tokens")):
        yield label(at(tokens, 1e3)[0], bottom + 20, name, "middle", 12)
    (x1, y1), (x2, y2) = at(100, 100 * KV_BYTES_PER_TOKEN), at(1e6, 1e6 * KV_BYTES_PER_TOKEN)
    yield f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{WARM}" stroke-width="3"/>' + label(
        x2 + 8, y2 + 5, "KV cache"
    )
    for name, size in STATES.items():
        y = at(100, size)[1]
        yield f'<path d="M{left} {y:g}H{right}" stroke="{DEEP}" stroke-width="3"/>' + label(right + 8, y + 5, name)


PICTURES = {"reading": (700, 210, reading), "fork": (700, 220, fork), "cost": (700, 340, cost)}


def draw(name: str) -> str:
    width, height, parts = PICTURES[name]
    return svg(width, height, parts())


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for picture in PICTURES:
        (FOLDER / f"{picture}.svg").write_text(draw(picture))
