"""Draw the pictures of the documentation into docs/pictures: `python docs/pictures.py`. A test checks that they are up to date."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent / "pictures"
INK, PALE, DEEP, WARM = "#37474f", "#eceff1", "#5c6bc0", "#ffb74d"

KV_BYTES_PER_TOKEN = 2 * 30 * 3 * 64 * 4
"""The default backbone: keys and values, layers, heads, width of a head, float32."""
STATES = {"infinite": 35_389_448, "armt": 2_995_200, "rmt": 36_864, "window": 8_456}
"""Bytes of a session's state with each memory around that backbone. A test compares them with the code and the pages."""


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


def say(x: float, y: float, label: str, anchor: str = "start", size: int = 14) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}">{label}</text>'


def reading() -> Iterator[str]:
    """Segments are read into a state of fixed size, one after the other, except the open segment at the end."""
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
    yield say(20, 190, "All states have the same size. The open segment is kept as token ids, at most S − 1 of them.")


def fork() -> Iterator[str]:
    """A document is read once. Each session starts from a copy of its state and then has messages of its own."""
    yield box(20, 90, 130, 40, "document", PALE)
    yield arrow(150, 110, 218, 110)
    yield box(222, 90, 120, 40, "state", DEEP, "white")
    for n, y in enumerate((20, 90, 160)):
        yield arrow(342, 110, 428, y + 20)
        yield box(432, y, 120, 40, f"session {n + 1}", DEEP, "white")
        yield box(570, y, 110, 40, "messages", WARM)
    yield say(178, 102, "read", "middle", 12)
    yield say(386, 62, "copied", "middle", 12)


def cost() -> Iterator[str]:
    """Plot the size of a session against the number of tokens read, both on logarithmic scales."""
    left, right, top, bottom = 80, 560, 20, 300

    def at(tokens: float, size: float) -> tuple[float, float]:
        x = left + (math.log10(tokens) - 2) / 4 * (right - left)
        return x, bottom - (math.log10(size) - 3) / 8 * (bottom - top)

    for power, name in ((3, "1 KB"), (6, "1 MB"), (9, "1 GB")):
        y = at(100, 10.0**power)[1]
        yield f'<path d="M{left} {y:g}H{right}" stroke="{PALE}"/>' + say(left - 8, y + 5, name, "end", 12)
    for tokens, name in ((100, "100"), (1e4, "10,000"), (1e6, "1,000,000 tokens")):
        yield say(at(tokens, 1e3)[0], bottom + 20, name, "middle", 12)
    (x1, y1), (x2, y2) = at(100, 100 * KV_BYTES_PER_TOKEN), at(1e6, 1e6 * KV_BYTES_PER_TOKEN)
    yield f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{WARM}" stroke-width="3"/>' + say(x2 + 8, y2 + 5, "KV cache")
    for name, size in STATES.items():
        y = at(100, size)[1]
        yield f'<path d="M{left} {y:g}H{right}" stroke="{DEEP}" stroke-width="3"/>' + say(right + 8, y + 5, name)


def folders() -> Iterator[str]:
    """The folders of the code, grouped by distribution. An arrow points from the importing folder to the imported one."""

    def group(x: float, y: float, w: float, h: float, name: str) -> str:
        return f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="6" fill="none" stroke="{DEEP}"/>' + say(
            x + 10, y + 20, name, size=13
        )

    yield group(10, 10, 150, 150, "clients/")
    yield box(25, 40, 120, 30, "python, js") + box(25, 80, 120, 30, "web") + box(25, 120, 120, 30, "openapi.json", WARM)
    yield group(210, 10, 330, 300, "server/")
    yield box(225, 40, 140, 30, "cli, process") + box(225, 100, 140, 30, "api/") + box(225, 265, 140, 30, "store/")
    yield f'<rect x="225" y="160" width="300" height="75" rx="4" fill="white" stroke="{INK}"/>' + say(
        235, 178, "engine/"
    )
    yield box(235, 188, 90, 32, "answering") + box(340, 188, 90, 32, "documents") + box(445, 188, 70, 32, "device")
    yield arrow(325, 204, 338, 204) + arrow(430, 204, 443, 204)
    yield arrow(295, 70, 295, 98) + arrow(295, 130, 295, 158) + arrow(295, 235, 295, 263)
    yield arrow(225, 125, 148, 135)
    yield group(600, 10, 290, 300, "models/")
    yield box(615, 40, 120, 30, "model") + box(755, 40, 120, 30, "generate/") + box(615, 100, 120, 30, "memories/")
    yield box(615, 160, 120, 30, "backbone/") + box(615, 220, 120, 30, "kernels/") + box(755, 220, 120, 30, "text/")
    yield arrow(675, 70, 675, 98) + arrow(675, 130, 675, 158) + arrow(675, 190, 675, 218) + arrow(735, 175, 815, 218)
    yield arrow(755, 62, 737, 100) + arrow(815, 70, 815, 218)
    yield arrow(525, 197, 598, 197)
    yield group(210, 340, 680, 80, "lab/")
    for n, name in enumerate(("train", "tasks", "corpora", "eval", "benchmarks", "chaos")):
        yield box(225 + n * 110, 370, 100, 32, name)
    yield arrow(375, 340, 375, 312) + arrow(745, 340, 745, 312)


PICTURES = {
    "reading": (700, 210, reading),
    "fork": (700, 220, fork),
    "cost": (700, 340, cost),
    "folders": (900, 440, folders),
}


def draw(name: str) -> str:
    width, height, parts = PICTURES[name]
    return svg(width, height, parts())


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for picture in PICTURES:
        (FOLDER / f"{picture}.svg").write_text(draw(picture))
