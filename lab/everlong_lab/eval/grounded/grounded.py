"""`everlong eval grounded`: answers from memory alone, recall alone, both, or neither, compared with the best and the worst
that the backbone could give. Uses the server's own parts: Redis, reading, passages, search, template, engine."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import lru_cache
from pathlib import Path

from everlong_lab.eval.answer_scores import squad
from everlong_lab.eval.grounded.backbone_baseline import BackboneBaseline
from everlong_lab.eval.grounded.hiding import DocumentQuestion, HaystackDocument, Novels, books, documents, rank, stated
from everlong_lab.eval.grounded.questions import SourceText, Span, texts
from everlong_lab.eval.grounded.report import TEMPLATES, GroundedPlan, GroundedScores, report
from everlong_lab.eval.grounded.scores import declines, holds
from everlong_lab.harness.progress import Progress
from everlong_lab.harness.report import Report
from everlong_lab.harness.search_corpus import SearchCorpus
from everlong_models import Model, SamplingParams
from everlong_models.errors import DataError
from everlong_server.engine.answering.events import ResponseCompleted
from everlong_server.engine.answering.evidence.grounding import Recall, select_passages
from everlong_server.engine.answering.search.question import is_question, search_query
from everlong_server.engine.answering.sessions import SessionTurns
from everlong_server.engine.answering.turn import TurnRunner
from everlong_server.errors import DocumentFailed
from everlong_server.observability.metrics import Metrics
from everlong_server.process.loading import load
from everlong_server.services import Services, run_services, tenant_services
from everlong_server.settings import Settings
from everlong_server.store.records import DEFAULT_TENANT, Document, reading_id
from everlong_server.store.redis.embedded import EmbeddedRedis
from everlong_server.store.texts.passage import Passage

_MAX_UNPRODUCTIVE = 50
"""Stop after this many documents in a row without a new question; a stretch of a text may not hold all of its questions."""

BRIEFLY = " Answer in a few words."
"""Appended to every question in every way: the references are a few words, and F1 penalises every extra word."""


def evaluate(
    settings: Settings, plan: GroundedPlan, data: Path, progress: Progress
) -> tuple[Report, list[GroundedScores]]:
    """Measure, and return a report with the results it was made from. `data`: folder of data sets.

    Raises `DataError`, and what a server raises that cannot start.
    """
    if plan.ways:
        squad("", [""])  # fail now, not after an hour, if a library is missing
    # The folder's path must be short, because it holds a Unix socket.
    with tempfile.TemporaryDirectory(prefix="everlong-") as folder:
        found = {name: texts(data, name, plan.split) for name in plan.sets}
        model = load(settings, lambda message: progress(message, 0.0))
        novels = Novels(books(data / "books"), lambda text: len(model.tokenizer.encode(text)))
        return asyncio.run(
            _evaluate(
                settings.model_copy(update={"data_dir": Path(folder), "redis_url": None, "blob_url": None}), model, plan,
                found, novels, progress,
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
    return report(plan, model, cells, minutes), cells


@contextlib.asynccontextmanager
async def _served(settings: Settings, model: Model) -> AsyncIterator[Services]:
    """Run the parts of a server around `model`, with an embedded Redis."""
    redis = EmbeddedRedis(settings.data_dir)
    redis.start()  # not on another thread: Redis ends with the thread that started it
    try:
        async with run_services(settings, model, redis.url, Metrics()) as shared:
            yield tenant_services(shared, DEFAULT_TENANT)
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
    recall, texts, template = (
        plan.recall or services.recall,
        SearchCorpus(services.shared.stores.blobs, services.shared.embedder),
        TEMPLATES[plan.template],
    )
    answers = _Answers(services, plan, recall)
    wanted = max(plan.samples if plan.ways else 0, plan.searches)

    async def search(kind: str, document: Document, question: DocumentQuestion) -> list[Span]:
        query = search_query(question.question, None)
        passages: list[Passage] = []
        if query:  # as `PromptBuilder` searches
            by_sentences = template.gap is not None
            found = await texts.passages.find([document.id], query, recall.passages, by_sentences=by_sentences)
            passages = found.passages
        evidence, _ = select_passages(passages, "", recall.tokens, answers.count, template)
        cell.sources.setdefault(kind, []).append(question.source)
        cell.shares.setdefault(kind, []).append(max((passage.share for passage in passages), default=0.0))
        cell.refused.setdefault(kind, []).append(float(not evidence and is_question(question.question)))
        return [(passage.start, passage.end) for passage in evidence]

    before: list[DocumentQuestion] = []
    async for haystack, new in _new(sources, novels, cell, answers.count, plan.seed, answerable=True):
        questions = new[: wanted - len(cell.ranks)]
        document = await texts.add(haystack.text)
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
        document = await texts.add(haystack.text)
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
        settings = services.shared.settings
        self._services, self._plan, self._recall = services, plan, recall
        self._template = TEMPLATES[plan.template]
        turns = TurnRunner(
            services.shared.engine, services.passages, services.shared.token_offsets, services.shared.metrics, services.shared.tracing, services.quota,
            max_message_chars=settings.max_message_chars, template=self._template,
        )  # fmt: skip
        self._session_turns = SessionTurns(
            turns,
            services.shared.engine,
            services.sessions,
            services.documents,
            services.shared.metrics,
            lease_seconds=settings.lease_seconds,
        )
        self._sampling = SamplingParams(temperature=0, max_tokens=plan.max_tokens, seed=plan.seed)
        self.count = lru_cache(1 << 16)(self._count)
        self._slots = asyncio.Semaphore(services.shared.engine.max_streams)

    def _count(self, text: str) -> int:
        return len(self._services.shared.model.tokenizer.encode(text))

    async def add(
        self,
        cell: GroundedScores,
        haystack: HaystackDocument,
        document: Document,
        questions: Sequence[DocumentQuestion],
    ) -> None:
        """Answer and score the questions in every way of the plan."""
        documents, model = self._services.documents, self._services.shared.model
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
        await documents.create(document, self._services.shared.model.fingerprint)
        for question in questions:
            content = await self._answer("recall", haystack, document, question)
            cell.declined.append(declines(content))
            cell.keep("recall, no answer", question, content, declines(content))
        await documents.delete(document.id)

    async def _wait_read(self, document: Document) -> None:
        reading = reading_id(self._services.shared.model.fingerprint, [document.id])
        while (read := await self._services.documents.readings.get(reading)) is None or read.status != "ready":
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
            content = self._template.render([haystack.passage(question)]) + content
        session = await services.sessions.create(
            services.shared.model.fingerprint,
            services.shared.model.name,
            [document.id] if read else [],
            remember=remember or not read,
        )
        async with self._slots:
            turn = await self._session_turns.send(session.id, content, self._sampling, recall)
            text = ""
            async with contextlib.aclosing(turn.events) as events:
                async for event in events:
                    if isinstance(event, ResponseCompleted):
                        text = event.message.content
        await services.sessions.delete(session.id)
        return text
