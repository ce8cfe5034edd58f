"""Models that differ by their seed alone, measured together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from everlong_models.memory import SegmentReader
from everlong_models.tokenizer import Tokenizer


class Seed(NamedTuple):
    """One trained model; those of one `name` differ by their seed."""

    name: str
    memory: SegmentReader
    tokenizer: Tokenizer


def by_name(models: Sequence[Seed]) -> dict[str, list[Seed]]:
    """The models under their names, in the order in which these first come."""
    found: dict[str, list[Seed]] = {}
    for model in models:
        found.setdefault(model.name, []).append(model)
    return found


def together(figures: Sequence[Mapping[str, float]], main: str) -> dict[str, Any]:
    """The mean of each figure over the seeds, and beside that of `main` the `least` and the `most`."""
    row: dict[str, Any] = {}
    for key in figures[0]:
        values = [figure[key] for figure in figures]
        row[key] = sum(values) / len(values)
        if key == main:
            row |= {"least": min(values), "most": max(values)}
    return row


__all__ = ["Seed", "by_name", "together"]
