"""BABILong's table: accuracy by task and length, through a memory or in a backbone's own window, with published rows."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from everlong_lab.eval.interval import wilson
from everlong_lab.tasks.babi import LABELS, BabiTask
from everlong_lab.tasks.babilong import ANSWER, Babilong, BabilongConfig, Prompt
from everlong_lab.tasks.task import Setting
from everlong_models.backbone.backbone import Backbone
from everlong_models.errors import ConfigError
from everlong_models.memories.base import SegmentReader
from everlong_models.memories.window import Window, WindowConfig
from everlong_models.text.tokenizer import Tokenizer

PUBLISHED: dict[str, dict[str, dict[str, float]]] = {
    "RMT, GPT-2 137M": {
        "qa1": {"0k": 100, "16k": 100, "32k": 99, "64k": 96, "128k": 94, "512k": 87, "1M": 84, "10M": 66},
        "qa2": {"0k": 100, "16k": 94, "32k": 82, "64k": 59, "128k": 39, "512k": 25, "1M": 22, "10M": 19},
        "qa3": {"0k": 97, "16k": 66, "32k": 55, "64k": 55, "128k": 36, "512k": 25, "1M": 22, "10M": 21},
        "qa4": {"0k": 100, "16k": 75, "32k": 64, "64k": 51, "128k": 38, "512k": 26, "1M": 24, "10M": 20},
        "qa5": {"0k": 100, "16k": 94, "32k": 90, "64k": 89, "128k": 86, "512k": 69, "1M": 63, "10M": 44},
    },
    "ARMT, GPT-2 137M": {
        "qa1": {"0k": 100, "16k": 100, "32k": 100, "64k": 100, "128k": 100, "512k": 99, "1M": 99, "10M": 89},
        "qa2": {"0k": 100, "16k": 100, "32k": 100, "64k": 100, "128k": 100, "512k": 99, "1M": 99, "10M": 84},
        "qa3": {"0k": 97, "16k": 92, "32k": 91, "64k": 90, "128k": 86, "512k": 80, "1M": 72, "10M": 37},
        "qa4": {"0k": 100, "16k": 100, "32k": 100, "64k": 100, "128k": 100, "512k": 100, "1M": 100, "10M": 92},
        "qa5": {"0k": 99.6, "16k": 98, "32k": 98, "64k": 98, "128k": 97, "512k": 95, "1M": 93, "10M": 77},
    },
}
"""Accuracy in percent of models trained on the tasks, by model, task and length (Kuratov et al. 2024; Rodkin et al. 2024)."""

MEMORY_ROWS = 8
"""Number of samples that a memory reads at once."""


@dataclass(frozen=True, slots=True)
class BabilongScores:
    """Scores of one task and length. `accuracy` and its 95 % interval `low` … `high` are shares of the samples. `tokens`: read
    in all samples together. `answers`: each question with the expected answer and the model's."""

    task: BabiTask
    length: str
    samples: int
    right: int
    accuracy: float
    low: float
    high: float
    tokens: int
    seconds: float
    answers: list[dict[str, Any]]


def parse_length(length: str) -> int | None:
    """Return the number of tokens that a length stands for: "16k" is 16·1024, "1M" 1024·1024; None for "0k", facts alone.

    Raises `ConfigError`.
    """
    found = re.fullmatch(r"(\d{1,6})([kM]?)", length)
    if found is None:
        raise ConfigError("lengths", length, "must be like 0k, 4k, 1M, or a number of tokens")
    return int(found[1]) * {"": 1, "k": 1 << 10, "M": 1 << 20}[found[2]] or None


def in_window(backbone: Backbone, tokens: int) -> Window:
    """Return a reader for the backbone alone that sees all of up to `tokens` tokens, including the answer."""
    return Window(WindowConfig(segment_length=tokens - 1, sinks=0, window=1), backbone)


def babilong(
    model: SegmentReader | Backbone,
    tokenizer: Tokenizer,
    *,
    data: Path,
    tasks: Sequence[BabiTask],
    lengths: Sequence[str],
    samples: int,
    prompt: Prompt,
    seed: int = 0,
    rows: int | None = None,
    progress: Callable[[BabiTask, str], None] = lambda task, length: None,
) -> Iterator[BabilongScores]:
    """Yield the scores of the table, length by length.

    `model`: a memory, which reads documents of any length; or a backbone, which sees the whole sample in its window and
    skips lengths that do not fit. `rows`: samples read at once. `progress` is called after every sample. Raises
    `ConfigError`, `DataError`, and `TokenError` if too few questions fit into a length.
    """
    for task in tasks:
        if task not in LABELS:
            raise ConfigError("tasks", task, f"must be one of {', '.join(LABELS)}")
    # Only training depends on the segment length.
    benchmark = Babilong(BabilongConfig(), Setting(tokenizer, 512, data, seed))
    counted = {length: parse_length(length) for length in lengths}
    for length, most in counted.items():
        if isinstance(model, Backbone) and (most or 0) > model.max_positions:
            continue
        for task in tasks:
            chosen = benchmark.samples(task, most, samples, seed=seed, prompt=prompt)
            tokens = [len(sample.haystack) for sample in chosen]
            if not isinstance(model, Backbone):
                reader, at_once = model, rows or MEMORY_ROWS
            else:
                # One by one: a window's keys and values are many times the size of a memory.
                reader, at_once = in_window(model, max(tokens) + ANSWER), rows or 1
            began = time.monotonic()
            answers = benchmark.answers(reader, chosen, rows=at_once, progress=partial(progress, task, length))
            seconds = time.monotonic() - began
            right = sum(answer.right for answer in answers)
            share = wilson(right, samples)
            yield BabilongScores(
                task, length, samples, right, *share, tokens=sum(tokens), seconds=seconds,
                answers=[
                    {
                        "question": answer.sample.question.question,
                        "expected": answer.sample.question.answer,
                        "said": answer.text,
                        "right": answer.right,
                    }
                    for answer in answers
                ],
            )  # fmt: skip


def table(name: str, cells: Sequence[BabilongScores], lengths: Sequence[str]) -> list[dict[str, Any]]:
    """Return the table's rows: accuracy in percent with its interval, followed by published rows of the same tasks."""
    found = {(cell.task, cell.length): cell for cell in cells}
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    rows: list[dict[str, Any]] = []
    for task in tasks:
        row: dict[str, Any] = {"model": name, "task": task}
        for length in lengths:
            cell = found.get((task, length))
            row[length] = f"{cell.accuracy:.0%} ({cell.low:.0%}–{cell.high:.0%})" if cell else "not run"
        rows.append(row)
    for published, by_task in PUBLISHED.items():
        for task in tasks:
            shown = {length: by_task[task].get(length) for length in lengths}
            rows.append(
                {"model": f"published: {published}", "task": task}
                | {length: "–" if value is None else f"{value:g}%" for length, value in shown.items()}
            )
    return rows
