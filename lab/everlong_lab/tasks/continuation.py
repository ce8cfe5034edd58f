"""Continue books, so that a model that learns to remember keeps its language.

A document is a random run of a book. Only its last tokens, `targets` of them, are predicted: with all tokens as targets,
one document would weigh as much as hundreds of questions.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field
from transformers import PreTrainedTokenizerBase

from everlong_lab.corpora import text
from everlong_lab.tasks import language
from everlong_lab.tasks.chat_encoder import Example, pad_batch
from everlong_lab.tasks.dialogue import perplexity
from everlong_lab.tasks.task import Batch, Setting, Task, TaskConfig
from everlong_models.memories.base import SegmentReader


class ContinuationConfig(TaskConfig):
    """`texts`: data set of books, of which `characters` are kept in memory. `targets`: number of tokens at the end of a
    document that are predicted. `vocabulary`: size of the tokenizer made for a model from scratch."""

    name: Literal["continuation"] = "continuation"
    texts: str = "books-260"
    characters: int = Field(8_000_000, ge=10_000)
    targets: int = Field(128, ge=1)
    vocabulary: int = Field(4096, ge=512)


class Continuation(Task):
    """Continuation of books. Raises `DataError`."""

    config: ContinuationConfig

    def __init__(self, config: ContinuationConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self._folder = text.find(setting.data, config.texts)

    @classmethod
    def make_tokenizer(cls, config: ContinuationConfig, data: Path) -> PreTrainedTokenizerBase:
        """Return the same tokenizer as `language`."""
        return language.Language.make_tokenizer(
            language.LanguageConfig(texts=config.texts, vocabulary=config.vocabulary), data
        )

    @functools.cached_property
    def _stream(self) -> np.ndarray:
        kept, _ = text.books(self._folder)
        return language.encode(iter(text.middles(kept, self.config.characters)), self.tokenizer)

    @functools.cached_property
    def _held_out(self) -> np.ndarray:
        _, held_out = text.books(self._folder)
        return language.encode(iter(text.middles(held_out, min(self.config.characters, 2_000_000))), self.tokenizer)

    def batch(self, step: int, rows: int, segments: int) -> Batch:
        return pad_batch(self._examples(self.random(self._seed, step), self._stream, rows, segments))

    def evaluate(self, model: SegmentReader, *, samples: int, segments: int) -> dict[str, float]:
        """Return the `perplexity` of the targets in held-out books."""
        random = self.random(0, segments, held_out=True)
        return {"perplexity": perplexity(model, self._examples(random, self._held_out, samples, segments))}

    def _examples(self, random: np.random.Generator, stream: np.ndarray, rows: int, segments: int) -> list[Example]:
        length = segments * self._S
        targets = np.arange(length) >= length - self.config.targets
        starts = random.integers(len(stream), size=rows)
        return [Example(stream[np.arange(start, start + length) % len(stream)], targets) for start in starts]
