"""`everlong prompts`: write the prompts that the server would build for questions about training texts, with answers.

Texts are hidden in novels and searched as in `everlong eval grounded`, so that a model learns from passages like those it
will get: the right passage among others with the same words. The answer is `REFUSAL` if the right passage was left out on
purpose, if the search found nothing, or if people wrote a question that its text does not answer.
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
from everlong_lab.eval.grounded.report import TEMPLATES
from everlong_lab.harness.search_corpus import SearchCorpus
from everlong_models.errors import DataError
from everlong_models.text.embedder import Embedder
from everlong_server.engine.answering.evidence.grounding import select_passages
from everlong_server.engine.answering.evidence.templates import REFUSAL
from everlong_server.engine.answering.search.question import search_query
from everlong_server.settings import Settings
from everlong_server.store.records import Document
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.passage import Passage

RECALL_PASSAGES: int = Settings.model_fields["recall_passages"].default
_MAX_UNPRODUCTIVE = 100
"""Stop with an error after this many documents in a row without a prompt."""
_ENDINGS = ("", "", " Answer in a few words.", " Answer in a few words.", " Answer briefly.")
"""Ends of questions, equally frequent."""
_INSTRUCT_ENDINGS = ("", "", "", " Answer in a few words.")
"""Ends of questions for the template `instruct`, equally frequent."""


@dataclass(frozen=True, slots=True)
class PromptsPlan:
    """`sets`: sets of questions, from `TRAINING_SETS`. `questions`: number of answerable questions per set. `impossible`:
    number of unanswerable questions of SQuAD. `without`: share of questions whose right passages are left out. `room`:
    choices of the number of tokens for passages. `turns`: maximum number of questions in a chat; the later ones are
    answered by the passages of the first. `lengths`: document lengths in tokens, used in turn. `per_document`: maximum number
    of prompts about one. `passages`: how many the search finds at most. `template`: from `TEMPLATES`."""

    sets: tuple[str, ...] = tuple(TRAINING_SETS)
    questions: int = 1_000
    impossible: int = 300
    without: float = 0.1
    room: tuple[int, ...] = (130, 250, 400)
    turns: int = 3
    lengths: tuple[int, ...] = (2_000, 8_000, 32_000)
    per_document: int = 10
    passages: int = RECALL_PASSAGES
    template: str = "few-words"
    seed: int = 0


async def write(
    plan: PromptsPlan,
    count: Callable[[str], int],
    data: Path,
    to: TextIO,
    progress: Callable[[str, float], None],
    embedder: Embedder | None = None,
) -> int:
    """Write prompts as JSON lines for `everlong_lab.tasks.prompts`; return their number.

    `count` returns the number of tokens of a text. `progress` is called with a set's name and the share of it that is
    done. `embedder`: None to search by words alone. Raises `DataError`.
    """
    tested = {book.name for book in books(data / "books")}
    kept, _ = text.books(text.find(data, "books-260"))
    novels = Novels([book for book in kept if book.name not in tested], count)
    jobs = [(name, True, plan.questions) for name in plan.sets]
    jobs += [("squad", False, plan.impossible)] if "squad" in plan.sets else []
    written = 0
    with tempfile.TemporaryDirectory(prefix="everlong-") as folder:
        writer = _PromptWriter(plan, SearchCorpus(Blobs(f"file://{folder}"), embedder), count, random.Random(plan.seed))  # noqa: S311 - for samples
        for name, answerable, wanted in jobs:
            sources, done, unproductive = texts(data, name, "train"), 0, 0
            sources = [each for each in sources if any(bool(q.answers) == answerable for q in each.questions)]
            # Each text is used for documents of one length.
            shares = [(sources[n :: len(plan.lengths)], length) for n, length in enumerate(plan.lengths)]
            streams = [
                documents(some, novels, length, count, plan.seed, answerable=answerable, every=True)
                for some, length in shares
                if some
            ]
            for stream in itertools.cycle(streams):
                lines = await writer.lines(name, await asyncio.to_thread(next, stream))
                for line in lines:
                    to.write(json.dumps(line, ensure_ascii=False) + "\n")
                    done, written = done + len(line["turns"]), written + 1
                unproductive = 0 if lines else unproductive + 1
                if unproductive > _MAX_UNPRODUCTIVE:
                    raise DataError(f"{name}: {_MAX_UNPRODUCTIVE} documents in a row had no question with an answer")
                progress(name if answerable else f"{name}, not answered", min(1.0, done / wanted))
                if done >= wanted:
                    break
    return written


class _PromptWriter:
    """Turns documents into prompts."""

    def __init__(self, plan: PromptsPlan, texts: SearchCorpus, count: Callable[[str], int], rng: random.Random) -> None:
        self._plan, self._texts, self._count, self._rng = plan, texts, count, rng
        self._template = TEMPLATES[plan.template]

    async def lines(self, name: str, haystack: HaystackDocument) -> list[dict[str, Any]]:
        """Return the prompts about a document, as lines of the file."""
        document = await self._texts.add(haystack.text)
        lines: list[dict[str, Any]] = []
        waiting = list(haystack.questions)
        while waiting and len(lines) < self._plan.per_document:
            question = waiting.pop(0)
            others = [other for other in waiting if other.source == question.source]
            chat = await self._chat(document, haystack, question, others)
            if chat is not None:
                turns, answered = chat
                lines.append({"source": f"{name}: {question.source}", "turns": turns})
                waiting = [other for other in waiting if other not in answered]
        await self._texts.remove(document)
        return lines

    async def _chat(
        self, document: Document, haystack: HaystackDocument, question: DocumentQuestion, others: list[DocumentQuestion]
    ) -> tuple[list[dict[str, Any]], list[DocumentQuestion]] | None:
        """Return the turns of a chat and those of `others` that follow the question in it.

        Returns None if the search missed the answer: other passages may hold it in part, so the right answer is unknown. Also if
        it took the question for one about the whole text.
        """
        rng, template, found = self._rng, self._template, list[Passage]()
        if query := search_query(question.question, None):
            by_sentences = template.gap is not None
            result = await self._texts.passages.find(
                [document.id], query, self._plan.passages, by_sentences=by_sentences
            )
            if result.overview is not None:
                return None
            found = result.passages
        without = bool(question.answers) and rng.random() < self._plan.without
        if without:
            found = [p for p in found if not any(p.start < end and start < p.end for start, end in question.right)]
        evidence, before = select_passages(found, "", rng.choice(self._plan.room), self._count, template)
        pieces = [(p.start, p.end) for p in evidence]
        answers = list(question.answers) if question.answers and evidence and not without else [REFUSAL]
        if answers[0] != REFUSAL and rank(haystack, question, pieces) is None:
            return None
        followers = [other for other in others if other.answers and rank(haystack, other, pieces) is not None]
        followers = followers[: self._plan.turns - 1] if answers[0] != REFUSAL else []
        ending = rng.choice(_ENDINGS if template.gap is None else _INSTRUCT_ENDINGS)
        turns = [{"prompt": (before or template.nothing) + question.question + ending, "answers": answers}]
        # Later turns do not repeat the passages.
        turns += [{"prompt": other.question + ending, "answers": list(other.answers)} for other in followers]
        if not ending:  # `everlong sentences` puts these answers into sentences
            for turn, asked in zip(turns, [question, *followers], strict=True):
                turn["question"] = asked.question
        return turns, followers
