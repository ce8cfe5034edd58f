"""What a run writes down: one JSON object a line, and the curve drawn from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from everlong_models.errors import RunError

FILE = "metrics.jsonl"
CURVE = "curve.png"


class Journal:
    """`metrics.jsonl` in `folder`; of a resumed run, only what stands before its `step` is kept."""

    def __init__(self, folder: Path, step: int) -> None:
        self._file = folder / FILE
        kept = [line for line in self.read() if line["step"] <= step] if step else []
        scratch = self._file.with_suffix(".part")
        scratch.write_text("".join(json.dumps(line) + "\n" for line in kept))
        scratch.replace(self._file)

    def write(self, **entry: Any) -> None:
        """Appends one entry, which has a `step`. Raises `RunError` if the disk does not take it."""
        try:
            with self._file.open("a") as stream:
                stream.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise RunError(f"cannot write {self._file}: {error}") from error

    def read(self) -> list[dict[str, Any]]:
        """All entries. One that a full disk or a power cut left unfinished, the last, is left out."""
        if not self._file.exists():
            return []
        lines = self._file.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def draw(self, title: str) -> Path:
        """The curve of loss and score over steps, as a PNG beside the entries. Needs matplotlib."""
        try:
            import matplotlib as mpl  # noqa: PLC0415 - the library serves without it
        except ImportError as error:
            raise RunError("drawing the curve needs matplotlib: pip install 'everlong[train]'") from error
        mpl.use("Agg")
        from matplotlib import pyplot as plt  # noqa: PLC0415

        entries = self.read()
        figure, loss_axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
        train = [entry for entry in entries if "loss" in entry]
        loss_axes.plot([e["step"] for e in train], [e["loss"] for e in train], color="tab:blue", lw=1)
        loss_axes.set(xlabel="step", ylabel="loss", title=title)
        loss_axes.yaxis.label.set_color("tab:blue")
        score_axes = loss_axes.twinx()
        score_axes.plot([e["step"] for e in train], [e["correct"] for e in train], color="tab:orange", lw=1)
        score_axes.set(ylabel="right predictions", ylim=(0, 1.02))
        score_axes.yaxis.label.set_color("tab:orange")
        before = None
        for entry in train:
            if before is not None and entry["segments"] != before:
                loss_axes.axvline(entry["step"], color="0.8", lw=0.8, zorder=0)
            before = entry["segments"]
        figure.savefig(self._file.parent / CURVE, dpi=110)
        plt.close(figure)
        return self._file.parent / CURVE
