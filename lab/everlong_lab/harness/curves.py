"""`draw`: figures over time, one below the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def draw(curves: Mapping[str, Sequence[tuple[float, float]]], path: Path) -> None:
    """Plot each curve (minutes and values, by label) to a file of the kind that its name has, such as PNG or SVG."""
    from matplotlib import rc_context  # noqa: PLC0415 - an extra
    from matplotlib.figure import Figure  # noqa: PLC0415

    # In an SVG, text as text, and the same ids in every run: the file can be read, and compared.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "everlong"}):
        figure = Figure(figsize=(8, 7), dpi=120, layout="constrained")
        axes = figure.subplots(len(curves), 1, sharex=True)
        for axis, (label, points) in zip(axes, curves.items(), strict=True):
            axis.plot([minute for minute, _ in points], [value for _, value in points], linewidth=1)
            axis.set_ylabel(label)
            axis.set_ylim(bottom=0)
        axes[-1].set_xlabel("minutes")
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
