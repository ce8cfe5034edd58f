"""Sorting by frequency over growing sequences, beside what counting a window of so many symbols would give."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everlong_models.errors import ConfigError
from everlong_models.memory import SegmentReader
from everlong_models.tasks.sorting import Sorting, SortingConfig
from everlong_models.tasks.task import Setting
from everlong_models.tokenizer import Tokenizer


def sorting(
    memory: SegmentReader, tokenizer: Tokenizer, *, lengths: Sequence[int], samples: int, windows: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """One row a length, in symbols: the model's accuracy and loss, and the accuracy of counting the last of them only.

    Raises `ConfigError` for a length that is no whole number of segments, or a model of other symbols.
    """
    S, symbols = memory.segment_length, tokenizer.vocab_size - 1
    if tokenizer.encode(f"{symbols - 1} <SEP>") != [symbols - 1, symbols]:
        raise ConfigError("model", tokenizer.vocab_size, "has not learnt to sort: its tokens are not symbols and <SEP>")
    task = Sorting(SortingConfig(symbols=symbols), Setting(tokenizer, S, Path(), 0))
    rows = []
    for length in lengths:
        if length < S or length % S:
            raise ConfigError("lengths", length, f"must be a multiple of the model's segments, {S} symbols")
        segments = length // S
        rows.append(
            {"symbols": length}
            | task.evaluate(memory, samples=samples, segments=segments)
            | {
                f"counting {window}": task.window_accuracy(samples=samples, segments=segments, window=window)
                for window in windows
            }
        )
    return rows
