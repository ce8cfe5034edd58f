"""Measure models together that differ only by their seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from everlong_models.errors import RunError
from everlong_models.memories.base import SegmentReader
from everlong_models.text.tokenizer import Tokenizer


class SeededModel(NamedTuple):
    """A trained model; models of one `name` differ only by their seed."""

    name: str
    memory: SegmentReader
    tokenizer: Tokenizer


def by_name(models: Sequence[SeededModel]) -> dict[str, list[SeededModel]]:
    """Group the models by name, in order of appearance. Raises `RunError` if models of one name differ by more than their
    seed, because their mean would be meaningless."""
    found: dict[str, list[SeededModel]] = {}
    for model in models:
        found.setdefault(model.name, []).append(model)
    for name, group in found.items():
        if len({_kind(model) for model in group}) > 1:
            raise RunError(f"models named {name!r} differ by more than their seed: measure them separately")
    return found


def _kind(model: SeededModel) -> tuple[str, int, str]:
    config = model.memory.config.model_dump_json(exclude={"seed"})  # type: ignore[union-attr, operator]
    return config, sum(parameter.numel() for parameter in model.memory.parameters()), model.tokenizer.digest()


def together(figures: Sequence[Mapping[str, float]], main: str) -> dict[str, Any]:
    """Return the mean of each figure over the seeds, and the `least` and the `most` of the figure `main`."""
    row: dict[str, Any] = {}
    for key in figures[0]:
        values = [figure[key] for figure in figures]
        row[key] = sum(values) / len(values)
        if key == main:
            row |= {"least": min(values), "most": max(values)}
    return row
