"""Models that differ by their seed alone, measured together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from everlong_models.errors import RunError
from everlong_models.memories.base import SegmentReader
from everlong_models.text.tokenizer import Tokenizer


class SeededModel(NamedTuple):
    """One trained model; those of one `name` differ by their seed."""

    name: str
    memory: SegmentReader
    tokenizer: Tokenizer


def by_name(models: Sequence[SeededModel]) -> dict[str, list[SeededModel]]:
    """The models under their names, in the order in which these first come. Raises `RunError` for two of one name that differ by
    more than their seed: their mean would be of nothing."""
    found: dict[str, list[SeededModel]] = {}
    for model in models:
        found.setdefault(model.name, []).append(model)
    for name, group in found.items():
        if len({_kind(model) for model in group}) > 1:
            raise RunError(f"{name!r} names models that differ by more than their seed: measure each by itself")
    return found


def _kind(model: SeededModel) -> tuple[str, int, str]:
    config = model.memory.config.model_dump_json(exclude={"seed"})  # type: ignore[union-attr, operator]
    return config, sum(parameter.numel() for parameter in model.memory.parameters()), model.tokenizer.digest()


def together(figures: Sequence[Mapping[str, float]], main: str) -> dict[str, Any]:
    """The mean of each figure over the seeds, and beside that of `main` the `least` and the `most`."""
    row: dict[str, Any] = {}
    for key in figures[0]:
        values = [figure[key] for figure in figures]
        row[key] = sum(values) / len(values)
        if key == main:
            row |= {"least": min(values), "most": max(values)}
    return row


__all__ = ["SeededModel", "by_name", "together"]
