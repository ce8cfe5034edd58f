"""bAbI, tasks 1 to 5 (Weston et al. 2016): short stories of facts, questions about them, answers of one word.

A line is `NUMBER sentence`, or `NUMBER question TAB answer TAB numbers`. Number 1 starts a new story. A question is about
all sentences of its story that precede it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from everlong_lab.corpora import text
from everlong_models.errors import DataError

BabiTask = Literal["qa1", "qa2", "qa3", "qa4", "qa5"]
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
LABELS: dict[BabiTask, tuple[str, ...]] = {
    "qa1": PLACES,
    "qa2": PLACES,
    "qa3": PLACES,
    "qa4": PLACES,
    "qa5": ("Bill", "Fred", "Jeff", "Mary", "apple", "football", "milk"),
}
"""All answers of a task."""


class BabiQuestion(NamedTuple):
    """`facts`: the sentences before the question, in order. `answer`: one of the task's `LABELS`. `support`: indices of the
    facts that the answer follows from."""

    facts: tuple[str, ...]
    question: str
    answer: str
    support: tuple[int, ...]


def questions(data: Path, task: BabiTask, *, held_out: bool) -> list[list[BabiQuestion]]:
    """Return a task's questions, one list per file: en-10k's training questions, or with `held_out` its test questions.

    qa3's training questions of en-10k are missing. They are replaced by generated ones (`generated`, shorter stories than
    the released ones) and those of `en` (a tenth as many); sample from both files equally often. Raises `DataError`.
    """
    folder = text.find(data, "babi")
    part = "test" if held_out else "train"
    files = sorted(folder.rglob(f"en-10k/{task}_*_{part}.txt"))
    if not files and not held_out:
        files = [
            file for source in ("generated", "en") for file in sorted(folder.rglob(f"{source}/{task}_*_train.txt"))
        ]
    if not files:
        raise DataError(f"{folder} has no en-10k/{task}_*_{part}.txt")
    return [read(file, LABELS[task]) for file in files]


def read(file: Path, labels: tuple[str, ...]) -> list[BabiQuestion]:
    """Return the questions of one file, whose answers are `labels`. Raises `DataError` naming file and line."""
    found: list[BabiQuestion] = []
    facts: dict[int, str] = {}  # by line number, in order
    last = 0
    for number, line in enumerate(text.read(file).splitlines(), 1):
        where = f"{file}, line {number}"
        counted, _, sentence = line.strip().partition(" ")
        if not counted.isdecimal() or not sentence.strip():
            raise DataError(f"{where}: must be a number and a sentence, found {line[:60]!r}")
        if int(counted) not in (1, last + 1):
            raise DataError(f"{where}: number {counted} after {last}; a line is missing")
        last = int(counted)
        if last == 1:
            facts = {}
        question, tab, rest = sentence.partition("\t")
        if not tab:
            facts[last] = sentence.strip()
            continue
        answer, _, numbers = (part.strip() for part in rest.partition("\t"))
        if answer not in labels:
            raise DataError(f"{where}: the answer {answer!r} must be one of {', '.join(labels)}")
        try:
            order = list(facts)
            support = tuple(sorted(order.index(int(fact)) for fact in numbers.split()))
            if not support:
                raise ValueError
        except ValueError:
            raise DataError(f"{where}: supporting facts {numbers!r} must be lines of this story before it") from None
        found.append(BabiQuestion(tuple(facts.values()), question.strip(), answer, support))
    if not found:
        raise DataError(f"{file} has no questions")
    return found
