"""Perplexity on held-out text with the memory carried, also with a longer memory than was trained with, or with a part
of it emptied."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from everlong_lab.eval.plot import Line, draw
from everlong_lab.eval.seeds import SeededModel, by_name, together
from everlong_lab.tasks.language import encode, measure, held_out_texts, runs, middle_shares
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
    """Figures (see `Scores.figures`; of perplexity also the least and the most of the seeds) of `samples` runs of text,
    `segments` segments each; one row a name and memory length.

    `texts`: a data set, of which the held-out texts are read, or NAME/PATH, one file of it. `memory_lengths`: default,
    as trained. `forget`: tensors of the state that are emptied before every segment, to see what they are worth.
    `line_ends`: they count as words, as is usual of WikiText, whose lines are paragraphs. Raises `ConfigError`, `DataError`.
    """
    pieces = held_out_texts(data, texts)
    rows: list[dict[str, Any]] = []
    for name, group in by_name(models).items():
        for positions in memory_lengths or (None,):
            found = []
            for _, memory, tokenizer in group:
                length = segments * memory.segment_length
                # More than is needed, as far as there is more: a token is seldom longer than eight characters.
                tokens = runs(encode(middle_shares(pieces, 8 * samples * length), tokenizer), samples, length, texts)
                model = memory if positions is None else extended(memory, positions)
                found.append(measure(model, tokenizer, tokens, forget=forget, line_ends=line_ends).figures())
            shown = {"model": name} if positions is None else {"model": name, "memory": positions}
            rows.append(shown | together(found, "perplexity"))
    return rows


def draw_language(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Perplexity by memory length as a PNG, one curve a name. Raises `ConfigError` for rows without memory lengths."""
    if "memory" not in rows[0]:
        raise ConfigError("memory_lengths", None, "name some: a plot is of perplexity by memory length")
    lines = []
    for name in dict.fromkeys(row["model"] for row in rows):
        lines.append(Line.of(name, [row for row in rows if row["model"] == name], x="memory", y="perplexity"))
    draw(lines, file, x="positions of memory", y="perplexity")


def extended(memory: SegmentReader, length: int) -> SegmentReader:
    """The same weights with `memory_length` = `length` (LaMemo, section 5): relative positions know no longest distance.

    Raises `ConfigError` for a memory that has no length of its own.
    """
    config = getattr(memory, "config", None)
    if not isinstance(config, BaseModel) or "memory_length" not in type(config).model_fields:
        raise ConfigError("memory_lengths", length, f"{type(memory).__name__} has no memory_length")
    weight = next(memory.parameters())
    longer = type(memory)(config.model_copy(update={"memory_length": length}))
    longer.load_state_dict(memory.state_dict())
    return longer.to(weight.device, weight.dtype).eval().requires_grad_(False)


__all__ = ["draw_language", "extended", "language"]
