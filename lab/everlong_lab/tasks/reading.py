"""Questions about documents of any length: a text of a data set, unrelated book text before and after it, the question.

    head  noise  text  noise  separator  question  ask  answer

in the chat format of the tokenizer. Of a text that is longer than the room, a stretch is told that holds what the
answer follows from. Questions that the text does not answer, SQuAD's own or those of another text, are answered by
`REFUSAL`. Instructions are questions without a text.
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
from everlong_lab.corpora.sources import SOURCES, SourceQuestion, Source, read
from everlong_lab.tasks.dialogue import perplexity
from everlong_lab.tasks.chat_encoder import ChatEncoder, Example, pad_batch
from everlong_lab.tasks.task import Batch, Setting, Task, TaskConfig
from everlong_models.errors import TokenError
from everlong_models.memories.base import MemoryModel

REFUSAL = "The text does not say."
"""As the server asks for it where it finds nothing about a question."""
_TRIES = 500


class ReadingConfig(TaskConfig):
    """`sources`: data sets, and how often each is drawn from relative to the others. `noise`: the data set of books,
    `noise_characters` of which are kept in memory. `padded`: the share of documents with noise around the text.
    `elsewhere`: the share of questions that are asked about another text of their data set. `answer`: the most tokens of
    an answer. `vocabulary`: tokens of the tokenizer that is made for a model from scratch."""

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
                raise ValueError(f"no data set {name!r} of this kind; there are {', '.join(SOURCES)}")
            if not weight > 0:
                raise ValueError(f"the weight of {name} must be positive, not {weight}")
        return sources


class Reading(Task):
    """Questions about documents. Raises `DataError`, `TokenError` where no question fits."""

    def __init__(self, config: ReadingConfig, setting: Setting) -> None:
        self.config = config
        self.encoder = ChatEncoder(setting.tokenizer)
        self._seed = setting.seed
        self._S = setting.segment_length
        self._data = setting.data
        weights = np.array(list(config.sources.values()))
        self._weights = weights / weights.sum()
        self._encode = functools.lru_cache(20_000)(self.encoder.tokenizer.encode)  # the same parts come again
        for name in config.sources:
            text.find(self._data, name)

    @classmethod
    def make_tokenizer(cls, config: ReadingConfig, data: Path) -> PreTrainedTokenizerBase:
        """Byte-level, from the texts that are not held out, and their questions."""
        found = (source for name in config.sources for source in read(data, name, "train"))
        texts = ("\n".join((*source.parts, *(asked.question for asked in source.questions[:5]))) for source in found)
        return vocabulary.byte_level(texts, config.vocabulary)

    @property
    def vocab_size(self) -> int:
        return self.encoder.tokenizer.vocab_size

    @functools.cached_property
    def _learnt(self) -> list[list[Source]]:
        return [read(self._data, name, "train") for name in self.config.sources]

    @functools.cached_property
    def _noise(self) -> text.Noise:
        kept, _ = text.books(text.find(self._data, self.config.noise))
        return text.Noise(text.middles(kept, self.config.noise_characters), self.encoder.tokenizer)

    @functools.cached_property
    def _held_out(self) -> tuple[list[list[Source]], text.Noise]:
        _, books = text.books(text.find(self._data, self.config.noise))
        noise = text.Noise(text.middles(books, min(self.config.noise_characters, 2_000_000)), self.encoder.tokenizer)
        return [read(self._data, name, "validation") for name in self.config.sources], noise

    def batch(self, step: int, rows: int, segments: int) -> Batch:
        random = self.random(self._seed, step)
        return pad_batch([self._line(random, self._learnt, self._noise, segments) for _ in range(rows)])

    def evaluate(self, model: MemoryModel, *, samples: int, segments: int) -> dict[str, float]:
        """`perplexity` of a token of the answers to `samples` held-out questions."""
        sources, noise = self._held_out
        random = self.random(0, segments, held_out=True)
        lines = [self._line(random, sources, noise, segments) for _ in range(samples)]
        return {"perplexity": perplexity(model, lines)}

    def _line(self, random: np.random.Generator, sources: list[list[Source]], noise: text.Noise, segments: int) -> Example:
        most = segments * self._S
        for _ in range(_TRIES):
            found = sources[random.choice(len(sources), p=self._weights)]
            source = found[random.integers(len(found))]
            asked = source.questions[random.integers(len(source.questions))]
            padded = bool(random.random() < self.config.padded)
            if source.parts and random.random() < self.config.elsewhere and len(found) > 1:
                other = found[random.integers(len(found))]
                if not other.parts or other.parts == source.parts:
                    continue
                source, asked = other, SourceQuestion(asked.question, (), (0,))
            answer = asked.answers[random.integers(len(asked.answers))] if asked.answers else REFUSAL
            given = self.encoder.answer(answer)
            after = self.encoder.question(asked.question, document=bool(source.parts) or padded)
            # A blank line at both ends, where there is noise for it to be told from.
            room = most - len(given) - len(self.encoder.head()) - len(after) - 4
            if len(given) > self.config.answer or room < 0:
                continue
            told = self._stretch(random, source, asked, room)
            if told is None:
                continue
            parts = [self.encoder.tokenizer.encode(f"\n\n{told}\n\n" if padded else told)] if told else []
            least = len(self.encoder.head()) + sum(map(len, parts)) + len(after)
            if least + len(given) > most:
                continue
            # Any length that ends in the last segment, so that questions stand everywhere in a segment.
            longest = most - len(given)
            length = int(random.integers(max(least, longest - self._S + 1), longest + 1)) if padded else None
            hidden = hide(random, noise, before=self.encoder.head(), told=parts, after=after, length=length)
            return self.encoder.example(hidden.ids(), answer)
        raise TokenError(
            f"{segments} segments of {self._S} tokens hold no question of {', '.join(self.config.sources)}"
        )

    def _stretch(self, random: np.random.Generator, source: Source, asked: SourceQuestion, room: int) -> str | None:
        """As much of the text as `room` tokens hold, with the parts that the answer follows from; None if they don't."""
        if not source.parts:
            return ""
        joint = len(self._encode(source.joint)) + 1 if source.joint else 0
        sizes = [len(self._encode(part)) + joint for part in source.parts]
        start, end = (asked.parts[0], asked.parts[-1] + 1) if asked.parts else (0, len(sizes))
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
