"""Perplexity on held-out text with the memory carried; optionally with a longer memory than in training, or with parts of
the state reset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from everlong_lab.eval.plot import Line, draw
from everlong_lab.eval.seeds import SeededModel, by_name, together
from everlong_lab.tasks.language import encode, held_out_texts, measure, middle_shares, runs
from everlong_models.errors import ConfigError
from everlong_models.memories.base import SegmentReader


def language(
    models: Sequence[SeededModel],
    *,
    data: Path,
    texts: str,
    samples: int,
    segments: int,
    memory_lengths: Sequence[int] = (),
    forget: Sequence[str] = (),
    line_ends: bool = False,
) -> list[dict[str, Any]]:
    """Measure `samples` runs of text of `segments` segments each. Return one row per name and memory length.

    A row has the figures of `Scores.figures`, averaged over seeds, and the least and the most perplexity. `texts`: a data
    set, of which the held-out texts are read, or one file of it as NAME/PATH. `memory_lengths`: default as trained.
    `forget`: state tensors to reset before every segment, to see what they contribute. `line_ends`: count them as words, as
    usual for WikiText, whose lines are paragraphs. Raises `ConfigError`, `DataError`.
    """
    pieces = held_out_texts(data, texts)
    rows: list[dict[str, Any]] = []
    for name, group in by_name(models).items():
        for positions in memory_lengths or (None,):
            found = []
            for _, memory, tokenizer in group:
                length = segments * memory.segment_length
                # Encode more text than needed, if there is more: few tokens are longer than eight characters.
                tokens = runs(encode(middle_shares(pieces, 8 * samples * length), tokenizer), samples, length, texts)
                model = memory if positions is None else extended(memory, positions)
                found.append(measure(model, tokenizer, tokens, forget=forget, line_ends=line_ends).figures())
            shown = {"model": name} if positions is None else {"model": name, "memory": positions}
            rows.append(shown | together(found, "perplexity"))
    return rows


def draw_language(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Plot perplexity by memory length as a PNG, one curve per name. Raises `ConfigError` for rows without memory lengths."""
    if "memory" not in rows[0]:
        raise ConfigError("memory_lengths", None, "must be given: the plot shows perplexity by memory length")
    lines = [
        Line.of(name, [row for row in rows if row["model"] == name], x="memory", y="perplexity")
        for name in dict.fromkeys(row["model"] for row in rows)
    ]
    draw(lines, file, x="positions of memory", y="perplexity")


def extended(memory: SegmentReader, length: int) -> SegmentReader:
    """Return the model with `memory_length` = `length` (LaMemo, section 5): relative positions have no longest distance.

    Raises `ConfigError` for a memory without that option.
    """
    config = getattr(memory, "config", None)
    if not isinstance(config, BaseModel) or "memory_length" not in type(config).model_fields:
        raise ConfigError("memory_lengths", length, f"{type(memory).__name__} has no memory_length")
    weight = next(memory.parameters())
    longer = type(memory)(config.model_copy(update={"memory_length": length}))
    longer.load_state_dict(memory.state_dict())
    return longer.to(weight.device, weight.dtype).eval().requires_grad_(False)
