"""Sorting by frequency over growing sequences, compared with counting only the last symbols."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everlong_lab.eval.plot import Line, draw
from everlong_lab.eval.seeds import SeededModel, by_name, together
from everlong_lab.tasks.sorting import Sorting, SortingConfig
from everlong_lab.tasks.task import Setting
from everlong_models.errors import ConfigError


def sorting(
    models: Sequence[SeededModel], *, lengths: Sequence[int], samples: int, windows: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """Return one row per name and length, in symbols: accuracy (with the least and the most of the seeds), loss, and the
    accuracy of counting only the last `windows` symbols.

    Raises `ConfigError` for a length that is not a whole number of segments, or a model with other symbols.
    """
    tasks = [_task(model, lengths) for model in models]
    rows = []
    for name, group in by_name(models).items():
        for length in lengths:
            found = []
            for model in group:
                segments = length // model.memory.segment_length
                found.append(tasks[models.index(model)].evaluate(model.memory, samples=samples, segments=segments))
            task, segments = tasks[models.index(group[0])], length // group[0].memory.segment_length
            counted = {
                f"counting {window}": task.window_accuracy(samples=samples, segments=segments, window=window)
                for window in windows
            }
            rows.append({"model": name, "symbols": length} | together(found, "accuracy") | counted)
    return rows


def draw_sorting(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Plot accuracy by length as a PNG: one curve per name, and dashed lines for counting."""
    lines = []
    for name in dict.fromkeys(row["model"] for row in rows):
        named = [row for row in rows if row["model"] == name]
        lines.append(Line.of(name, named, x="symbols", y="accuracy"))
    first = [row for row in rows if row["model"] == rows[0]["model"]]
    for key in rows[0]:
        if key.startswith("counting "):
            counted = [row[key] for row in first]
            lines.append(Line(f"{key} symbols", [row["symbols"] for row in first], counted, dashed=True))
    draw(lines, file, x="symbols", y="accuracy")


def _task(model: SeededModel, lengths: Sequence[int]) -> Sorting:
    S, tokenizer = model.memory.segment_length, model.tokenizer
    symbols = tokenizer.vocab_size - 1
    if tokenizer.encode(f"{symbols - 1} <SEP>") != [symbols - 1, symbols]:
        raise ConfigError(
            "model", tokenizer.vocab_size, "was not trained to sort: its tokens are not symbols and <SEP>"
        )
    for length in lengths:
        if length < S or length % S:
            raise ConfigError("lengths", length, f"must be a multiple of the model's segment length, {S} symbols")
    return Sorting(SortingConfig(symbols=symbols), Setting(tokenizer, S, Path(), 0))
