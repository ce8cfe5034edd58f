"""Texts with questions, as `SourceText` and `Question`, and where in a text a person would look for an answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Literal

from everlong_lab.corpora.sources import DataSplit, Source, SourceQuestion, read
from everlong_lab.eval.grounded.scores import content_words

Span = tuple[int, int]
Split = Literal["train", "tune", "test"]
"""`train`: to train models. `tune`: to choose templates and thresholds. `test`: for tables. No text is in two of them."""


@dataclass(frozen=True, slots=True)
class Question:
    """`answers`: equally good references; none if the text does not answer the question.

    `right`: spans of the text, in characters, in any of which a person would look for the answer. `places`: spans within
    these in which an answer occurs verbatim.
    """

    text: str
    answers: tuple[str, ...]
    right: tuple[Span, ...]
    places: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class SourceText:
    """A text with questions about it. `whole`: it is a document by itself, not one of many short passages."""

    name: str
    text: str
    whole: bool
    questions: tuple[Question, ...]


SETS = {"squad": "squad2_dev_half", "fairytaleqa": "fairytaleqa", "squality": "squality"}
"""Names of the measured sets, with their data sets."""
TRAINING_SETS = {"squad": "squad2_dev_half", "xquad": "xquad_en", "fairytaleqa": "fairytaleqa"}
"""Sets with short answers, to train on."""
_SHORT = {"squad", "xquad"}
_PARTS: dict[Split, DataSplit] = {"train": "train", "tune": "validation", "test": "test"}


def texts(data: Path, name: str, split: Split) -> list[SourceText]:
    """Return the texts of a set, from the folder of data sets. Raises `DataError`."""
    make = _summarised if name == "squality" else _looked_up
    found = []
    for source in read(data, (SETS | TRAINING_SETS)[name], _PARTS[split]):
        text = source.joint.join(source.parts)
        found.append(SourceText(source.name, text, name not in _SHORT, tuple(make(source, text))))
    return found


def _looked_up(source: Source, text: str) -> Iterator[Question]:
    """Yield questions whose right spans are those named by the data set, or else the whole text."""
    starts = [0, *accumulate(len(part) + len(source.joint) for part in source.parts)]
    for question in source.questions:
        numbers = range(len(source.parts)) if question.parts is None else question.parts
        right: list[Span] = []
        for number in numbers:
            start, end = starts[number], starts[number] + len(source.parts[number])
            if right and start - right[-1][1] <= len(source.joint):  # merge adjacent parts
                start = right.pop()[0]
            right.append((start, end))
        yield Question(question.question, question.answers, tuple(right), _places(question.answers, right, text))


def _summarised(source: Source, text: str) -> Iterator[Question]:
    """Yield questions for a data set that does not say where an answer is, without the first one, which asks for the plot.

    The right spans are the three stretches of a hundred words that share most words with all answers; words that are
    common in the text weigh less.
    """
    words = [match.span() for match in re.finditer(r"\S+", text)]
    stretches = [(words[at][0], words[min(at + 100, len(words)) - 1][1]) for at in range(0, len(words), 50)]
    contents = [content_words(text[start:end]) for start, end in stretches]
    frequency = Counter(word for words in contents for word in words)
    for question in source.questions[1:]:
        right = _best_stretches(question, stretches, contents, frequency)
        yield Question(question.question, question.answers, right, ())


def _best_stretches(
    question: SourceQuestion, stretches: Sequence[Span], contents: Sequence[set[str]], frequency: Counter[str]
) -> tuple[Span, ...]:
    wanted = Counter(word for answer in question.answers for word in content_words(answer))
    scores = [sum(wanted[word] / frequency[word] for word in words) for words in contents]
    best = sorted(range(len(stretches)), key=lambda n: -scores[n])[:3]
    return tuple(stretches[n] for n in sorted(best))


def _places(answers: Sequence[str], right: Sequence[Span], text: str) -> tuple[Span, ...]:
    places: set[Span] = set()
    for answer in answers:
        words = r"\W+".join(map(re.escape, re.findall(r"\w+", answer)))
        if words:
            pattern = re.compile(rf"(?<!\w){words}(?!\w)", re.IGNORECASE)
            places |= {match.span() for start, end in right for match in pattern.finditer(text, start, end)}
    return tuple(sorted(places))
