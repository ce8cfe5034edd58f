"""BABILong (Kuratov et al. 2024): bAbI's facts, in order, spread over book text, with the question at the end.

    head  [prompt]  noise fact noise … fact noise  separator  question  ask  answer

in the tokenizer's chat format. Facts and questions come from `babi`, with its training and test split. Training noise
comes from the books that are not held out, evaluation noise from those that are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field
from transformers import PreTrainedTokenizerBase

from everlong_lab.corpora import text, vocabulary
from everlong_lab.corpora.haystack import Haystack, hide
from everlong_lab.tasks import babi, greedy
from everlong_lab.tasks.babi import LABELS, BabiQuestion, BabiTask
from everlong_lab.tasks.chat_encoder import ChatEncoder, pad_batch
from everlong_lab.tasks.task import Batch, Setting, Task, TaskConfig
from everlong_models.errors import TokenError
from everlong_models.memories.base import SegmentReader

ANSWER = 16
"""Maximum number of tokens of an answer; answers are one word."""
Prompt = Literal["few-shot", "bare"]
_TRIES = 200


class BabilongConfig(TaskConfig):
    """`tasks`: bAbI tasks, sampled equally often. `noise`: data set of books. `noise_characters`: how much of the books is
    kept in memory for training, and at most for evaluation. `vocabulary`: size of the tokenizer made for a model from
    scratch."""

    name: Literal["babilong"] = "babilong"
    tasks: tuple[BabiTask, ...] = Field(("qa1", "qa2", "qa3", "qa4", "qa5"), min_length=1)
    noise: str = "books-260"
    noise_characters: int = Field(6_000_000, ge=10_000)
    vocabulary: int = Field(1024, ge=512)


class Sample(NamedTuple):
    """A `question` of a `task`, and the tokens to read before its answer."""

    task: BabiTask
    question: BabiQuestion
    haystack: Haystack


class Answer(NamedTuple):
    """The model's answer to a sample, and whether it is right by `is_right`."""

    sample: Sample
    text: str
    right: bool


class Babilong(Task):
    """BABILong with the bare prompt for training, and its held-out samples for evaluation. Raises `DataError`."""

    config: BabilongConfig

    def __init__(self, config: BabilongConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.encoder = ChatEncoder(setting.tokenizer)
        self._encode = functools.lru_cache(50_000)(self.tokenizer.encode)  # few facts, repeated often

    @classmethod
    def make_tokenizer(cls, config: BabilongConfig, data: Path) -> PreTrainedTokenizerBase:
        """Return a byte-level tokenizer made from facts and noise."""
        kept, _ = text.books(text.find(data, config.noise))

        def texts() -> Iterator[str]:
            for task in config.tasks:
                for file in babi.questions(data, task, held_out=False):
                    yield from (" ".join(("", *each.facts, each.question, each.answer)) for each in file[:3000])
            yield from (" ".join(text.read(book)[:50_000].split()) for book in kept)

        return vocabulary.byte_level(texts(), config.vocabulary)

    @functools.cached_property
    def _noise(self) -> text.Noise:
        return text.noise(self._data, self.config.noise, self.config.noise_characters, self.tokenizer)

    @functools.cached_property
    def _held_out(self) -> text.Noise:
        return text.noise(self._data, self.config.noise, self.config.noise_characters, self.tokenizer, held_out=True)

    @functools.cached_property
    def _questions(self) -> dict[BabiTask, list[list[BabiQuestion]]]:
        return {task: babi.questions(self._data, task, held_out=False) for task in self.config.tasks}

    def batch(self, step: int, rows: int, segments: int) -> Batch:
        random = self.random(self._seed, step)
        examples = []
        for _ in range(rows):
            task = self.config.tasks[random.integers(len(self.config.tasks))]
            question, length = self._sample(random, task, segments)
            haystack = self._hide(random, question, self._noise, "bare", task, length)
            examples.append(self.encoder.example(haystack.ids(), question.answer))
        return pad_batch(examples)

    def _sample(self, random: np.random.Generator, task: BabiTask, segments: int) -> tuple[BabiQuestion, int]:
        """Sample a question that fits into `segments` segments, and a document length in tokens, without the answer.

        Any length that ends in the last segment is possible, so that questions occur everywhere in a segment.
        """
        files = self._questions[task]
        for _ in range(_TRIES):
            file = files[random.integers(len(files))]
            question = file[random.integers(len(file))]
            least = self._least(question, "bare", task)
            most = segments * self._S - len(self.encoder.answer(question.answer))
            if least <= most:
                return question, int(random.integers(max(least, most - self._S + 1), most + 1))
        raise TokenError(f"no question of {task} fits into {segments} segments of {self._S} tokens")

    def samples(
        self,
        task: BabiTask,
        length: int | None,
        count: int,
        *,
        seed: int,
        prompt: Prompt = "bare",
        room: int = ANSWER,
        fewer: bool = False,
    ) -> list[Sample]:
        """Return held-out samples of exactly `length` tokens: prompt, question, and `room` tokens for the answer.

        `length` None: facts without noise. All lengths use the same questions, except those that do not fit. Raises
        `TokenError` if fewer than `count` fit, or, with `fewer`, if none does.
        """
        questions = babi.questions(self._data, task, held_out=True)[0]
        number = list(LABELS).index(task)
        order = np.random.default_rng([seed, 1, number]).permutation(len(questions))
        most = None if length is None else length - room
        fitting = (questions[i] for i in order if most is None or self._least(questions[i], prompt, task) <= most)
        found: list[Sample] = []
        for question in fitting:
            if len(found) == count:
                break
            random = np.random.default_rng([seed, 2, number, length or 0, len(found)])
            found.append(Sample(task, question, self._hide(random, question, self._held_out, prompt, task, most)))
        if len(found) < (1 if fewer else count):
            raise TokenError(f"{len(found)} questions of {task} fit into {length} tokens, need {count}")
        return found

    def evaluate(self, model: SegmentReader, *, samples: int, segments: int) -> dict[str, float]:
        """Return `accuracy` over `samples` questions, spread evenly over the tasks, and the accuracy of each task.

        Uses fewer questions where fewer fit. `remembered` is the accuracy where all supporting facts precede the last
        segment, so that the answer can only come from the memory; it is absent if there is no such sample.
        """
        shares = [len(part) for part in np.array_split(np.arange(samples), len(self.config.tasks))]
        right: list[bool] = []
        remembered: list[bool] = []
        scores: dict[str, float] = {}
        for task, share in zip(self.config.tasks, shares, strict=True):
            if share:
                room = max(len(self.encoder.answer(label)) for label in LABELS[task])
                chosen = self.samples(task, segments * self._S, share, seed=0, room=room, fewer=True)
                found = self.answers(model, chosen)
                scores[task] = sum(answer.right for answer in found) / len(found)
                right += [answer.right for answer in found]
                remembered += [answer.right for answer in found if self._is_far(answer.sample)]
        if remembered:
            scores["remembered"] = sum(remembered) / len(remembered)
        return {"accuracy": sum(right) / len(right), **scores}

    def _is_far(self, sample: Sample) -> bool:
        """Return whether all supporting facts end before the segment in which the answer starts."""
        ends = sample.haystack.ends()
        border = (len(sample.haystack) - 1) // self._S * self._S
        return all(ends[fact] <= border for fact in sample.question.support)

    def answers(
        self,
        model: SegmentReader,
        samples: Sequence[Sample],
        *,
        rows: int = 16,
        progress: Callable[[], None] = lambda: None,
    ) -> list[Answer]:
        """Return the model's greedy answers. Up to `rows` samples of one length are read at once. `progress` is called after each."""
        found = []
        decode = self.tokenizer.decode
        for _, group in groupby(
            sorted(samples, key=lambda sample: len(sample.haystack)), key=lambda s: len(s.haystack)
        ):
            same = list(group)
            for some in (same[first : first + rows] for first in range(0, len(same), rows)):
                state, tokens = greedy.read_stream(model, [sample.haystack.pieces() for sample in some])
                answers = greedy.answer(model, state, tokens, most=ANSWER, ends=self.encoder.ends)
                for sample, ids in zip(some, answers, strict=True):
                    content = decode(ids)
                    right = is_right(content, sample.question, LABELS[sample.task])
                    found.append(Answer(sample, content, right))
                    progress()
        return found

    def _least(self, question: BabiQuestion, prompt: Prompt, task: BabiTask) -> int:
        before, facts, after = self._parts(question, prompt, task)
        return len(before) + sum(map(len, facts)) + len(after)

    def _parts(
        self, question: BabiQuestion, prompt: Prompt, task: BabiTask
    ) -> tuple[list[int], list[list[int]], list[int]]:
        facts = [self._encode(f" {fact}") for fact in question.facts]
        if prompt == "bare":
            return self.encoder.head(), facts, self.encoder.question(question.question)
        return (
            self.encoder.head(f"{_PROMPTS[task]}\n\nText:"),
            facts,
            self.encoder.question(f"Question: {question.question} Answer with one word."),
        )

    def _hide(
        self,
        random: np.random.Generator,
        question: BabiQuestion,
        noise: text.Noise,
        prompt: Prompt,
        task: BabiTask,
        length: int | None,
    ) -> Haystack:
        before, facts, after = self._parts(question, prompt, task)
        return hide(random, noise, before=before, needles=facts, after=after, length=length)


def is_right(answer: str, question: BabiQuestion, labels: Sequence[str]) -> bool:
    """Return whether the answer is right, by the rule of the benchmark's own scorer.

    Of the answer's first sentence, in lower case: the task's labels that occur in it, without those that occur in the
    question, must be exactly the expected label.
    """
    first, asked = answer.lower().split(".")[0], question.question.lower()
    named = {label.lower() for label in labels if label.lower() in first and label.lower() not in asked}
    return named == {question.answer.lower()}


_WHERE = "The text below has facts about people, places and things hidden in it. Answer the question from these facts alone. "
_PROMPTS: dict[BabiTask, str] = {
    "qa1": _WHERE + "A person is where they went last.\n\n"
    "Text: Alan went to the garage. Rose moved to the beach. Alan travelled to the shop.\n"
    "Question: Where is Alan?\nAnswer: shop\n\n"
    "Text: Rose moved to the library. Alan went to the park. Peter went to the shop.\n"
    "Question: Where is Rose?\nAnswer: library",
    "qa2": _WHERE + "A thing goes where the person goes who has it, and stays where it was put down.\n\n"
    "Text: Alan went to the garage. Alan took the bottle. Alan moved to the shop.\n"
    "Question: Where is the bottle?\nAnswer: shop\n\n"
    "Text: Rose got the key. Rose went to the park. Rose put down the key. Rose went to the library.\n"
    "Question: Where is the key?\nAnswer: park",
    "qa3": _WHERE + "A thing goes where the person goes who has it, and stays where it was put down.\n\n"
    "Text: Alan took the bottle. Alan went to the garage. Rose went to the park. Alan moved to the shop.\n"
    "Question: Where was the bottle before the shop?\nAnswer: garage\n\n"
    "Text: Rose got the key. Rose went to the park. Rose went to the library. Rose moved to the beach.\n"
    "Question: Where was the key before the library?\nAnswer: park",
    "qa4": _WHERE + "\n\n"
    "Text: The garage is north of the shop. The park is south of the shop.\n"
    "Question: What is north of the shop?\nAnswer: garage\n\n"
    "Text: The library is west of the beach. The beach is west of the park.\n"
    "Question: What is the beach west of?\nAnswer: park",
    "qa5": _WHERE + "\n\n"
    "Text: Alan took the bottle there. Alan gave the bottle to Rose. Peter went to the shop.\n"
    "Question: Who did Alan give the bottle to?\nAnswer: Rose\n\n"
    "Text: Peter got the key there. Peter handed the key to Alan. Alan moved to the park.\n"
    "Question: What did Peter give to Alan?\nAnswer: key",
}
"""Prompts like the benchmark's, with names and places that its questions do not use."""
