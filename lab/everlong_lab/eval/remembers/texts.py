"""Held-out documents of a given length with questions about them, for `everlong eval remembers`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from everlong_lab.corpora.sources import DataSplit, Source, SourceQuestion, read
from everlong_models.errors import DataError

Kind = Literal["gist", "detail"]

SETS: dict[str, tuple[str, Kind]] = {
    "squality": ("squality", "gist"),
    "qmsum": ("qmsum", "gist"),
    "fairytaleqa": ("fairytaleqa", "detail"),
    "squad": ("squad2_dev_half", "detail"),
}
"""Sets by name: their data set, and what their questions are about: a text as a whole, or one sentence of it."""
_BRIEFLY = {"gist": "", "detail": " Answer in a few words."}
"""Added to questions, since the references of one kind are paragraphs and those of the other a few words."""
_PARTS: dict[str, DataSplit] = {"tune": "validation", "test": "test"}
_JOINT = "\n\n"


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with its reference answers; `source`: the text that it is about, which is in the document."""

    question: str
    answers: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Remembered:
    """A document: one or more texts of a set, one after the other, about all of which there are questions."""

    name: str
    set: str
    kind: Kind
    length: int
    text: str
    sources: dict[str, str]
    questions: tuple[Asked, ...]


def documents(
    data: Path, name: str, length: int, split: str, *, count: Callable[[str], int], questions: int, seed: int
) -> Iterator[Remembered]:
    """Yield documents of the set `name` with at least `length` tokens by `count`, each of other texts, as long as there are any.

    At most `questions` are asked about each, chosen by `seed`. Raises `DataError`.
    """
    folder, kind = SETS[name]
    stored = read(data, folder, _PARTS[split])
    sources = [source for source in (_articles(stored) if name == "squad" else stored) if _questions(name, source)]
    if not sources:
        raise DataError(f"{data}: no text of {name} has questions in the {split} split")
    rng = random.Random(seed)  # noqa: S311 - for samples
    rng.shuffle(sources)
    taken: dict[str, str] = {}
    asked: list[Asked] = []
    tokens = number = 0
    for source in sources:
        text = source.joint.join(source.parts)
        taken[source.name] = text
        asked += [Asked(one.question + _BRIEFLY[kind], one.answers, source.name) for one in _questions(name, source)]
        tokens += count(text)
        if tokens >= length:
            chosen = sorted(rng.sample(range(len(asked)), min(questions, len(asked))))
            joined = _JOINT.join(taken.values())
            yield Remembered(
                f"{name}-{length}-{number}", name, kind, length, joined, taken, tuple(asked[n] for n in chosen)
            )
            taken, asked, tokens, number = {}, [], 0, number + 1


def _articles(paragraphs: Sequence[Source]) -> list[Source]:
    """Join the paragraphs of each article, which are named "TITLE NUMBER"."""
    return [
        Source(
            title,
            tuple(part for one in parts for part in one.parts),
            _JOINT,
            tuple(q for one in parts for q in one.questions),
        )
        for title, grouped in groupby(paragraphs, key=lambda paragraph: paragraph.name.rpartition(" ")[0])
        if (parts := list(grouped))
    ]


def _questions(name: str, source: Source) -> list[SourceQuestion]:
    """Return the answerable questions that say what they are about even if the document has other texts.

    SQuALITY's first question asks for the plot of "the story"; QMSum's specific queries are about parts of a meeting.
    """
    answered = [one for one in source.questions if one.answers and all(answer.strip() for answer in one.answers)]
    if name == "squality":
        return answered[1:]
    return [one for one in answered if one.parts is None] if name == "qmsum" else answered
