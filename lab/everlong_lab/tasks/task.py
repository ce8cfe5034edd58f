"""`Task`: something to be learnt: where its batches come from, and how well a model does it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from everlong_models.memories.base import MemoryModel
from everlong_models.text.tokenizer import Tokenizer


class TaskConfig(BaseModel):
    """What every task is told by a recipe; each task's own config adds its fields. Unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Setting(NamedTuple):
    """What a task is made for.

    `tokenizer`: of the model that learns. `segment_length`: S.
    `data`: the folder of data sets. `seed`: all that a task draws follows from it.
    """

    tokenizer: Tokenizer
    segment_length: int
    data: Path
    seed: int


class Batch(NamedTuple):
    """Documents to learn from.

    `tokens` (B, N) int64; `lengths` (B,): tokens of each row, what stands behind is padding. `targets` (B, N) bool:
    the tokens that are to be predicted. `fresh`: rows begin with an empty memory; else each continues where its row of
    the batch before ended. `idle` (B, segments) bool: the full segments that say nothing that must be remembered, where
    a task knows them.
    """

    tokens: Tensor
    lengths: Tensor
    targets: Tensor
    fresh: bool = True
    idle: Tensor | None = None


class Task(ABC):
    """Batches are a function of the seed and the step alone: whoever knows the step can go on from there."""

    continues: bool = False
    """Whether batches go on where the ones before ended: then all have the same rows and segments."""

    @abstractmethod
    def __init__(self, config: Any, setting: Setting) -> None:
        """Raises `DataError` for data that is not there, `ConfigError` for a setting that the task does not fit."""

    @classmethod
    @abstractmethod
    def make_tokenizer(cls, config: Any, data: Path) -> PreTrainedTokenizerBase:
        """A tokenizer for models from scratch; the same one at every call."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """V: token ids are 0 … V-1."""

    @abstractmethod
    def batch(self, step: int, rows: int, segments: int) -> Batch:
        """The training batch of `step`: `rows` documents of about `segments` segments."""

    @abstractmethod
    def evaluate(self, model: MemoryModel, *, samples: int, segments: int) -> dict[str, float]:
        """Scores on `samples` held-out documents of about `segments` segments, the same ones at every call."""

    def random(self, seed: int, step: int, *, held_out: bool = False) -> np.random.Generator:
        """The random numbers of one step; those of held-out documents are never drawn in training."""
        return np.random.default_rng([seed, int(held_out), step])
