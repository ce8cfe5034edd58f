"""`Task`: the interface of a training task: its batches, and the scores of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from everlong_models.memories.base import SegmentReader
from everlong_models.text.tokenizer import Tokenizer


class TaskConfig(BaseModel):
    """The part of a recipe that configures a task. Each task's config adds its fields. Unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Setting(NamedTuple):
    """Everything besides its config that a task is built from.

    `tokenizer`: of the model to train. `segment_length`: S. `data`: folder of data sets. `seed`: determines all random
    choices of the task.
    """

    tokenizer: Tokenizer
    segment_length: int
    data: Path
    seed: int


class Batch(NamedTuple):
    """Documents to learn from.

    `tokens` (B, N) int64. `lengths` (B,): tokens of each row; the rest is padding. `targets` (B, N) bool: tokens to
    predict. `fresh`: rows start with an empty memory; otherwise each continues its row of the previous batch. `idle`
    (B, segments) bool: full segments without anything that must be remembered, if the task knows.
    """

    tokens: Tensor
    lengths: Tensor
    targets: Tensor
    fresh: bool = True
    idle: Tensor | None = None


class Task(ABC):
    """A training task. Batches depend only on the seed and the step, so that a run can resume at any step."""

    continues: bool = False
    """Whether batches continue the previous ones; all batches must then have the same rows and segments."""

    def __init__(self, config: Any, setting: Setting) -> None:
        """Raises `DataError` if data is missing, and `ConfigError` if the task does not fit the setting."""
        self.config = config
        self.tokenizer, self._S, self._data, self._seed = setting

    @classmethod
    @abstractmethod
    def make_tokenizer(cls, config: Any, data: Path) -> PreTrainedTokenizerBase:
        """Return a tokenizer for models from scratch, the same one at every call."""

    @property
    def vocab_size(self) -> int:
        """V: token ids are 0 … V-1."""
        return self.tokenizer.vocab_size

    @abstractmethod
    def batch(self, step: int, rows: int, segments: int) -> Batch:
        """Return the training batch of `step`: `rows` documents of about `segments` segments."""

    @abstractmethod
    def evaluate(self, model: SegmentReader, *, samples: int, segments: int) -> dict[str, float]:
        """Score a model on `samples` held-out documents of about `segments` segments, the same ones at every call."""

    def random(self, seed: int, step: int, *, held_out: bool = False) -> np.random.Generator:
        """Return the random generator of a step. Training never uses those of held-out documents."""
        return np.random.default_rng([seed, int(held_out), step])
