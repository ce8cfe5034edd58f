"""bAbI, tasks 1 to 5 (Weston et al. 2016): short stories of facts, questions about them, answers of one word.

A file's line is `NUMBER sentence`, or `NUMBER question TAB answer TAB numbers`; number 1 begins a new story. A question
is about all sentences of its story before it.
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
    """`facts`: the sentences that were told before, in their order. `answer`: one of the task's `LABELS`. `support`: which
    of the facts it follows from."""

    facts: tuple[str, ...]
    question: str
    answer: str
    support: tuple[int, ...]


def questions(data: Path, task: BabiTask, *, held_out: bool) -> list[list[BabiQuestion]]:
    """The questions of a task, file by file: of en-10k its training questions, or (`held_out`) its test questions.

    Where training questions of en-10k are missing, as qa3's are, they are those made later (`generated`, shorter stories
    than the released ones) and those of `en`, a tenth as many; to be drawn from equally often. Raises `DataError`.
    """
    folder = text.find(data, "babi")
    part = "test" if held_out else "train"
    files = sorted(folder.rglob(f"en-10k/{task}_*_{part}.txt"))
    if not files and not held_out:
        files = [file for place in ("generated", "en") for file in sorted(folder.rglob(f"{place}/{task}_*_train.txt"))]
    if not files:
        raise DataError(f"{folder} holds no en-10k/{task}_*_{part}.txt")
    return [read(file, LABELS[task]) for file in files]


def read(file: Path, labels: tuple[str, ...]) -> list[BabiQuestion]:
    """The questions of one file, whose answers are `labels`. Raises `DataError` naming file and line."""
    found: list[BabiQuestion] = []
    facts: dict[int, str] = {}  # by number, in their order
    last = 0
    for number, line in enumerate(text.read(file).splitlines(), 1):
        where = f"{file}, line {number}"
        counted, _, told = line.strip().partition(" ")
        if not counted.isdecimal() or not told.strip():
            raise DataError(f"{where}: must be a number and a sentence, found {line[:60]!r}")
        if int(counted) not in (1, last + 1):
            raise DataError(f"{where}: number {counted} after {last}; a line is missing")
        last = int(counted)
        if last == 1:
            facts = {}
        question, asked, rest = told.partition("\t")
        if not asked:
            facts[last] = told.strip()
            continue
        answer, _, numbers = (part.strip() for part in rest.partition("\t"))
        if answer not in labels:
            raise DataError(f"{where}: the answer {answer!r} is none of {', '.join(labels)}")
        try:
            order = list(facts)
            support = tuple(sorted(order.index(int(fact)) for fact in numbers.split()))
            if not support:
                raise ValueError
        except ValueError:
            raise DataError(f"{where}: the facts {numbers!r} that it follows from were not told before") from None
        found.append(BabiQuestion(tuple(facts.values()), question.strip(), answer, support))
    if not found:
        raise DataError(f"{file} holds no question")
    return found
