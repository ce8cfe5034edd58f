"""`without_progress_bars`: loads with transformers, silently. Our own progress messages say what is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging as transformers_logging


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Disable transformers' progress bars for the duration of the block."""
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            transformers_logging.enable_progress_bar()
