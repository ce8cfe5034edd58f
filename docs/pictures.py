"""Draw the size of a session with each memory into docs/pictures/cost.svg: `python docs/pictures.py`. A test checks that it is up to date."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

FILE = Path(__file__).parent / "pictures" / "cost.svg"
INK, PALE, DEEP, WARM = "#37474f", "#eceff1", "#5c6bc0", "#ffb74d"

KV_BYTES_PER_TOKEN = 2 * 30 * 3 * 64 * 4
"""The default backbone: keys and values, layers, heads, width of a head, float32."""
STATES = {"infinite": 35_389_448, "compact": 24_330_248, "armt": 2_995_200, "rmt": 36_864, "window": 8_456}
"""Bytes of a session's state with each memory around that backbone. A test compares them with the code and the pages."""


def say(x: float, y: float, label: str, anchor: str = "start", size: int = 14) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}">{label}</text>'


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
        if name == "compact":  # its line would touch that of infinite
            continue
        y = at(100, size)[1]
        yield f'<path d="M{left} {y:g}H{right}" stroke="{DEEP}" stroke-width="3"/>' + say(right + 8, y + 5, name)


def draw() -> str:
    body = "\n".join(cost())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 340" font-family="sans-serif" font-size="14" '
        f'fill="{INK}">\n<rect width="700" height="340" fill="white"/>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    FILE.write_text(draw())
