"""Draws a session's memory as a PNG. Needs matplotlib: `pip install 'everlong-client[plot]'`."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from everlong_client.cli.table import headline, phrase_text
from everlong_client.types.memory import Memory, MemoryLayer

_COLUMNS = 240
_PHRASES = 5
_CREAM, _INK, _RED = "#f6f3ec", "#222222", "#b3262e"


def draw(memory: Memory) -> bytes:
    """Return a PNG of the memory, of any kind.

    For an ∞-former it has two heat maps, layer by position in the context: the open segment's attention, and the
    memory's space, each as a multiple of an even share. Below them it lists the phrases with the most space in the last
    layer. The start of a long context is left out if it has less than one bin of space. For other memories it shows
    which tokens each part is made of, and how full it is.
    """
    figure = Figure(figsize=(9, 6), dpi=100, layout="constrained")
    figure.suptitle(headline(memory), fontsize=10)
    if memory.layers:
        _signals(figure, memory)
    else:
        _parts(figure, memory)
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _signals(figure: Figure, memory: Memory) -> None:
    attended = all(layer.attention is not None for layer in memory.layers)
    heights = [3, 3, 1.6] if attended else [3, 1.6]
    axes = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    start = _first_visible(memory)
    if attended:
        rows = [_resampled(layer, start, layer.attention or ()) for layer in memory.layers]
        _heat(figure, axes[0], memory, start, rows, "attention")
    rows = [_resampled(layer, start, [1 / (len(layer.edges) - 1)] * (len(layer.edges) - 1)) for layer in memory.layers]
    _heat(figure, axes[-2], memory, start, rows, "space")
    last = memory.layers[-1]
    lines = [f"{phrase.space:6.1%}  {phrase_text(phrase)}" for phrase in last.phrases[:_PHRASES]]
    for phrase in last.phrases[:_PHRASES]:
        axes[-2].plot(
            max(start, (phrase.start + phrase.end) / 2),
            last.layer,
            "v",
            color="white",
            markeredgecolor=_INK,
            markersize=7,
        )
    axes[-1].axis("off")
    head = f"Most space in layer {last.layer}:" if lines else f"In layer {last.layer} all tokens have the same space."
    # Matplotlib would read a dollar sign as the start of a formula.
    text = "\n".join([head, *lines]).replace("$", r"\$")
    axes[-1].text(0, 1, text, va="top", fontsize=9, color=_INK, transform=axes[-1].transAxes)


def _first_visible(memory: Memory) -> float:
    """Return the first position to draw: 0, unless most of the context has almost no space."""
    start, total = min(layer.edges[1] for layer in memory.layers), memory.layers[0].edges[-1]
    return start if total / 2 < start < total else 0.0


def _resampled(layer: MemoryLayer, start: float, shares: Sequence[float]) -> NDArray[np.float64]:
    """Resample shares of bins to `_COLUMNS` equal columns of the context from `start`, as multiples of an even share."""
    total, cumulative = layer.edges[-1], np.concatenate([[0.0], np.cumsum(shares)])
    columns = np.linspace(start, total, _COLUMNS + 1)
    return np.diff(np.interp(columns, layer.edges, cumulative / cumulative[-1])) * _COLUMNS * total / (total - start)


def _heat(figure: Figure, axes: Axes, memory: Memory, start: float, rows: list[NDArray[np.float64]], name: str) -> None:
    total, first, last = memory.layers[0].edges[-1], memory.layers[0].layer, memory.layers[-1].layer
    image = axes.imshow(
        np.clip(np.stack(rows), 1e-2, 1e2), aspect="auto", origin="lower", cmap="magma", norm=LogNorm(1e-2, 1e2),
        extent=(start, total, first - 0.5, last + 0.5), interpolation="nearest",
    )  # fmt: skip
    for document in memory.documents:
        axes.axvline(min(max(document.end, start), total), color="white", linewidth=0.8, linestyle=":")
    axes.set_ylabel("layer")
    before = f"; the first {start:,.0f} have almost no space" if start else ""
    axes.set_xlabel(f"position (tokens{before})")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, ax=axes, label=f"{name}, × even")


def _parts(figure: Figure, memory: Memory) -> None:
    where, full = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])
    rows = range(len(memory.parts))
    names = [part.name if part.layer is None else f"{part.name} {part.layer}" for part in memory.parts]
    for axes in (where, full):
        axes.set_facecolor(_CREAM)
    where.barh(rows, [part.end - part.start for part in memory.parts], left=[part.start for part in memory.parts])
    where.set_xlim(0, max(1, memory.tokens + memory.open))
    where.axvspan(memory.tokens, memory.tokens + memory.open, color="#cccccc", label="open segment")
    for document in memory.documents:
        where.axvline(document.end, color=_INK, linewidth=0.8, linestyle=":")
    where.set_yticks(rows, names)
    where.invert_yaxis()
    where.set_xlabel("made of the tokens")
    where.legend(loc="upper right", fontsize=8)
    full.barh(rows, [part.used / part.slots for part in memory.parts], color=_RED)
    full.set_xlim(0, 1)
    full.set_xlabel("share of its slots in use")
    for row, part in enumerate(memory.parts):
        change = "" if part.change is None else f", open segment changes {part.change:.0%}"
        share, text = part.used / part.slots, f"{part.used:,.1f} of {part.slots:,}{change}"
        # Right of a short bar, inside a long one.
        at, color, side = (share + 0.02, _INK, "left") if share < 0.5 else (share - 0.02, "white", "right")
        full.text(at, row, text, ha=side, va="center", fontsize=7, color=color)
