"""`everlong eval grounded`: answers from memory alone, recall alone, both, or neither, compared with the best and the worst
that the backbone could give. Uses the server's own parts: Redis, reading, passages, search, template, engine."""

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
from everlong_lab.eval.grounded.questions import SETS, SourceText, Span, Split, texts
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
"""What an answer is based on."""

REFUSALS = {"asked": "wrongly", "elsewhere": "what is not in it", "impossible": "what it nearly holds"}
"""Kinds of questions, and what a refusal of each means. `asked`: answered by this document. `elsewhere`: about the document
before. `impossible`: about this document's passages, which do not hold the answer."""

TEMPLATES = {
    "told": TEMPLATE,
    "passages": Template("Passages from the text above that may help to answer:\n\n", "\n\n[…]\n\n", "\n\nQuestion: "),
    "plain": Template("", "\n\n", "\n\n"),
}
"""The template that the server uses, and those it was compared with."""

_MAX_UNPRODUCTIVE = 50
"""Stop after so many documents in a row without a new question; a stretch of a text may not hold all of its questions."""

BRIEFLY = " Answer in a few words."
"""Appended to every question in every way: the references are a few words, and F1 penalises every extra word."""


@dataclass(frozen=True, slots=True)
class GroundedPlan:
    """What to measure. `samples`: number of questions answered per set and length. `searches`: number of questions searched
    for, which needs no model. `recall`: None uses the server's default. `floor`: positions of the backbone baseline."""

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
    """Results for one set and length, as they are written to `--json`.

    `tokens`: lengths of the documents. `ranks`: `rank` of the questions whose answers are `stated`; `ranked`: the texts that
    these are about; `untold`: number of the other questions. `shares`, `refused` and `sources` are by kind of question,
    see `REFUSALS`: the best passage's share of the question's words, 1 where nothing was found so that the model is told
    to refuse, and the text that each question is about. `scores`: by way, (F1, exact match, answer contained, refused) of
    each question, in the same order. `declined`: for unanswerable questions, 1 where the model refused. `answered`: number
    of questions asked in every way.
    """

    name: str
    length: int
    tokens: list[int] = field(default_factory=list)
    ranks: list[int | None] = field(default_factory=list)
    ranked: list[str] = field(default_factory=list)
    untold: int = 0
    shares: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, list[float]] = field(default_factory=dict)
    sources: dict[str, list[str]] = field(default_factory=dict)
    scores: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    declined: list[float] = field(default_factory=list)
    answered: int = 0
    answers: list[dict[str, Any]] = field(default_factory=list)

    def keep(self, way: str, question: DocumentQuestion, answer: str, score: float) -> None:
        """Record an answer for the file."""
        self.answers.append(
            {"set": self.name, "length": self.length, "way": way, "question": question.question,
             "references": question.answers, "answer": answer, "score": score}
        )  # fmt: skip


Progress = Callable[[str, float], None]
"""Called with what is being measured, and the share of everything that is done."""


def evaluate(
    settings: Settings, plan: GroundedPlan, data: Path, console: Console
) -> tuple[Report, list[GroundedScores]]:
    """Measure, and return a report with the results it was made from. `data`: folder of data sets.

    Progress is shown on `console`. Raises `DataError`, and what a server raises that cannot start.
    """
    if plan.ways:
        squad("", [""])  # fail now, not after an hour, if a library is missing
    # The folder's path must be short, because it holds a Unix socket.
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
    settings: Settings,
    model: Model,
    plan: GroundedPlan,
    found: dict[str, list[SourceText]],
    novels: Novels,
    progress: Progress,
) -> tuple[Report, list[GroundedScores]]:
    began, cells = time.monotonic(), []
    async with _served(settings, model) as services:
        for at, (name, length) in enumerate((name, length) for name in plan.sets for length in plan.lengths):
            cell = GroundedScores(name, length)

            def report_share(done: float, at: int = at, cell: GroundedScores = cell) -> None:
                progress(f"{cell.name} at {cell.length:,}", (at + done) / len(plan.sets) / len(plan.lengths))

            await _measure(services, plan, cell, found[name], novels, report_share)
            cells.append(cell)
    minutes = (time.monotonic() - began) / 60
    return _report(plan, model, cells, minutes), cells


@contextlib.asynccontextmanager
async def _served(settings: Settings, model: Model) -> AsyncIterator[Services]:
    """Run the parts of a server around `model`, with an embedded Redis."""
    redis = EmbeddedRedis(settings.data_dir)
    redis.start()  # not on another thread: Redis ends with the thread that started it
    try:
        async with running(settings, model, redis.url, Metrics()) as services:
            yield services
    finally:
        redis.stop()


async def _measure(
    services: Services,
    plan: GroundedPlan,
    cell: GroundedScores,
    sources: Sequence[SourceText],
    novels: Novels,
    progress: Callable[[float], None],
) -> None:
    recall, texts, template = plan.recall or services.recall, SearchOnlyTexts(services.blobs), TEMPLATES[plan.template]
    answers = _Answers(services, plan, recall)
    wanted = max(plan.samples if plan.ways else 0, plan.searches)

    async def search(kind: str, document: Document, question: DocumentQuestion) -> list[Span]:
        words = words_of(question.question, None)
        passages = await texts.passages.search([document.id], words, recall.passages) if words else []
        evidence, _ = choose(passages, "", recall.tokens, answers.count, template)
        cell.sources.setdefault(kind, []).append(question.source)
        cell.shares.setdefault(kind, []).append(max((passage.share for passage in passages), default=0.0))
        cell.refused.setdefault(kind, []).append(float(not evidence and asks(question.question)))
        return [(passage.start, passage.end) for passage in evidence]

    before: list[DocumentQuestion] = []
    async for haystack, new in _new(sources, novels, cell, answers.count, plan.seed, answerable=True):
        questions = new[: wanted - len(cell.ranks)]
        document = await texts.put(haystack.text)
        cell.tokens.append(haystack.tokens)
        for question in questions:
            evidence = await search("asked", document, question)
            if stated(haystack, question):
                cell.ranks.append(rank(haystack, question, evidence))
                cell.ranked.append(question.source)
            else:
                cell.untold += 1
        for question in before:
            await search("elsewhere", document, question)
        before = questions
        if plan.ways and cell.answered < plan.samples:
            await answers.add(cell, haystack, document, questions[: plan.samples - cell.answered])
        await texts.remove(document)
        progress(len(cell.ranks) / wanted)
        if len(cell.ranks) >= wanted:
            break
    if not cell.ranks:
        raise DataError(f"{cell.name}: no question's passages fit into documents of {cell.length} tokens")
    async for haystack, new in _new(sources, novels, cell, answers.count, plan.seed, answerable=False):
        document = await texts.put(haystack.text)
        for question in new:
            await search("impossible", document, question)
        if "recall" in plan.ways:
            await answers.decline(cell, haystack, document, new[: plan.samples - len(cell.declined)])
        await texts.remove(document)
        if len(cell.refused["impossible"]) >= wanted:
            break


async def _new(
    sources: Sequence[SourceText],
    novels: Novels,
    cell: GroundedScores,
    count: Callable[[str], int],
    seed: int,
    *,
    answerable: bool,
) -> AsyncIterator[tuple[HaystackDocument, list[DocumentQuestion]]]:
    """Yield documents with their new questions, until all questions were used or no new ones turn up."""
    left = {(text.name, q.text) for text in sources for q in text.questions if bool(q.answers) == answerable}
    stream, unproductive = documents(sources, novels, cell.length, count, seed, answerable=answerable), 0
    while left and unproductive < _MAX_UNPRODUCTIVE:
        haystack = await asyncio.to_thread(next, stream)
        new = [question for question in haystack.questions if (question.source, question.question) in left]
        left -= {(question.source, question.question) for question in new}
        unproductive = 0 if new else unproductive + 1
        if new:
            yield haystack, new


class _Answers:
    """Asks questions through the server's parts."""

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
        self._slots = asyncio.Semaphore(services.engine.max_streams)

    def _count(self, text: str) -> int:
        return len(self._services.model.tokenizer.encode(text))

    async def add(
        self,
        cell: GroundedScores,
        haystack: HaystackDocument,
        document: Document,
        questions: Sequence[DocumentQuestion],
    ) -> None:
        """Answer and score the questions in every way of the plan."""
        documents, model = self._services.documents, self._services.model
        await documents.create(document, model.fingerprint)
        if {"memory", "both"} & set(self._plan.ways):
            await self._wait_read(document)
        jobs = [(way, question) for way in self._plan.ways for question in questions if way != "floor"]
        contents = await asyncio.gather(*(self._answer(way, haystack, document, question) for way, question in jobs))
        if "floor" in self._plan.ways:
            baseline = await asyncio.to_thread(BackboneBaseline, model, haystack.text, self._plan.floor)
            jobs += [("floor", question) for question in questions]
            for question in questions:
                contents.append(await asyncio.to_thread(baseline.answer, question.question + BRIEFLY, self._sampling))
        for (way, question), content in zip(jobs, contents, strict=True):
            score = (*squad(content, question.answers), holds(content, question.answers), declines(content))
            cell.scores.setdefault(way, []).append(score)
            cell.keep(way, question, content, score[0])
        cell.answered += len(questions)
        await documents.delete(document.id)

    async def decline(
        self,
        cell: GroundedScores,
        haystack: HaystackDocument,
        document: Document,
        questions: Sequence[DocumentQuestion],
    ) -> None:
        """Ask unanswerable questions, with passages."""
        documents = self._services.documents
        await documents.create(document, self._services.model.fingerprint)
        for question in questions:
            content = await self._answer("recall", haystack, document, question)
            cell.declined.append(declines(content))
            cell.keep("recall, no answer", question, content, declines(content))
        await documents.delete(document.id)

    async def _wait_read(self, document: Document) -> None:
        reading = reading_id(self._services.model.fingerprint, [document.id])
        while (read := await self._services.documents.reading(reading)) is None or read.status != "ready":
            if read is not None and read.status == "failed":
                raise DocumentFailed(f"a document could not be read: {(read.error or {}).get('message')}")
            await asyncio.sleep(0.05)

    async def _answer(
        self, way: str, haystack: HaystackDocument, document: Document, question: DocumentQuestion
    ) -> str:
        services, content, recall = self._services, question.question + BRIEFLY, Recall(0, 0)
        remember, read = way in ("memory", "both"), way in ("memory", "both", "recall")
        if way in ("recall", "both"):
            recall = self._recall
        if way == "ceiling":
            content = self._template.before([haystack.passage(question)]) + content
        session = await services.sessions.create(
            services.model.fingerprint,
            services.model.name,
            [document.id] if read else [],
            remember=remember or not read,
        )
        async with self._slots:
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
        f"recall {'with the default settings' if recall is None else recall}, greedy, at most {plan.max_tokens} tokens, "
        f"{minutes:.1f} minutes",
        "left out: questions whose answers share no word with the right part of the text; their evidence cannot be checked",
        "in brackets: 95 % intervals, bootstrapped over the texts that questions are about",
    ]  # fmt: skip
    if model.memory_name == "window" and plan.ways:
        notes.append(
            "memory `window` does not remember: `memory` is the backbone on the first and last tokens of the document, "
            "`neither` is the backbone without a document"
        )
    return Report("grounded", rows, targets, notes, kind="eval")


def _share(cells: Sequence[GroundedScores], seed: int) -> Mean:
    """Return F1 with both ÷ F1 of the ceiling, on the same questions."""
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
