"""Questions about documents of any length: a text of a data set between unrelated book text, then the question.

    head  noise  text  noise  separator  question  ask  answer

in the tokenizer's chat format. If a text is too long, a stretch of it is used that holds what the answer follows from.
Questions without an answer in the text (SQuAD's own, or questions about another text) are answered by `REFUSAL`.
Instructions are questions without a text.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, field_validator
from transformers import PreTrainedTokenizerBase

from everlong_lab.corpora import text, vocabulary
from everlong_lab.corpora.haystack import hide
from everlong_lab.corpora.sources import SOURCES, Source, SourceQuestion, read
from everlong_lab.tasks.chat_encoder import ChatEncoder, Example, pad_batch
from everlong_lab.tasks.dialogue import perplexity
from everlong_lab.tasks.task import Batch, Setting, Task, TaskConfig
from everlong_models.errors import TokenError
from everlong_models.memories.base import SegmentReader
from everlong_server.engine.answering.evidence.templates import REFUSAL

_TRIES = 500


class ReadingConfig(TaskConfig):
    """`sources`: data sets with their relative frequencies. `noise`: data set of books, of which `noise_characters` are kept
    in memory. `padded`: share of documents with noise around the text. `elsewhere`: share of questions that are asked about
    another text of their data set. `answer`: maximum tokens of an answer. `vocabulary`: size of the tokenizer made for a
    model from scratch."""

    name: Literal["reading"] = "reading"
    sources: dict[str, float] = Field({"fairytaleqa": 1.0}, min_length=1)
    noise: str = "books-260"
    noise_characters: int = Field(4_000_000, ge=10_000)
    padded: float = Field(0.8, ge=0, le=1)
    elsewhere: float = Field(0.05, ge=0, le=1)
    answer: int = Field(256, ge=2)
    vocabulary: int = Field(4096, ge=512)

    @field_validator("sources")
    @classmethod
    def _known(cls, sources: dict[str, float]) -> dict[str, float]:
        for name, weight in sources.items():
            if name not in SOURCES:
                raise ValueError(f"no data set {name!r}; must be one of {', '.join(SOURCES)}")
            if not weight > 0:
                raise ValueError(f"the weight of {name} must be positive, got {weight}")
        return sources


class Reading(Task):
    """Questions about documents. Raises `DataError`, and `TokenError` if no question fits."""

    config: ReadingConfig

    def __init__(self, config: ReadingConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.encoder = ChatEncoder(setting.tokenizer)
        weights = np.array(list(config.sources.values()))
        self._weights = weights / weights.sum()
        self._encode = functools.lru_cache(20_000)(self.tokenizer.encode)  # the same parts are used again
        for name in config.sources:
            text.find(self._data, name)

    @classmethod
    def make_tokenizer(cls, config: ReadingConfig, data: Path) -> PreTrainedTokenizerBase:
        """Return a byte-level tokenizer made from the training texts and their questions."""
        found = (source for name in config.sources for source in read(data, name, "train"))
        texts = ("\n".join((*source.parts, *(each.question for each in source.questions[:5]))) for source in found)
        return vocabulary.byte_level(texts, config.vocabulary)

    @functools.cached_property
    def _learnt(self) -> list[list[Source]]:
        return [read(self._data, name, "train") for name in self.config.sources]

    @functools.cached_property
    def _noise(self) -> text.Noise:
        return text.noise(self._data, self.config.noise, self.config.noise_characters, self.tokenizer)

    @functools.cached_property
    def _held_out(self) -> tuple[list[list[Source]], text.Noise]:
        characters = min(self.config.noise_characters, 2_000_000)
        noise = text.noise(self._data, self.config.noise, characters, self.tokenizer, held_out=True)
        return [read(self._data, name, "validation") for name in self.config.sources], noise

    def batch(self, step: int, rows: int, segments: int) -> Batch:
        random = self.random(self._seed, step)
        return pad_batch([self._example(random, self._learnt, self._noise, segments) for _ in range(rows)])

    def evaluate(self, model: SegmentReader, *, samples: int, segments: int) -> dict[str, float]:
        """Return the `perplexity` of the answers to `samples` held-out questions."""
        sources, noise = self._held_out
        random = self.random(0, segments, held_out=True)
        examples = [self._example(random, sources, noise, segments) for _ in range(samples)]
        return {"perplexity": perplexity(model, examples)}

    def _example(
        self, random: np.random.Generator, sources: list[list[Source]], noise: text.Noise, segments: int
    ) -> Example:
        most = segments * self._S
        for _ in range(_TRIES):
            found = sources[random.choice(len(sources), p=self._weights)]
            source = found[random.integers(len(found))]
            question = source.questions[random.integers(len(source.questions))]
            padded = bool(random.random() < self.config.padded)
            if source.parts and random.random() < self.config.elsewhere and len(found) > 1:
                other = found[random.integers(len(found))]
                if not other.parts or other.parts == source.parts:
                    continue
                source, question = other, SourceQuestion(question.question, (), (0,))
            answer = question.answers[random.integers(len(question.answers))] if question.answers else REFUSAL
            target = self.encoder.answer(answer)
            after = self.encoder.question(question.question, document=bool(source.parts) or padded)
            # 4 tokens for the blank lines that separate the text from noise.
            room = most - len(target) - len(self.encoder.head()) - len(after) - 4
            if len(target) > self.config.answer or room < 0:
                continue
            stretch = self._stretch(random, source, question, room)
            if stretch is None:
                continue
            needles = [self.tokenizer.encode(f"\n\n{stretch}\n\n" if padded else stretch)] if stretch else []
            least = len(self.encoder.head()) + sum(map(len, needles)) + len(after)
            if least + len(target) > most:
                continue
            # Any length that ends in the last segment, so that questions occur everywhere in a segment.
            longest = most - len(target)
            length = int(random.integers(max(least, longest - self._S + 1), longest + 1)) if padded else None
            haystack = hide(random, noise, before=self.encoder.head(), needles=needles, after=after, length=length)
            return self.encoder.example(haystack.ids(), answer)
        raise TokenError(
            f"no question of {', '.join(self.config.sources)} fits into {segments} segments of {self._S} tokens"
        )

    def _stretch(self, random: np.random.Generator, source: Source, question: SourceQuestion, room: int) -> str | None:
        """Return as much of the text as fits into `room` tokens, with the parts that the answer follows from; None if
        these do not fit."""
        if not source.parts:
            return ""
        joint = len(self._encode(source.joint)) + 1 if source.joint else 0
        sizes = [len(self._encode(part)) + joint for part in source.parts]
        start, end = (question.parts[0], question.parts[-1] + 1) if question.parts else (0, len(sizes))
        if sum(sizes[start:end]) > room:
            return None
        while True:
            left = start > 0 and sum(sizes[start - 1 : end]) <= room
            right = end < len(sizes) and sum(sizes[start : end + 1]) <= room
            if not left and not right:
                return source.joint.join(source.parts[start:end])
            if left and (not right or random.random() < 0.5):
                start -= 1
            else:
                end += 1
