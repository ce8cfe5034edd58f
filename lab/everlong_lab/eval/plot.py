"""Plots small enough to be committed next to the tables that they illustrate."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


def save(figure: Any, file: Path) -> None:
    """Write a matplotlib figure as a PNG with 64 colours, a third of the size of a full-colour one."""
    from PIL import Image  # noqa: PLC0415 - comes with matplotlib, which only a plot needs

    raw = io.BytesIO()
    figure.savefig(raw, format="png")
    Image.open(raw).convert("RGB").quantize(64).save(file, format="PNG", optimize=True)


class Line(NamedTuple):
    """A curve. `least` and `most`, if given, are the edges of a band around it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    least: Sequence[float] = ()
    most: Sequence[float] = ()
    dashed: bool = False

    @classmethod
    def of(cls, name: str, rows: Sequence[Mapping[str, Any]], *, x: str, y: str) -> Line:
        """Return a curve from the columns `x`, `y`, `least` and `most` of a table."""
        columns = {column: [row[column] for row in rows] for column in (x, y, "least", "most")}
        return cls(name, columns[x], columns[y], columns["least"], columns["most"])


def draw(lines: Sequence[Line], file: Path, *, x: str, y: str) -> None:
    """Plot curves over a logarithmic axis as a PNG."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only a plot needs it
    from matplotlib.ticker import NullFormatter, NullLocator  # noqa: PLC0415

    figure = Figure(figsize=(6, 3.2), dpi=80, layout="constrained")
    axes = figure.subplots()
    for line in lines:
        (drawn,) = axes.plot(
            line.x,
            line.y,
            label=line.name,
            lw=1.3,
            ls="--" if line.dashed else "-",
            marker=None if line.dashed else ".",
        )
        if line.least:
            axes.fill_between(line.x, line.least, line.most, color=drawn.get_color(), alpha=0.2, lw=0)
    axes.set(xscale="log", xlabel=x, ylabel=y)
    places = sorted({place for line in lines for place in line.x})
    axes.set_xticks(places, [f"{place:,}" for place in places])
    axes.tick_params(axis="x", labelsize=8, rotation=30)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save(figure, file)
