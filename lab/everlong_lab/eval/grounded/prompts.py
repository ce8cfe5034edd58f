"""`everlong prompts`: what the server would put before its model for questions of training texts, with their answers.

Texts are hidden in novels and searched as in `everlong eval grounded`, so a model learns from passages as it will be given
them: the right one among others that have the same words. Where it is left out on purpose, or nothing was found, or people
wrote a question that its text does not answer, the answer is `REFUSAL`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from everlong_lab.corpora import text
from everlong_lab.eval.grounded.hiding import DocumentQuestion, HaystackDocument, Novels, books, documents, rank
from everlong_lab.eval.grounded.questions import TRAINING_SETS, texts
from everlong_lab.tasks.reading import REFUSAL
from everlong_models.errors import DataError
from everlong_server.engine.answering.grounding import TEMPLATE, choose, words_of
from everlong_server.store.records import Document
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.search_only import SearchOnlyTexts

_PASSAGES = 16
_LINES = 10
"""Of one document at most so many."""
_IN_VAIN = 100
_BRIEFLY = ("", "", " Answer in a few words.", " Answer in a few words.", " Answer briefly.")


@dataclass(frozen=True, slots=True)
class PromptsPlan:
    """`sets`: of questions, some of `TRAINING_SETS`. `questions`: of each set that have an answer. `impossible`: of SQuAD that have none. `without`: the share of questions whose
    right passages are left out. `room`: tokens for passages, drawn anew for each question. `turns`: questions of a chat at most:
    after the first, others that its passages answer. `lengths`: tokens of the texts, in turn."""

    sets: tuple[str, ...] = tuple(TRAINING_SETS)
    questions: int = 1_000
    impossible: int = 300
    without: float = 0.1
    room: tuple[int, ...] = (130, 250, 400)
    turns: int = 3
    lengths: tuple[int, ...] = (2_000, 8_000, 32_000)
    seed: int = 0


async def write(
    plan: PromptsPlan, count: Callable[[str], int], data: Path, to: TextIO, tell: Callable[[str, float], None]
) -> int:
    """Writes JSON lines as `everlong_lab.tasks.prompts` reads them; how many. `count`: tokens of a text. `tell`: of a
    set, and which share of it is done. Raises `DataError`."""
    tested = {book.name for book in books(data / "books")}
    kept, _ = text.books(text.find(data, "books-260"))
    novels = Novels([book for book in kept if book.name not in tested], count)
    jobs = [(name, True, plan.questions) for name in plan.sets]
    jobs += [("squad", False, plan.impossible)] if "squad" in plan.sets else []
    written = 0
    with tempfile.TemporaryDirectory(prefix="everlong-") as folder:
        maker = _PromptWriter(plan, SearchOnlyTexts(Blobs(f"file://{folder}")), count, random.Random(plan.seed))  # noqa: S311 - for samples
        for name, answerable, wanted in jobs:
            of, done, in_vain = texts(data, name, "train"), 0, 0
            of = [text for text in of if any(bool(asked.answers) == answerable for asked in text.questions)]
            # Each text in documents of one length.
            shares = [(of[n :: len(plan.lengths)], length) for n, length in enumerate(plan.lengths)]
            drawn = [
                documents(some, novels, length, count, plan.seed, answerable=answerable, every=True)
                for some, length in shares
                if some
            ]
            for found in itertools.cycle(drawn):
                lines = await maker.lines(name, await asyncio.to_thread(next, found))
                for line in lines:
                    to.write(json.dumps(line, ensure_ascii=False) + "\n")
                    done, written = done + len(line["turns"]), written + 1
                in_vain = 0 if lines else in_vain + 1
                if in_vain > _IN_VAIN:
                    raise DataError(f"{name}: of {_IN_VAIN} documents no question's answer was found")
                tell(name if answerable else f"{name}, not answered", min(1.0, done / wanted))
                if done >= wanted:
                    break
    return written


class _PromptWriter:
    """Makes lines of documents."""

    def __init__(self, plan: PromptsPlan, shelf: SearchOnlyTexts, count: Callable[[str], int], draw: random.Random) -> None:
        self._plan, self._shelf, self._count, self._draw = plan, shelf, count, draw

    async def lines(self, name: str, hidden: HaystackDocument) -> list[dict[str, Any]]:
        """What is asked about a document, as the file's lines."""
        document = await self._shelf.put(hidden.text)
        lines: list[dict[str, Any]] = []
        waiting = list(hidden.questions)
        while waiting and len(lines) < _LINES:
            asked = waiting.pop(0)
            chat = await self._chat(
                document, hidden, asked, [other for other in waiting if other.source == asked.source]
            )
            if chat is not None:
                turns, answered = chat
                lines.append({"source": f"{name}: {asked.source}", "turns": turns})
                waiting = [other for other in waiting if other not in answered]
        await self._shelf.remove(document)
        return lines

    async def _chat(
        self, document: Document, hidden: HaystackDocument, asked: DocumentQuestion, others: list[DocumentQuestion]
    ) -> tuple[list[dict[str, Any]], list[DocumentQuestion]] | None:
        """A question and those of `others` that are asked after it; None where the passages lack the answer by chance: whether
        they do is known only in part."""
        draw = self._draw
        words = words_of(asked.question, None)
        found = await self._shelf.passages.search([document.id], words, _PASSAGES) if words else []
        without = bool(asked.answers) and draw.random() < self._plan.without
        if without:
            found = [p for p in found if not any(p.start < end and start < p.end for start, end in asked.right)]
        evidence, before = choose(found, "", draw.choice(self._plan.room), self._count)
        pieces = [(p.start, p.end) for p in evidence]
        answers = list(asked.answers) if asked.answers and evidence and not without else [REFUSAL]
        if answers[0] != REFUSAL and rank(hidden, asked, pieces) is None:
            return None
        then = [other for other in others if other.answers and rank(hidden, other, pieces) is not None]
        then = then[: self._plan.turns - 1] if answers[0] != REFUSAL else []
        brief = draw.choice(_BRIEFLY)
        first = {"prompt": (before or TEMPLATE.nothing) + asked.question + brief, "answers": answers}
        # What stands in the chat already is not repeated.
        return [first, *({"prompt": other.question + brief, "answers": list(other.answers)} for other in then)], then
