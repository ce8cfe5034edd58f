"""`Retriever`: searches documents for a message, and decides what its prompt asks and shows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from everlong_models import AnswerProbe
from everlong_server.engine.answering.evidence.grounding import Recall
from everlong_server.engine.answering.evidence.templates import (
    INSTRUCT,
    Template,
    follow_up_template,
    shortened,
    whole_template,
)
from everlong_server.engine.answering.search.question import (
    asks_for_fact,
    is_personal,
    search_query,
    stands_alone,
    texts_lack_answer,
)
from everlong_server.engine.answering.search.rewriting import QueryRewriter
from everlong_server.engine.answering.turn_context import Exchange, TurnContext
from everlong_server.engine.device.engine import Engine
from everlong_server.store.search.passages import Found, Passages
from everlong_server.store.search.query import Query
from everlong_server.store.search.terms import words
from everlong_server.store.texts.passage import Passage

_MOST_REPEATED = 0.25
"""If the previous question and its answer would take a larger share of the evidence's tokens, they are not repeated."""


@dataclass(frozen=True, slots=True)
class Retrieved:
    """What the prompt of a message contains.

    `question`: the question of the message, or the rewritten one. `found`: passages to choose evidence from, best first; None if the documents
    were not searched. `lacks_answer`: the documents do not hold the answer. `probe`: see `Prompt`; the evidence may not hold the answer. `small_talk`: the
    message has no words to search for. `template`: None takes that of the model. `previous`: what the message may refer to, if `template` does not repeat it.
    """

    question: str
    found: list[Passage] | None = None
    lacks_answer: bool = False
    probe: AnswerProbe | None = None
    small_talk: bool = False
    template: Template | None = None
    previous: Exchange | None = None


class SharedRetrieval:
    """What is retrieved for a message that gets several answers. The first turn searches, and the others wait; if it fails, the next one searches."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._retrieved: Retrieved | None = None

    async def get(self, retrieve: Callable[[], Awaitable[Retrieved]]) -> Retrieved:
        """Return what the message's first turn has retrieved; for this turn itself, what `retrieve` returns."""
        async with self._lock:
            if self._retrieved is None:
                self._retrieved = await retrieve()
            return self._retrieved


class Retriever:
    """Searches documents for passages that answer the messages to one model."""

    def __init__(self, engine: Engine, passages: Passages, template: Template) -> None:
        self._engine = engine
        self._passages = passages
        self._template = template

    async def retrieve(
        self, context: TurnContext, documents: tuple[str, ...], question: str, previous: Exchange | None, recall: Recall, *,
        question_only: bool, may_decline: bool, rewriter: QueryRewriter | None = None,
    ) -> Retrieved:  # fmt: skip
        """Search `documents` for the question of a message. `previous`: what it can refer to. `question_only`: the message is this question, without
        results of calls, and the model gets no tools. `may_decline`, `rewriter`: see `PromptBuilder.prompt`."""
        query = await asyncio.to_thread(search_query, question, previous and previous.question)
        if query is None:
            indexed = await self._passages.all_indexed(documents)
            return Retrieved(question, [] if indexed else None, small_talk=True)
        if rewriter is not None and question_only and await self._refers_back(documents, question, query):
            rewritten = await rewriter.standalone(question, context.exchanges)
            if rewritten is not None:
                (question, query), previous = rewritten, None
        by_sentences = self._template.gap is not None
        result = await self._passages.find(documents, query, recall.passages, by_sentences=by_sentences)
        template = whole_template(result.overview) if result.overview and by_sentences else None
        retrieved = Retrieved(question, result.passages, template=template)
        if previous:
            repeating = await asyncio.to_thread(self.repeating, template, query, previous, recall)
            alone = result.overview is not None or await asyncio.to_thread(stands_alone, question, query)
            shown = shortened(previous) if repeating is None and not alone else None
            retrieved = replace(retrieved, template=repeating or template, previous=shown)
        probe = self._probe_of(context, result) if may_decline and question_only else None
        if probe is not None and await asyncio.to_thread(asks_for_fact, question, has_history=context.has_history):
            # The search is not sure whether texts hold the answer. The model's probe can judge it.
            retrieved = replace(retrieved, probe=probe)
        personal = context.has_history and await asyncio.to_thread(is_personal, question)
        if result.doubtful and (retrieved.probe is None or personal):
            retrieved = replace(retrieved, found=[], probe=None)
        return await self._checked(context, documents, retrieved, recall, doubtful=result.doubtful)

    async def _checked(
        self, context: TurnContext, documents: tuple[str, ...], retrieved: Retrieved, recall: Recall, *, doubtful: bool
    ) -> Retrieved:
        """Return what was retrieved, and whether the documents lack the answer, which only the search of all of them can tell."""
        has_history = context.has_history
        lacks_answer = await asyncio.to_thread(
            texts_lack_answer, retrieved.question, retrieved.found or [], has_history=has_history
        )
        unsure = lacks_answer or retrieved.probe is not None or not retrieved.found
        if unsure and not await self._passages.all_indexed(documents):
            # A document was deleted. The memory still has it.
            return replace(retrieved, found=None if doubtful else retrieved.found or None, probe=None)
        if not retrieved.found and not lacks_answer and not has_history and context.all_open:
            return replace(retrieved, found=await self._passages_in_open_segment(context, recall.passages))
        return replace(retrieved, lacks_answer=lacks_answer)

    async def _refers_back(self, documents: tuple[str, ...], question: str, query: Query) -> bool:
        """Return whether a question refers to the conversation and is about documents that an answer is not shown whole."""
        if not query.message_start or not query.asks or await asyncio.to_thread(is_personal, question):
            return False
        return not await self._passages.shown_whole(documents)

    def repeating(self, template: Template | None, query: Query, previous: Exchange, recall: Recall) -> Template | None:
        """Return a template that repeats `previous`, if the query is a question that refers to it; otherwise None.

        Nothing is repeated if that takes more than a share `_MOST_REPEATED` of the evidence's tokens.
        """
        if self._template.gap is None or not query.message_start or not query.asks or not previous.answer:
            return None
        usual = template or self._template
        repeating = follow_up_template(usual, previous)
        encode = self._engine.model.tokenizer.encode
        more = len(encode(repeating.closing)) - len(encode(usual.closing))
        return repeating if more <= _MOST_REPEATED * recall.tokens else None

    def _probe_of(self, context: TurnContext, result: Found) -> AnswerProbe | None:
        """Return the model's probe that can tell whether passages hold an answer; None if it does not know such prompts, or instructions say what to answer."""
        probes = self._engine.model.probes
        known = self._template is INSTRUCT and result.overview is None and result.english and bool(result.passages)
        instructed = context.system is not None or context.instructions is not None
        if probes is None or not known or instructed:
            return None
        return probes.few_pages if result.few_pages else probes.long

    async def _passages_in_open_segment(self, context: TurnContext, limit: int) -> list[Passage]:
        """Return the passages of the session's documents, if these fit into the open segment: then the model sees them, whatever the search finds."""
        text = self._engine.model.tokenizer.decode(list(context.session.snapshot.open))
        query = Query(text, dict.fromkeys(words(text), 1.0))
        ranked = await self._passages.rank(context.session.documents, query, limit, rerank=False)
        return [replace(passage, score=round(1 / place, 3)) for place, passage in enumerate(ranked, 1)]
