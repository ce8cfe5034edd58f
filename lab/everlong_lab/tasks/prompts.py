"""Questions with the passages that the server's search found for them, as written by `everlong prompts`.

    {"source": "a text's name", "turns": [{"prompt": "passages, and the question", "answers": ["one", "another"]}]}

A model learns to use passages from prompts like those it will get from the server. Prompts are in the tokenizer's chat
format, and every answer is a target.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field
from transformers import PreTrainedTokenizerBase

from everlong_lab.corpora import vocabulary
from everlong_lab.corpora.datasets import checked, json_lines
from everlong_lab.corpora.text import is_held_out
from everlong_lab.tasks.chat_encoder import ChatEncoder, Example, pad_batch
from everlong_lab.tasks.dialogue import perplexity
from everlong_lab.tasks.task import Batch, Setting, Task, TaskConfig
from everlong_models.errors import DataError, TokenError
from everlong_models.memories.base import SegmentReader

_HELD_OUT = 20
"""One source in this many is held out."""
_TRIES = 500


class PromptTurn(NamedTuple):
    """A question with its passages. `answers`: equally good references."""

    prompt: str
    answers: tuple[str, ...]


class PromptsConfig(TaskConfig):
    """`file`: JSON lines; a path, or a name in the folder of data sets. `answer`: maximum tokens of an answer.
    `vocabulary`: size of the tokenizer made for a model from scratch."""

    name: Literal["prompts"] = "prompts"
    file: str = "prompts.jsonl"
    answer: int = Field(64, ge=2)
    vocabulary: int = Field(4096, ge=512)


class Prompts(Task):
    """Prompts of a file. Raises `DataError`, and `TokenError` if none fits."""

    config: PromptsConfig

    def __init__(self, config: PromptsConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.encoder = ChatEncoder(setting.tokenizer)
        self._learnt, self._held_out = _read(setting.data, config.file)
        self._encode = functools.lru_cache(20_000)(self.tokenizer.encode)

    @classmethod
    def make_tokenizer(cls, config: PromptsConfig, data: Path) -> PreTrainedTokenizerBase:
        """Return a byte-level tokenizer made from the prompts that are not held out."""
        learnt, _ = _read(data, config.file)
        return vocabulary.byte_level(("\n".join(turn.prompt for turn in turns) for turns in learnt), config.vocabulary)

    def batch(self, step: int, rows: int, segments: int) -> Batch:
        """Return prompts ordered by length, so that rows computed together have similar lengths."""
        random = self.random(self._seed, step)
        examples = [self._example(random, self._learnt, segments) for _ in range(rows)]
        return pad_batch(sorted(examples, key=lambda example: len(example.ids)))

    def evaluate(self, model: SegmentReader, *, samples: int, segments: int) -> dict[str, float]:
        """Return the `perplexity` of the answers to `samples` held-out prompts."""
        random = self.random(0, segments, held_out=True)
        examples = [self._example(random, self._held_out, segments) for _ in range(samples)]
        return {"perplexity": perplexity(model, examples)}

    def _example(self, random: np.random.Generator, lines: list[tuple[PromptTurn, ...]], segments: int) -> Example:
        most = segments * self._S
        for _ in range(_TRIES):
            ids: list[int] = []
            targets: list[bool] = []
            for turn in lines[random.integers(len(lines))]:
                before = self.encoder.turn if ids else self.encoder.head()
                prompt = [*before, *self._encode(turn.prompt), *self.encoder.question("", document=False)]
                answer = self.encoder.answer(turn.answers[random.integers(len(turn.answers))])
                if len(answer) > self.config.answer or len(ids) + len(prompt) + len(answer) > most:
                    break
                ids += prompt + answer
                targets += [False] * len(prompt) + [True] * len(answer)
            if ids:
                return Example(np.array(ids, dtype=np.int64), np.array(targets))
        raise TokenError(f"no prompt of {self.config.file} fits into {segments} segments of {self._S} tokens")


def _read(data: Path, name: str) -> tuple[list[tuple[PromptTurn, ...]], list[tuple[PromptTurn, ...]]]:
    """Return the prompts to learn from and those held out."""
    file = Path(name) if Path(name).is_absolute() or Path(name).exists() else data / name
    parts: tuple[list[tuple[PromptTurn, ...]], list[tuple[PromptTurn, ...]]] = ([], [])
    for where, row in json_lines(file.parent, file.name):
        with checked(where):
            if wrong := [turn["answers"] for turn in row["turns"] if not isinstance(turn["answers"], list)]:
                raise ValueError(f"answers must be a list, found {wrong[0]!r:.40}")
            turns = tuple(PromptTurn(str(turn["prompt"]), tuple(map(str, turn["answers"]))) for turn in row["turns"])
            source = str(row["source"])
            if not turns or not all(turn.answers for turn in turns):
                raise ValueError("a turn lacks answers" if turns else "no turns")
        parts[is_held_out(source, _HELD_OUT)].append(turns)
    if not all(parts):
        raise DataError(
            f"{file} has no {'held-out ' if parts[0] else ''}prompts; one source in {_HELD_OUT} is held out"
        )
    return parts
