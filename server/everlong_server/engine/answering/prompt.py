"""`PromptBuilder`: turns a message into a prompt with its evidence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from everlong_models import AnswerProbe, Tool
from everlong_server.engine.answering.evidence.grounding import (
    RECENT_TOKENS,
    Recall,
    paragraphs,
    select_passages_in_segment,
    select_passages_in_window,
)
from everlong_server.engine.answering.evidence.templates import WITH_TOOLS, Template
from everlong_server.engine.answering.retrieval import Retriever, SharedRetrieval
from everlong_server.engine.answering.search.question import is_personal, search_query
from everlong_server.engine.answering.search.rewriting import QueryRewriter
from everlong_server.engine.answering.turn_context import Exchange, TurnContext
from everlong_server.engine.device.engine import Engine
from everlong_server.errors import TooLarge
from everlong_server.store.records import Message
from everlong_server.store.search.passages import Passages
from everlong_server.store.texts.passage import Passage

LINE_BREAK = "\n"
"""Prompt for continuing an answer whose last token filled a segment. The state has every token by then, but decoding needs at least one."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """`tokens`: the prompt. `evidence`: passages that the answer can rest on. `visible_kept`, `attended_before`: see `AnswerRequest`. `context_start`: see
    `Snapshot`.

    `question`: what the user asked: the message, or the one before it if the message has the results of calls alone. `probe`: replaces
    the answer by `REFUSAL` if it finds that the evidence lacks the answer. `standalone`: the question that the prompt asks
    instead of the message, if it was rewritten.
    """

    tokens: list[int]
    evidence: list[Passage]
    visible_kept: int | None
    attended_before: int | None
    context_start: int | None
    question: str
    probe: AnswerProbe | None = None
    standalone: str | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a prompt before the question: the tokens of `lead`, then `text`, with `evidence`. `visible`, `own`: what becomes
    `visible_kept` and `attended_before` of the `Prompt`."""

    lead: list[int]
    evidence: list[Passage]
    text: str
    visible: int | None = None
    own: int | None = None


class PromptBuilder:
    """Builds the prompts of one model."""

    def __init__(self, engine: Engine, passages: Passages, template: Template) -> None:
        self._engine = engine
        self._template = template
        self._retriever = Retriever(engine, passages, template)

    async def prompt(
        self, context: TurnContext, content: str, recall: Recall, tools: Sequence[Tool] = (), *, may_decline: bool = True,
        rewriter: QueryRewriter | None = None, shared: SharedRetrieval | None = None,
    ) -> Prompt:  # fmt: skip
        """Return the prompt for the message `content`, with passages of the session's documents and of `recall.also_in`, and `tools`.

        `may_decline`: the model's probe may replace the answer. `rewriter`: rewrites a follow-up question; None searches for it with the words of the
        question before it. `shared`: shares what is retrieved with the other answers to the message. Raises `TooLarge` for tools that do not fit into
        the model's context.
        """
        documents = tuple(dict.fromkeys((*context.session.documents, *(recall.also_in or ()))))
        format = self._engine.model.tools
        question, previous = content if format is None else format.question_of(content), context.previous
        if not question:  # the results of calls, for an earlier question
            question, previous = previous.question if previous else "", None
        build = partial(self.build, context, recall=recall, tools=tools)
        if not recall.passages or (not documents and recall.also_in is None):
            return await asyncio.to_thread(build, content, None, question=question, lacks_answer=False)
        question_only = not tools and question == content
        retrieve = partial(
            self._retriever.retrieve, context, documents, question, previous, recall,
            question_only=question_only, may_decline=may_decline, rewriter=rewriter,
        )  # fmt: skip
        retrieved = await (retrieve() if shared is None else shared.get(retrieve))
        # On a thread: this takes time in proportion to the message.
        prompt = await asyncio.to_thread(
            build,
            retrieved.question if question_only else content,
            retrieved.found,
            question=retrieved.question,
            lacks_answer=retrieved.lacks_answer,
            probe=retrieved.probe,
            small_talk=retrieved.small_talk,
            template=retrieved.template,
            previous=retrieved.previous,
        )
        return replace(prompt, standalone=retrieved.question) if retrieved.question != question else prompt

    def continuation(self, context: TurnContext, recall: Recall) -> Prompt:
        """Return the prompt that extends the last answer: its last tokens, after the messages that the memory has not read."""
        model, answer, snapshot = self._engine.model, context.continued, context.session.snapshot
        assert answer is not None, "only an answer can be extended"
        standalone = answer.standalone_question
        asked = standalone or (context.previous.question if context.previous else "")
        # The continuation sees the same tokens as the first part did: see `build`.
        searched, reused = (
            bool(answer.evidence or (recall.passages and context.session.documents)),
            answer.usage.reused_tokens,
        )
        tokens, visible, own = list(context.last), RECENT_TOKENS if searched else None, None
        if context.unread:
            prompt_only = searched and bool(model.memory.kept_tokens(context.state)) and not context.session.messages
            own = 0 if prompt_only else None
            *earlier, question, cut = context.unread
            template, passages = None, paragraphs(answer.evidence[::-1], self._template.gap)
            asks = question.content if standalone is None else standalone
            if standalone is None and self._template.gap is not None and len(earlier) > 1:
                before = Exchange(earlier[-2].content, earlier[-1].content)
                query = search_query(question.content, before.question)
                template = self._retriever.repeating(None, query, before, recall) if query else None
            text = (template or self._template).render(passages) if passages else ""
            unread = [*earlier, replace(question, content=text + asks), cut]
            lead = self._lead(context, unread, from_start=prompt_only)
            tokens = lead[: len(lead) - len(model.chat.turn)]  # without the end of the answer
        elif snapshot.context_start is not None:
            visible, own = self._since(context, snapshot.context_start)
        elif searched:
            visible = RECENT_TOKENS + snapshot.position - len(snapshot.open) - reused
        # The state has the whole answer if that ended with a segment: see `SessionTurns`.
        tokens = tokens or model.tokenizer.encode(LINE_BREAK)
        start = self._start(context, visible, own)
        return Prompt(tokens, list(answer.evidence), visible, own, start, asked, standalone=standalone)

    def build(
        self, context: TurnContext, content: str, found: list[Passage] | None, recall: Recall, *, lacks_answer: bool,
        probe: AnswerProbe | None = None, small_talk: bool = False, question: str | None = None, tools: Sequence[Tool] = (),
        template: Template | None = None, previous: Exchange | None = None,
    ) -> Prompt:  # fmt: skip
        """Return the prompt for the message `content`.

        `found`: passages to choose evidence from, best first; None if the documents were not searched. `lacks_answer`: the
        documents do not hold the answer. `probe`: see `Prompt`; the evidence may not hold it. `small_talk`: the message has no words to search for. `question`: see `Prompt`; None: it is
        the message. `template`: None takes that of the model. With tools, it is `WITH_TOOLS`. `previous`: what the message may refer to, if `template` does not repeat it.
        """
        question = content if question is None else question
        template = WITH_TOOLS if tools or question != content else template or self._template
        model = self._engine.model
        tokenizer, memory = model.tokenizer, model.memory
        # Where the search found nothing, the model would only quote the end of the text, which the memory keeps.
        searched, found = found is not None, found or []
        window = memory.visible_tokens - memory.segment_length
        # The model sees all of a text that fits into the open segment, except in small talk, which would continue the text, and if its
        # probe may judge the first answer: it learnt from first prompts that the model reads alone.
        hides_open = window > 0 and (small_talk or (probe is not None and not context.unread))
        kept, later = memory.kept_tokens(context.state), context.session.messages > 0
        anew = bool(kept or hides_open) and not later and searched
        message = [*tokenizer.encode(content), *model.chat.ask]
        lead = self._lead(context, context.unread_messages, from_start=anew)
        budget = recall.tokens
        if tools:
            room = (window or memory.segment_length) - len(message)
            lead = self._lead_with_tools(context, tools, lead, room, from_start=anew, searched=searched)
            budget = min(budget, room - len(lead))
        if window:
            budget = min(budget, window - len(message))
        select = partial(self._select, context, found, len(message), template)
        part = None
        if later and searched and window and not tools and question == content:
            part = self._later_part(context, lead, previous, window - len(message), budget, select)
        if part is None:
            recent = [] if anew else [*kept[-RECENT_TOKENS:], *context.session.snapshot.open]
            # Where nothing was read before, the memory's first tokens are those of the prompt, which the answer attends to.
            own = 0 if anew and context.session.snapshot.position else None
            part = _Part(lead, *select(lead, recent, budget), RECENT_TOKENS if searched else None, own)
        text = part.text
        if lacks_answer and model.trained is None:  # an untrained memory cannot hold the answer either
            text = template.nothing if self._count(template.nothing) <= budget else ""
        tokens = [*part.lead, *tokenizer.encode(text), *message]
        start = self._start(context, part.visible, part.own)
        # The answer to a question about the conversation may be there, if the prompt lacks it.
        if not part.evidence or (later and part.own == 0 and is_personal(question)):
            probe = None
        return Prompt(tokens, part.evidence, part.visible, part.own, start, question, probe)

    def _later_part(
        self, context: TurnContext, lead: list[int], previous: Exchange | None, room: int, budget: int,
        select: Callable[[list[int], list[int], int], tuple[list[Passage], str]],
    ) -> _Part | None:  # fmt: skip
        """Return the part before a later question: new passages, after the conversation if both fit into `room` tokens; otherwise after `previous` alone.

        None if the conversation does not fit and no passage does, or if the memory keeps no tokens before the open segment.
        """
        kept = self._engine.model.memory.kept_tokens(context.state)
        conversation = self._conversation(context, kept)
        if conversation and len(conversation) + len(lead) <= room:
            evidence, text = select(lead, conversation, budget)
            if len(conversation) + len(lead) + self._count(text) <= room:
                return _Part(lead, evidence, text, *self._since(context, context.session.snapshot.context_start))
        if not kept:
            return None
        # Evidence for earlier questions would only distract from that for this one.
        lead = self._lead(context, context.messages_from_start(previous), from_start=True)
        if 2 * len(lead) > room:
            lead = self._lead(context, context.unread_messages, from_start=True)
        evidence, text = select(lead, [], min(budget, room - len(lead)))
        return _Part(lead, evidence, text, own=0) if evidence else None

    def _select(
        self,
        context: TurnContext,
        found: Sequence[Passage],
        after: int,
        template: Template,
        lead: Sequence[int],
        seen: list[int],
        budget: int,
    ) -> tuple[list[Passage], str]:
        """Return the evidence and its text, for the kind of memory. `lead`: the tokens before the text; `after`: number of
        tokens after it; `seen`: the tokens before `lead` that the answer attends to."""
        memory, tokenizer = self._engine.model.memory, self._engine.model.tokenizer
        window, between = memory.visible_tokens - memory.segment_length, len(lead)
        if window:
            return select_passages_in_window(
                found, seen, budget, self._count, tokenizer.decode, window=window, between=between, after=after,
                template=template,
            )  # fmt: skip
        return select_passages_in_segment(
            found, tokenizer.decode(seen) if found else "", budget, self._count, tokenizer.spans,
            segment=memory.segment_length, before=len(context.session.snapshot.open) + between, after=after, template=template,
        )  # fmt: skip

    def _conversation(self, context: TurnContext, kept: list[int]) -> list[int]:
        """Return the tokens that the memory still keeps, from `context_start` on; [] before the first answer."""
        snapshot = context.session.snapshot
        if (
            snapshot.context_start is None
            or not context.session.messages
            or not self._engine.model.memory.remembered_tokens
        ):
            return []
        return [*kept, *snapshot.open][-(snapshot.position - snapshot.context_start) :]

    def _since(self, context: TurnContext, start: int | None) -> tuple[int | None, int | None]:
        """Return `visible_kept` and `attended_before` of an answer that attends to all tokens from position `start` on.

        The memory keeps its first tokens apart. Once the start is among them, the answer attends to everything.
        """
        memory, snapshot = self._engine.model.memory, context.session.snapshot
        first = (memory.remembered_tokens or 0) - (memory.visible_tokens - memory.segment_length)
        if not start or start < min(first, snapshot.position - len(snapshot.open)):
            return None, None
        return None, snapshot.position - start

    def _start(self, context: TurnContext, visible: int | None, own: int | None) -> int | None:
        """Return the `context_start` of an answer with these settings."""
        memory = self._engine.model.memory
        if own is not None:
            return context.session.snapshot.position - own
        everything = visible is None or not memory.kept_tokens(context.state)
        return 0 if everything and memory.remembered_tokens else None

    def _count(self, text: str) -> int:
        return len(self._engine.model.tokenizer.encode(text))

    def _lead(self, context: TurnContext, unread: Sequence[Message], *, from_start: bool) -> list[int]:
        """Return the tokens between those that the session has read and the words of the question: unread messages and the
        chat format's markers. `from_start`: as if the session had read nothing."""
        chat, encode = self._engine.model.chat, self._engine.model.tokenizer.encode
        begins = from_start or not context.session.snapshot.position
        lead = chat.head if begins else chat.turn if context.session.messages else chat.separator
        tokens: list[int] = []
        for message in unread:
            end = {"system": chat.separator, "user": chat.ask, "assistant": chat.turn}[message.role]
            if message.role == "system" and begins and not tokens and chat.system is not None:
                lead, end = chat.system
            tokens += [*lead, *encode(message.content)]
            lead, begins = end, False
        return [*tokens, *lead]

    def _lead_with_tools(
        self,
        context: TurnContext,
        tools: Sequence[Tool],
        lead: list[int],
        room: int,
        *,
        from_start: bool,
        searched: bool,
    ) -> list[int]:
        """Return `lead` with the definitions of the tools, unless the model sees these anyway.

        They are where the template has them, in the system message, if the conversation begins here and its beginning remains
        visible. Otherwise they come directly before the question. `room`: number of tokens before the question that remain visible.
        """
        model = self._engine.model
        format, kept = model.tools, model.memory.kept_tokens(context.state)
        assert format is not None, "a request with tools needs a tool format"
        definitions, unread = format.definitions(tools), context.unread_messages
        if not context.session.messages and (from_start or not context.session.snapshot.position) and model.chat.system:
            system = unread.pop(0).content if unread and unread[0].role == "system" else None
            first = Message("system", format.system_text(system, tools))
            with_tools = self._lead(context, [first, *unread], from_start=from_start)
            if len(with_tools) <= room:
                return with_tools
        elif (seen := room - len(lead)) > 0:
            recent = [*(kept[-RECENT_TOKENS:] if searched else kept), *context.session.snapshot.open][-seen:]
            if self._unseen_part(context, definitions, len(kept)) in model.tokenizer.decode(recent):
                return lead
        with_tools = self._lead(
            context, [*context.unread_messages, Message("system", definitions)], from_start=from_start
        )
        needed = len(model.tokenizer.encode(definitions))
        if needed > room:
            raise TooLarge(
                f"tools: their definitions have {needed} tokens; next to the message, the model's context has room for {max(0, room)}: "
                "send fewer tools, or shorter descriptions", param="tools",
            )  # fmt: skip
        return with_tools

    def _unseen_part(self, context: TurnContext, text: str, kept: int) -> str:
        """Return `text` without its beginning, if that can be among the first tokens, which a window keeps apart from its `kept` ones."""
        model, snapshot = self._engine.model, context.session.snapshot
        read = snapshot.position - len(snapshot.open)
        if read > (model.memory.remembered_tokens or 0):
            return text
        return model.tokenizer.decode(model.tokenizer.encode(text)[read - kept :]) or text
