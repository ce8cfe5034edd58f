"""The log of a training run: one JSON object a line, and the curve plotted from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from everlong_lab.harness.files import replacing
from everlong_models.errors import RunError

FILE = "metrics.jsonl"
CURVE = "curve.png"


class Journal:
    """`metrics.jsonl` in `folder`. A resumed run keeps only the entries up to its `step`. Raises `RunError`."""

    def __init__(self, folder: Path, step: int) -> None:
        self._file = folder / FILE
        kept = [line for line in self.read() if line["step"] <= step] if step else []
        try:
            with replacing(self._file) as part:
                part.write_text("".join(json.dumps(line) + "\n" for line in kept))
        except OSError as error:
            raise RunError(f"cannot write {self._file}: {error}") from error

    def write(self, **entry: Any) -> None:
        """Append one entry, which must have a `step`. Raises `RunError` if the file cannot be written."""
        try:
            with self._file.open("a") as stream:
                stream.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise RunError(f"cannot write {self._file}: {error}") from error

    def read(self) -> list[dict[str, Any]]:
        """Return all entries. A last line that a full disk or a power cut left unfinished is skipped.

        Raises `RunError` naming the first line that is not an entry.
        """
        try:
            lines = self._file.read_text(errors="replace").splitlines(keepends=True) if self._file.exists() else []
        except OSError as error:
            raise RunError(f"cannot read {self._file}: {error}") from error
        return [self._entry(line, number) for number, line in enumerate(lines, 1) if line.endswith("\n")]

    def _entry(self, line: str, number: int) -> dict[str, Any]:
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise RunError(f"{self._file}, line {number}: {error}") from error
        if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
            raise RunError(f"{self._file}, line {number}: must be an object with an integer `step`")
        if "loss" in entry and (missing := {"correct", "segments"} - entry.keys()):
            raise RunError(f"{self._file}, line {number}: a training step lacks {' and '.join(sorted(missing))}")
        return entry

    def draw(self, title: str) -> Path:
        """Plot loss and score over the steps as a PNG next to the log. Needs matplotlib. Raises `RunError`."""
        try:
            import matplotlib as mpl  # noqa: PLC0415 - the library serves without it
        except ImportError as error:
            raise RunError("plotting the curve needs matplotlib: pip install 'everlong-lab[train]'") from error
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
        segments = None
        for entry in train:
            if segments is not None and entry["segments"] != segments:
                loss_axes.axvline(entry["step"], color="0.8", lw=0.8, zorder=0)
            segments = entry["segments"]
        file = self._file.parent / CURVE
        try:
            figure.savefig(file, dpi=110)
        except OSError as error:
            raise RunError(f"cannot write {file}: {error}") from error
        finally:
            plt.close(figure)
        return file
