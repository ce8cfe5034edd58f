"""`everlong eval grounded`: memory alone, recall alone, both, neither; beside what the backbone could do at best and at
worst. Through the server's own parts: Redis, reading, passages, search, template, engine."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from everlong_lab.eval.answer_scores import squad
from everlong_lab.eval.grounded.backbone_baseline import BackboneBaseline
from everlong_lab.eval.grounded.hiding import DocumentQuestion, HaystackDocument, Novels, books, documents, rank, stated
from everlong_lab.eval.grounded.questions import SETS, Span, Split, SourceText, texts
from everlong_lab.eval.grounded.scores import Mean, declines, holds, mean, ratio
from everlong_lab.harness.report import Report, Target
from everlong_models import Model, SamplingParams
from everlong_models.errors import DataError
from everlong_server.engine.answering.grounding import TEMPLATE, Recall, Template, asks, choose, words_of
from everlong_server.engine.answering.sessions import SessionTurns
from everlong_server.engine.answering.turn import TurnRunner
from everlong_server.errors import DocumentFailed
from everlong_server.observability.metrics import Metrics
from everlong_server.process.loading import load
from everlong_server.services import Services, running
from everlong_server.settings import Settings
from everlong_server.store.records import Document, reading_id
from everlong_server.store.redis.embedded import EmbeddedRedis
from everlong_server.store.texts.search_only import SearchOnlyTexts

WAYS = {
    "neither": "the question alone",
    "memory": "what the model has read is in its memory; no passages",
    "recall": "passages of the document before the question; an empty memory",
    "both": "as the server answers",
    "ceiling": "the right passage before the question, and nothing else",
    "floor": "the backbone by itself, on the end of the document that its own positions hold",
}
"""What an answer can rest on."""

REFUSALS = {"asked": "wrongly", "elsewhere": "what is not in it", "impossible": "what it nearly holds"}
"""Kinds of questions, and what it means to refuse them."""

TEMPLATES = {
    "told": TEMPLATE,
    "passages": Template("Passages from the text above that may help to answer:\n\n", "\n\n[…]\n\n", "\n\nQuestion: "),
    "plain": Template("", "\n\n", "\n\n"),
}
"""The one that the server uses and those it was measured against."""

_IN_VAIN = 50
"""Documents in a row without a new question, until there is none: of a text only a stretch may fit."""

BRIEFLY = " Answer in a few words."
"""Said with every question, in every way: the references are a few words, and F1 counts every word too many."""


@dataclass(frozen=True, slots=True)
class GroundedPlan:
    """What is measured. `samples`: questions a set and length that are answered; `searches`: that are searched for
    (which needs no model). `recall`: None is what the server does by itself. `floor`: positions that the floor has."""

    sets: tuple[str, ...] = tuple(SETS)
    lengths: tuple[int, ...] = (2_000, 8_000, 32_000)
    ways: tuple[str, ...] = tuple(WAYS)
    samples: int = 60
    searches: int = 300
    split: Split = "test"
    seed: int = 0
    template: str = "told"
    recall: Recall | None = None
    floor: int = 8192
    max_tokens: int = 32


@dataclass(slots=True)
class GroundedScores:
    """What was found for one set and length. `scores`: by way, (F1, exact match, answer within, declined) of each question in
    the same order. `declined`: of answers to questions that the text does not answer, 1 where the model said so."""

    name: str
    length: int
    tokens: list[int] = field(default_factory=list)
    ranks: list[int | None] = field(default_factory=list)
    """Of the questions whose answers are `stated`."""
    ranked: list[str] = field(default_factory=list)
    """The texts that these are about."""
    untold: int = 0
    """The other questions."""
    shares: dict[str, list[float]] = field(default_factory=dict)
    """By kind of question, the share of each that the best passage has. `asked`: of this document; `elsewhere`: of the
    document before; `impossible`: of this document's passages, which don't hold the answer."""
    refused: dict[str, list[float]] = field(default_factory=dict)
    """Likewise, 1 where nothing was found about what is asked: the model is told to say so."""
    sources: dict[str, list[str]] = field(default_factory=dict)
    """Likewise, the text that each is about."""
    scores: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    declined: list[float] = field(default_factory=list)
    answered: int = 0
    """Questions that were asked in every way."""
    answers: list[dict[str, Any]] = field(default_factory=list)

    def keep(self, way: str, asked: DocumentQuestion, answer: str, score: float) -> None:
        """For the file."""
        self.answers.append(
            {"set": self.name, "length": self.length, "way": way, "question": asked.question,
             "references": asked.answers, "answer": answer, "score": score}
        )  # fmt: skip


Tell = Callable[[str, float], None]
"""Told what is being measured, and which share of all is done."""


def evaluate(settings: Settings, plan: GroundedPlan, data: Path, console: Console) -> tuple[Report, list[GroundedScores]]:
    """The figures, and what they were made of. `data`: the folder of data sets; archives are unpacked to the user's cache.

    `console` shows how far it is. Raises `DataError`, and what a server raises that cannot start.
    """
    if plan.ways:
        squad("", [""])  # what it needs is there, before an hour is spent
    # A short path: a Unix socket is to be in it.
    with (
        tempfile.TemporaryDirectory(prefix="everlong-") as folder,
        Bar(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console) as bar,
    ):
        task = bar.add_task("loading", total=1.0)
        found = {name: texts(data, name, plan.split) for name in plan.sets}
        model = load(settings, lambda message: bar.update(task, description=message))
        novels = Novels(books(data / "books"), lambda text: len(model.tokenizer.encode(text)))
        return asyncio.run(
            _evaluate(
                settings.model_copy(update={"data_dir": Path(folder), "redis_url": None, "blob_url": None}), model, plan,
                found, novels, lambda what, done: bar.update(task, description=what, completed=done),
            )
        )  # fmt: skip


async def _evaluate(
    settings: Settings, model: Model, plan: GroundedPlan, found: dict[str, list[SourceText]], novels: Novels, tell: Tell
) -> tuple[Report, list[GroundedScores]]:
    began, cells = time.monotonic(), []
    async with _served(settings, model) as services:
        for at, (name, length) in enumerate((name, length) for name in plan.sets for length in plan.lengths):
            cell = GroundedScores(name, length)

            def progress(done: float, at: int = at, cell: GroundedScores = cell) -> None:
                tell(f"{cell.name} at {cell.length:,}", (at + done) / len(plan.sets) / len(plan.lengths))

            await _measure(services, plan, cell, found[name], novels, progress)
            cells.append(cell)
    minutes = (time.monotonic() - began) / 60
    return _report(plan, model, cells, minutes), cells


@contextlib.asynccontextmanager
async def _served(settings: Settings, model: Model) -> AsyncIterator[Services]:
    """The parts of a server around `model`, with a Redis of its own."""
    redis = EmbeddedRedis(settings.data_dir)
    redis.start()  # not on a thread: the child asks to die with the thread that made it
    try:
        async with running(settings, model, redis.url, Metrics()) as services:
            yield services
    finally:
        redis.stop()


async def _measure(
    services: Services, plan: GroundedPlan, cell: GroundedScores, of: Sequence[SourceText], novels: Novels, tell: Callable[[float], None]
) -> None:
    recall, shelf, template = plan.recall or services.recall, SearchOnlyTexts(services.blobs), TEMPLATES[plan.template]
    answers = _Answers(services, plan, recall)
    wanted = max(plan.samples if plan.ways else 0, plan.searches)

    async def search(kind: str, document: Document, asked: DocumentQuestion) -> list[Span]:
        question, words = asked.question, words_of(asked.question, None)
        passages = await shelf.passages.search([document.id], words, recall.passages) if words else []
        evidence, _ = choose(passages, "", recall.tokens, answers.count, template)
        cell.sources.setdefault(kind, []).append(asked.source)
        cell.shares.setdefault(kind, []).append(max((passage.share for passage in passages), default=0.0))
        cell.refused.setdefault(kind, []).append(float(not evidence and asks(question)))
        return [(passage.start, passage.end) for passage in evidence]

    before: list[DocumentQuestion] = []
    async for hidden, new in _new(of, novels, cell, answers.count, plan.seed, answerable=True):
        asked = new[: wanted - len(cell.ranks)]
        document = await shelf.put(hidden.text)
        cell.tokens.append(hidden.tokens)
        for question in asked:
            evidence = await search("asked", document, question)
            if stated(hidden, question):
                cell.ranks.append(rank(hidden, question, evidence))
                cell.ranked.append(question.source)
            else:
                cell.untold += 1
        for question in before:
            await search("elsewhere", document, question)
        before = asked
        if plan.ways and cell.answered < plan.samples:
            await answers.add(cell, hidden, document, asked[: plan.samples - cell.answered])
        await shelf.remove(document)
        tell(len(cell.ranks) / wanted)
        if len(cell.ranks) >= wanted:
            break
    if not cell.ranks:
        raise DataError(f"{cell.name}: no question's passages fit into documents of {cell.length} tokens")
    async for hidden, new in _new(of, novels, cell, answers.count, plan.seed, answerable=False):
        document = await shelf.put(hidden.text)
        for question in new:
            await search("impossible", document, question)
        if "recall" in plan.ways:
            await answers.decline(cell, hidden, document, new[: plan.samples - len(cell.declined)])
        await shelf.remove(document)
        if len(cell.refused["impossible"]) >= wanted:
            break


async def _new(
    of: Sequence[SourceText], novels: Novels, cell: GroundedScores, count: Callable[[str], int], seed: int, *, answerable: bool
) -> AsyncIterator[tuple[HaystackDocument, list[DocumentQuestion]]]:
    """Documents, each with those of its questions that none before had, until all were asked or no more are met."""
    left = {(text.name, q.text) for text in of for q in text.questions if bool(q.answers) == answerable}
    found, in_vain = documents(of, novels, cell.length, count, seed, answerable=answerable), 0
    while left and in_vain < _IN_VAIN:
        hidden = await asyncio.to_thread(next, found)
        new = [asked for asked in hidden.questions if (asked.source, asked.question) in left]
        left -= {(asked.source, asked.question) for asked in new}
        in_vain = 0 if new else in_vain + 1
        if new:
            yield hidden, new


class _Answers:
    """Asks a server's parts."""

    def __init__(self, services: Services, plan: GroundedPlan, recall: Recall) -> None:
        settings = services.settings
        self._services, self._plan, self._recall = services, plan, recall
        self._template = TEMPLATES[plan.template]
        turns = TurnRunner(
            services.engine, services.passages, services.token_offsets, services.metrics, services.tracing, services.quota,
            max_message_chars=settings.max_message_chars, template=self._template,
        )  # fmt: skip
        self._session_turns = SessionTurns(
            turns,
            services.engine,
            services.sessions,
            services.documents,
            services.metrics,
            lease_seconds=settings.lease_seconds,
        )
        self._sampling = SamplingParams(temperature=0, max_tokens=plan.max_tokens, seed=plan.seed)
        self.count = lru_cache(1 << 16)(self._count)
        self._places = asyncio.Semaphore(services.engine.max_streams)

    def _count(self, text: str) -> int:
        return len(self._services.model.tokenizer.encode(text))

    async def add(self, cell: GroundedScores, hidden: HaystackDocument, document: Document, asked: Sequence[DocumentQuestion]) -> None:
        """Answers the questions in every way that the plan names."""
        documents, model = self._services.documents, self._services.model
        await documents.create(document, model.fingerprint)
        if {"memory", "both"} & set(self._plan.ways):
            await self._read(document)
        jobs = [(way, question) for way in self._plan.ways for question in asked if way != "floor"]
        contents = await asyncio.gather(*(self._say(way, hidden, document, question) for way, question in jobs))
        if "floor" in self._plan.ways:
            floor = await asyncio.to_thread(BackboneBaseline, model, hidden.text, self._plan.floor)
            jobs += [("floor", question) for question in asked]
            for question in asked:
                contents.append(await asyncio.to_thread(floor.answer, question.question + BRIEFLY, self._sampling))
        for (way, question), content in zip(jobs, contents, strict=True):
            score = (*squad(content, question.answers), holds(content, question.answers), declines(content))
            cell.scores.setdefault(way, []).append(score)
            cell.keep(way, question, content, score[0])
        cell.answered += len(asked)
        await documents.delete(document.id)

    async def decline(self, cell: GroundedScores, hidden: HaystackDocument, document: Document, asked: Sequence[DocumentQuestion]) -> None:
        """Asks what the text does not answer, with passages."""
        documents = self._services.documents
        await documents.create(document, self._services.model.fingerprint)
        for question in asked:
            content = await self._say("recall", hidden, document, question)
            cell.declined.append(declines(content))
            cell.keep("recall, no answer", question, content, declines(content))
        await documents.delete(document.id)

    async def _read(self, document: Document) -> None:
        reading = reading_id(self._services.model.fingerprint, [document.id])
        while (read := await self._services.documents.reading(reading)) is None or read.status != "ready":
            if read is not None and read.status == "failed":
                raise DocumentFailed(f"a document could not be read: {(read.error or {}).get('message')}")
            await asyncio.sleep(0.05)

    async def _say(self, way: str, hidden: HaystackDocument, document: Document, asked: DocumentQuestion) -> str:
        services, content, recall = self._services, asked.question + BRIEFLY, Recall(0, 0)
        remember, read = way in ("memory", "both"), way in ("memory", "both", "recall")
        if way in ("recall", "both"):
            recall = self._recall
        if way == "ceiling":
            content = self._template.before([hidden.passage(asked)]) + content
        session = await services.sessions.create(
            services.model.fingerprint,
            services.model.name,
            [document.id] if read else [],
            remember=remember or not read,
        )
        async with self._places:
            turn = await self._session_turns.send(session.id, content, self._sampling, recall)
            message: dict[str, Any] = {}
            async with contextlib.aclosing(turn.events) as events:
                async for event in events:
                    message = event.get("message", message)
        await services.sessions.delete(session.id)
        return str(message["content"])


def _report(plan: GroundedPlan, model: Model, cells: Sequence[GroundedScores], minutes: float) -> Report:
    rows: list[dict[str, Any]] = []
    targets: list[Target] = []
    for cell in cells:
        sources = cell.sources["asked"]
        hit = mean([float(found is not None) for found in cell.ranks], cell.ranked, plan.seed)
        first = mean([1 / found if found else 0.0 for found in cell.ranks], cell.ranked, plan.seed)
        rows.append(
            _row(cell, "evidence", hit=hit, mrr=first) | {"documents": len(cell.tokens), "left out": cell.untold}
        )
        for way, scores in cell.scores.items():
            columns = zip(("f1", "exact", "within", "declined"), zip(*scores, strict=True), strict=True)
            figures = {name: mean(values, sources[: len(values)], plan.seed) for name, values in columns}
            rows.append(_row(cell, way, **figures))
        if cell.declined:
            about = cell.sources["impossible"][: len(cell.declined)]
            rows.append(_row(cell, "recall, no answer", declined=mean(cell.declined, about, plan.seed)))
        for kind, what in REFUSALS.items():
            if refused := cell.refused.get(kind):
                rows.append(_row(cell, f"refuses {what}", refused=mean(refused, cell.sources[kind], plan.seed)))
        where = f"{cell.name} at {cell.length:,}"
        targets.append(Target(f"{where}: evidence holds the answer", hit.value, 0.9, at_most=False))
        if {"both", "ceiling"} <= cell.scores.keys():
            share = _share([cell], plan.seed)
            rows.append(_row(cell, "both ÷ ceiling", f1=share))
            targets.append(Target(f"{where}: F1 with both ÷ ceiling", share.value, 0.9, at_most=False))
    if len(cells) > 1 and all({"both", "ceiling"} <= cell.scores.keys() for cell in cells):
        every = GroundedScores("all", 0)
        rows.append(_row(every, "both ÷ ceiling", f1=_share(cells, plan.seed)))
    recall = plan.recall
    notes = [f"{way}: {what}" for way, what in WAYS.items() if way in plan.ways] + [
        f"model {model.name}, memory {model.memory_name}, {plan.split} split, seed {plan.seed}, template {plan.template}, "
        f"recall {'as the server has it' if recall is None else recall}, greedy, at most {plan.max_tokens} tokens, "
        f"{minutes:.1f} minutes",
        "left out of evidence: questions whose answers share no word with the part of the text that they are right of",
        "in brackets: 95 % intervals, bootstrapped over the texts that questions are about",
    ]  # fmt: skip
    if model.memory_name == "window" and plan.ways:
        notes.append(
            "memory `window` is none: `memory` is the backbone on the first and last tokens of the document, `neither` on "
            "no document at all"
        )
    return Report("grounded", rows, targets, notes, kind="eval")


def _share(cells: Sequence[GroundedScores], seed: int) -> Mean:
    """F1 with both ÷ ceiling, of the same questions."""
    both, ceiling = ([score[0] for cell in cells for score in cell.scores[way]] for way in ("both", "ceiling"))
    sources = [
        f"{cell.name}: {source}" for cell in cells for source in cell.sources["asked"][: len(cell.scores["both"])]
    ]
    return ratio(both, ceiling, sources, seed)


def _row(cell: GroundedScores, way: str, **figures: Mean) -> dict[str, Any]:
    shown = {name: f"{mean.value:.3f} ({mean.low:.2f}–{mean.high:.2f})" for name, mean in figures.items()}
    columns = dict.fromkeys(("f1", "exact", "within", "declined", "hit", "mrr", "refused"), "") | shown
    counts = {"n": next(iter(figures.values())).count, "documents": "", "left out": ""}
    return {"questions": cell.name, "length": cell.length, "way": way} | columns | counts
