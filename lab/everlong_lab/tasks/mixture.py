"""Several tasks in one run: each document of a batch belongs to one of them, chosen at random.

task:
  name: mixture
  parts:
    - {weight: 3, task: {name: babilong}}
    - {weight: 1, task: {name: continuation}}
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from everlong_lab.tasks.babilong import Babilong, BabilongConfig
from everlong_lab.tasks.continuation import Continuation, ContinuationConfig
from everlong_lab.tasks.dialogue import DialogueConfig, DialogueTask
from everlong_lab.tasks.facts import Facts, FactsConfig
from everlong_lab.tasks.prompts import Prompts, PromptsConfig
from everlong_lab.tasks.reading import Reading, ReadingConfig
from everlong_lab.tasks.task import Batch, Setting, Task, TaskConfig
from everlong_models.errors import ConfigError
from everlong_models.memories.base import SegmentReader

PartChoice = BabilongConfig | ContinuationConfig | DialogueConfig | FactsConfig | PromptsConfig | ReadingConfig
PARTS: dict[str, type[Task]] = {
    "babilong": Babilong,
    "continuation": Continuation,
    "dialogue": DialogueTask,
    "facts": Facts,
    "prompts": Prompts,
    "reading": Reading,
}
"""The tasks that can be mixed: those whose documents start with an empty memory."""


class MixturePart(BaseModel):
    """`weight`: frequency of this task's documents relative to the other parts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weight: float = Field(1.0, gt=0)
    task: Annotated[PartChoice, Field(discriminator="name")]


class MixtureConfig(TaskConfig):
    """`targets`: maximum number of targets per document, chosen at random, so that a long answer does not outweigh many
    short ones."""

    name: Literal["mixture"] = "mixture"
    parts: tuple[MixturePart, ...] = Field(min_length=1)
    targets: int = Field(32, ge=1)


class Mixture(Task):
    """A weighted mixture of tasks. Raises what its parts raise."""

    config: MixtureConfig

    def __init__(self, config: MixtureConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self._parts = [PARTS[part.task.name](part.task, setting) for part in config.parts]
        weights = np.array([part.weight for part in config.parts])
        self._weights = weights / weights.sum()
        sizes = {part.vocab_size for part in self._parts}
        if len(sizes) != 1:
            raise ConfigError("task.parts", sorted(sizes), "must have the same vocabulary size")

    @classmethod
    def make_tokenizer(cls, config: MixtureConfig, data: Path) -> PreTrainedTokenizerBase:
        """Return the tokenizer of the first part."""
        first = config.parts[0].task
        return PARTS[first.name].make_tokenizer(first, data)

    @property
    def vocab_size(self) -> int:
        return self._parts[0].vocab_size

    def batch(self, step: int, rows: int, segments: int) -> Batch:
        """Return documents ordered by length, so that rows computed together have similar lengths."""
        random = np.random.default_rng([self._seed, 3, step])
        counts = random.multinomial(rows, self._weights)
        batches = [
            part.batch(step, int(count), segments) for part, count in zip(self._parts, counts, strict=True) if count
        ]
        longest = max(batch.tokens.shape[1] for batch in batches)
        tokens, targets = (
            torch.cat([F.pad(field, (0, longest - field.shape[1])) for field in fields])
            for fields in ([batch.tokens for batch in batches], [batch.targets for batch in batches])
        )
        lengths = torch.cat([batch.lengths for batch in batches])
        order = lengths.argsort(stable=True)
        return Batch(tokens[order], lengths[order], self._thinned(random, targets)[order])

    def _thinned(self, random: np.random.Generator, targets: torch.Tensor) -> torch.Tensor:
        chosen = torch.zeros_like(targets)
        for row, line in enumerate(targets):
            places = line.nonzero()[:, 0].numpy()
            if len(places) > self.config.targets:
                places = random.choice(places, self.config.targets, replace=False)
            chosen[row, torch.from_numpy(places)] = True
        return chosen

    def evaluate(self, model: SegmentReader, *, samples: int, segments: int) -> dict[str, float]:
        """Return all parts' scores as `PART.SCORE`. Each part is scored on its share of the samples (at least four)."""
        scores: dict[str, float] = {}
        for number, (part, weight) in enumerate(zip(self._parts, self._weights, strict=True)):
            name: str = self.config.parts[number].task.name
            if any(key.startswith(f"{name}.") for key in scores):
                name = f"{name} {number + 1}"
            found = part.evaluate(model, samples=max(4, round(samples * float(weight))), segments=segments)
            scores |= {f"{name}.{key}": value for key, value in found.items()}
        return scores
