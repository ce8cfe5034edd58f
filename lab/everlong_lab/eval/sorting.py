"""Sorting by frequency over growing sequences, beside what counting a window of so many symbols would give."""

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
    """One row a name and length, in symbols: accuracy (with the least and the most of its seeds) and loss, and the
    accuracy of counting the last of the symbols only.

    Raises `ConfigError` for a length that is no whole number of segments, or a model of other symbols.
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
    """Accuracy by length as a PNG: one curve a name, dashed what counting gives."""
    lines = []
    for name in dict.fromkeys(row["model"] for row in rows):
        of = [row for row in rows if row["model"] == name]
        lines.append(Line.of(name, of, x="symbols", y="accuracy"))
    of = [row for row in rows if row["model"] == rows[0]["model"]]
    for key in rows[0]:
        if key.startswith("counting "):
            lines.append(Line(f"{key} symbols", [row["symbols"] for row in of], [row[key] for row in of], dashed=True))
    draw(lines, file, x="symbols", y="accuracy")


def _task(model: SeededModel, lengths: Sequence[int]) -> Sorting:
    S, tokenizer = model.memory.segment_length, model.tokenizer
    symbols = tokenizer.vocab_size - 1
    if tokenizer.encode(f"{symbols - 1} <SEP>") != [symbols - 1, symbols]:
        raise ConfigError("model", tokenizer.vocab_size, "has not learnt to sort: its tokens are not symbols and <SEP>")
    for length in lengths:
        if length < S or length % S:
            raise ConfigError("lengths", length, f"must be a multiple of the model's segments, {S} symbols")
    return Sorting(SortingConfig(symbols=symbols), Setting(tokenizer, S, Path(), 0))
