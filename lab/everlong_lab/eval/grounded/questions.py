"""Texts with questions about them, as `SourceText` and `Question`: where in a text a person would look an answer up."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Literal

from everlong_lab.corpora.sources import SourceQuestion, DataSplit, Source, read
from everlong_lab.eval.grounded.scores import content_words

Span = tuple[int, int]
Split = Literal["train", "tune", "test"]
"""`train`: for models to learn from. `tune`: for choosing templates and thresholds. `test`: for tables. No text stands in two."""


@dataclass(frozen=True, slots=True)
class Question:
    """`answers`: references, each as good as the others; none if the text does not hold the answer.

    `right`: the parts of the text, as characters (start, end), any of which a person would look the answer up in.
    `places`: where in them an answer stands word for word, if it does.
    """

    text: str
    answers: tuple[str, ...]
    right: tuple[Span, ...]
    places: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class SourceText:
    """A text and what is asked about it. `whole`: it is a document by itself, not one of many short passages."""

    name: str
    text: str
    whole: bool
    questions: tuple[Question, ...]


SETS = {"squad": "squad2_dev_half", "fairytaleqa": "fairytaleqa", "squality": "squality"}
"""The data set of each name; what is measured."""
TRAINING_SETS = {"squad": "squad2_dev_half", "xquad": "xquad_en", "fairytaleqa": "fairytaleqa"}
"""Those whose answers are short, to learn from."""
_SHORT = {"squad", "xquad"}
_PARTS: dict[Split, DataSplit] = {"train": "train", "tune": "validation", "test": "test"}


def texts(data: Path, name: str, split: Split) -> list[SourceText]:
    """The texts of a set, from the folder of data sets. Raises `DataError`."""
    make = _summarised if name == "squality" else _looked_up
    found = []
    for source in read(data, (SETS | TRAINING_SETS)[name], _PARTS[split]):
        text = source.joint.join(source.parts)
        found.append(SourceText(source.name, text, name not in _SHORT, tuple(make(source, text))))
    return found


def _looked_up(source: Source, text: str) -> Iterator[Question]:
    """The right parts are those that the data names; else the whole of it."""
    starts = [0, *accumulate(len(part) + len(source.joint) for part in source.parts)]
    for asked in source.questions:
        numbers = range(len(source.parts)) if asked.parts is None else asked.parts
        right: list[Span] = []
        for number in numbers:
            start, end = starts[number], starts[number] + len(source.parts[number])
            if right and start - right[-1][1] <= len(source.joint):  # parts that follow each other are one
                start = right.pop()[0]
            right.append((start, end))
        yield Question(asked.question, asked.answers, tuple(right), _places(asked.answers, right, text))


def _summarised(source: Source, text: str) -> Iterator[Question]:
    """Nobody noted where an answer stands: the right parts are the three stretches of a hundred words that have most of
    what all answers say (words that the text repeats everywhere weigh less). The first question, for the plot, is left out."""
    words = [match.span() for match in re.finditer(r"\S+", text)]
    stretches = [(words[at][0], words[min(at + 100, len(words)) - 1][1]) for at in range(0, len(words), 50)]
    held = [content_words(text[start:end]) for start, end in stretches]
    common = Counter(word for words in held for word in words)
    for asked in source.questions[1:]:
        yield Question(asked.question, asked.answers, _most_of(asked, stretches, held, common), ())


def _most_of(
    asked: SourceQuestion, stretches: Sequence[Span], held: Sequence[set[str]], common: Counter[str]
) -> tuple[Span, ...]:
    wanted = Counter(word for answer in asked.answers for word in content_words(answer))
    scores = [sum(wanted[word] / common[word] for word in words) for words in held]
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
