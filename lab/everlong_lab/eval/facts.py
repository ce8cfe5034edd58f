"""How well a memory keeps facts in growing documents: memorize, detect & memorize, reasoning (Bulatov et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everlong_lab.eval.plot import Line, draw
from everlong_lab.tasks import Setting
from everlong_lab.tasks.facts import Facts, FactsConfig, Kind
from everlong_models.memories.base import SegmentReader
from everlong_models.text.tokenizer import Tokenizer

PAPER: Mapping[Kind, Mapping[int, float]] = {
    "memorize": {32: 0.992, 128: 0.965, 512: 0.932, 1024: 0.931, 2048: 0.904, 4096: 0.906},
    "detect": {32: 0.998, 128: 0.988, 512: 0.986, 1024: 0.971, 2048: 0.971, 4096: 0.961},
    "reasoning": {32: 0.948, 128: 0.897, 512: 0.876, 1024: 0.863, 2048: 0.840, 4096: 0.819},
}
"""Accuracy of RMT around BERT-base, with segments of 512 tokens, from the authors' result files."""


def facts(
    models: Sequence[tuple[SegmentReader, Tokenizer]],
    kind: Kind,
    *,
    lengths: Sequence[int],
    samples: int,
    recite: bool = False,
    progress: Callable[[str], None] = lambda message: None,
) -> list[dict[str, Any]]:
    """Return rows of accuracy by length in segments: mean, least and most over `models`, which differ by their seed; and the paper's.

    All models get the same `samples` documents of each length. `recite`: the models repeat the facts before the question,
    which they must have been trained to do with `recited`. Raises `ConfigError`, `TokenError`.
    """
    found: dict[int, list[float]] = {length: [] for length in lengths}
    for number, (model, tokenizer) in enumerate(models, 1):
        task = Facts(FactsConfig(kind=kind, recited=float(recite)), Setting(tokenizer, model.segment_length, Path(), 0))
        groups = [list(lengths)] if kind == "memorize" else [[length] for length in lengths]
        for group in groups:
            progress(f"model {number} of {len(models)}: {', '.join(map(str, group))} segments")
            for length, accuracy in task.accuracies(model, samples=samples, lengths=group, recite=recite).items():
                found[length].append(accuracy)
    S = models[0][0].segment_length
    return [
        {
            "segments": length,
            "tokens": length * S,
            "accuracy": sum(values) / len(values),
            "least": min(values),
            "most": max(values),
            "paper": PAPER[kind].get(length, ""),
            "samples": samples * len(values),
        }
        for length, values in found.items()
    ]


def draw_facts(rows: Sequence[dict[str, Any]], kind: Kind, file: Path) -> None:
    """Plot accuracy by length as a PNG, with the paper's as a dashed line."""
    paper = PAPER[kind]
    lines = [
        Line.of(f"{kind}, segments of {rows[0]['tokens'] // rows[0]['segments']}", rows, x="segments", y="accuracy"),
        Line("the paper's, segments of 512", list(paper), list(paper.values()), dashed=True),
    ]
    draw(lines, file, x="segments", y="accuracy")
