"""Ask about documents in several ways, and keep how likely the right answers were."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from everlong_lab.eval.answer_scores import squad
from everlong_lab.eval.remembers.contexts import Context, InContext, InMemory, likelihood
from everlong_lab.eval.remembers.texts import SETS, Remembered
from everlong_lab.eval.result import backbone_of
from everlong_lab.harness.search_corpus import SearchCorpus
from everlong_models import Model
from everlong_models.errors import ConfigError
from everlong_models.memories.window import Window, WindowConfig
from everlong_server.engine.answering.evidence.grounding import select_passages
from everlong_server.engine.answering.evidence.templates import template_of
from everlong_server.engine.answering.search.question import search_query
from everlong_server.settings import Settings
from everlong_server.store.search.vectors import load_embedder
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.passage import Passage

WAYS = {
    "nothing": "the question alone",
    "window": "the memory `window`: the first 32 and the last 1,024 tokens",
    "memory": "the memory that has read the document",
    "other": "the memory that has read another document: the control",
    "whole": "the document in the backbone's own context; if it does not fit, the text that the question is about",
    "passages": "the passages that a search finds, and an empty memory",
    "window+passages": "both",
    "memory+passages": "both",
    "other+passages": "the passages, and the memory of another document",
}
"""What answers are based on."""
_PASSAGES = "+passages"
_SINKS, _WINDOW = 32, 1024
_ROOM = 1024
"""Positions for a question and its answer behind a text in the backbone's context; at most half of all."""
_LONGEST = 160
"""Tokens of a reference answer that are scored."""
_WRITTEN = 48
"""Tokens of an answer that is generated, at most."""


@dataclass(frozen=True, slots=True)
class RemembersPlan:
    """What to measure. `documents`: number per set and length. `questions`: number per document. `written`: how many of them
    are also answered. `most`: longest document for the backbone's context, in tokens, if its positions allow it.
    `embeddings`: whether passages are also searched by meaning, as the server's setting."""

    sets: tuple[str, ...] = tuple(SETS)
    lengths: tuple[int, ...] = (4_000, 16_000, 64_000)
    ways: tuple[str, ...] = tuple(WAYS)
    documents: int = 8
    questions: int = 8
    written: int = 0
    split: str = "test"
    seed: int = 0
    most: int = 32_000
    embeddings: str = "auto"


@dataclass(slots=True)
class DocumentScores:
    """Results about one document, as they are written to `--json`.

    `tokens`: its length. `fits`: whether the backbone's context holds it. `seconds`: processor time of reading 1,000 tokens,
    by way. `bytes`: size of the memory. `questions`: for each question its text, the text that it is about (`source`),
    `likelihood` by way, and if answers were written `f1` and `answers` by way.
    """

    document: str
    set: str
    kind: str
    length: int
    tokens: int
    fits: bool
    bytes: int
    seconds: dict[str, float]
    questions: list[dict[str, Any]]

    def missing(self, ways: Sequence[str]) -> list[str]:
        """Return those of `ways` in which the questions have not been asked."""
        return [way for way in ways if any(way not in one.get("likelihood", {}) for one in self.questions)]


class Measuring:
    """Measures documents with one model."""

    def __init__(self, model: Model, plan: RemembersPlan) -> None:
        """Raises `ConfigError` for a model without a backbone."""
        self._model, self._plan, self._backbone = model, plan, backbone_of(model)
        segment, positions = model.memory.segment_length, self._backbone.max_positions
        sinks = min(_SINKS, segment)
        window = max(1, min(_WINDOW, positions - sinks - segment))
        self._window = Window(WindowConfig(segment_length=segment, sinks=sinks, window=window), self._backbone)
        self._room = min(_ROOM, positions // 2)
        self._most = min(plan.most, positions - self._room)
        self._remembered: dict[str, InMemory] = {}
        """Memories by the name of their document: most are read once as a document and once as a control."""

    def count(self, text: str) -> int:
        """Return the number of tokens of `text`."""
        return len(self._model.tokenizer.encode(text))

    def document(
        self,
        document: Remembered,
        control: Remembered,
        scores: DocumentScores | None,
        keep: Callable[[DocumentScores], None],
        progress: Callable[[str], None],
    ) -> DocumentScores:
        """Ask about `document` in the ways that `scores` lacks; pass the scores to `keep` after each.

        `control`: another document of the same set and length.
        """
        tokens = self._tokens(document.text)
        scores = scores or DocumentScores(
            document.name, document.set, document.kind, document.length, len(tokens), len(tokens) <= self._most,
            self._model.state_bytes, {}, [{"question": q.question, "source": q.source} for q in document.questions],
        )  # fmt: skip
        missing = scores.missing(self._plan.ways)
        searched = any("passages" in way for way in missing)
        passages = asyncio.run(self._passages(document)) if searched else [""] * len(document.questions)
        for way in missing:
            progress(way)
            self._ask_about(way, document, control, tokens, passages, scores)
            keep(scores)
        return scores

    def _ask_about(
        self, way: str, document: Remembered, control: Remembered, tokens: list[int], passages: list[str],
        scores: DocumentScores,
    ) -> None:  # fmt: skip
        """Ask all questions in one way."""
        if way == "whole":
            self._ask_whole(document, tokens, scores)
            return
        base = "nothing" if way == "passages" else way.removesuffix(_PASSAGES)
        context = self._read(base, document, control)
        scores.seconds[base] = context.seconds / max(1, context.tokens) * 1000
        before = passages if "passages" in way else [""] * len(passages)
        self._ask(way, context, document, range(len(document.questions)), before, scores)

    def _tokens(self, text: str) -> list[int]:
        chat = self._model.chat
        return [*chat.head, *self._model.tokenizer.encode(text), *chat.separator]

    def forget(self, but: Collection[str]) -> None:
        """Forget what was read of documents, except those named."""
        self._remembered = {name: read for name, read in self._remembered.items() if name in but}

    def _read(self, base: str, document: Remembered, control: Remembered) -> InMemory:
        if base == "nothing":
            return InMemory.reading(self._model.memory, self._model.chat.head)
        if base == "window":
            return InMemory.reading(self._window, self._tokens(document.text))
        about = control if base == "other" else document
        if about.name not in self._remembered:
            self._remembered[about.name] = InMemory.reading(self._model.memory, self._tokens(about.text))
        return self._remembered[about.name]

    def _ask_whole(self, document: Remembered, tokens: list[int], scores: DocumentScores) -> None:
        """Ask with the document in context, or with each question's own text, its end cut off if that does not fit either."""
        questions = range(len(document.questions))
        none = [""] * len(document.questions)
        if scores.fits:
            context = InContext(self._backbone, tokens, self._room)
            scores.seconds["whole"] = context.seconds / len(tokens) * 1000
            self._ask("whole", context, document, questions, none, scores)
            return
        for source in dict.fromkeys(question.source for question in document.questions):
            context = InContext(self._backbone, self._tokens(document.sources[source])[: self._most], self._room)
            about = [n for n in questions if document.questions[n].source == source]
            self._ask("whole", context, document, about, none, scores)

    def _ask(
        self, way: str, context: Context, document: Remembered, chosen: Sequence[int], before: Sequence[str],
        scores: DocumentScores,
    ) -> None:  # fmt: skip
        tokenizer, chat = self._model.tokenizer, self._model.chat
        for n in chosen:
            asked, kept = document.questions[n], scores.questions[n]
            prompt = [*tokenizer.encode(before[n] + asked.question), *chat.ask]
            answer = tokenizer.encode(asked.answers[0])[:_LONGEST]
            kept.setdefault("likelihood", {})[way] = likelihood(context, prompt, answer)
            if n < self._plan.written:
                written = tokenizer.decode(context.write(prompt, tokenizer.eos_ids, _WRITTEN))
                kept.setdefault("answers", {})[way] = written
                kept.setdefault("f1", {})[way] = squad(written, asked.answers)[0]

    async def _passages(self, document: Remembered) -> list[str]:
        """Return for each question the text with passages that the server would put before it; "" if it finds none."""
        template = template_of(self._model)
        most = Settings.model_fields["recall_passages"].default
        with tempfile.TemporaryDirectory(prefix="everlong-") as folder:
            corpus = SearchCorpus(Blobs(f"file://{folder}"), load_embedder(self._plan.embeddings))
            stored = await corpus.add(document.text)
            found = []
            for question in document.questions:
                query = search_query(question.question, None)
                passages: list[Passage] = []
                if query is not None:
                    by_sentences = template.gap is not None
                    result = await corpus.passages.find([stored.id], query, most, by_sentences=by_sentences)
                    passages = result.passages
                found.append(select_passages(passages, "", template.tokens, self.count, template)[1])
            return found


def measure(
    model: Model,
    plan: RemembersPlan,
    documents: Sequence[Remembered],
    *,
    done: dict[str, DocumentScores],
    keep: Callable[[DocumentScores], None],
    progress: Callable[[str], None],
) -> list[DocumentScores]:
    """Return the scores of all `documents`: those in `done` by name, completed, and passed to `keep` after each way.

    The control of each document is the next one of its set and length. Raises `ConfigError` if there is no other.
    """
    measuring, found = Measuring(model, plan), []
    groups: dict[tuple[str, int], list[Remembered]] = {}
    for document in documents:
        groups.setdefault((document.set, document.length), []).append(document)
    for (name, length), group in groups.items():
        if len(group) < 2:
            raise ConfigError(
                "documents", len(group), f"must be at least 2 of {name} with {length:,} tokens, as a control"
            )
        for n, document in enumerate(group):
            control = group[(n + 1) % len(group)]
            tell = partial(_tell, progress, f"{document.name} ({n + 1} of {len(group)})")
            with torch.inference_mode():
                found.append(measuring.document(document, control, done.get(document.name), keep, tell))
            measuring.forget(but={control.name, group[0].name})
    return found


def _tell(progress: Callable[[str], None], document: str, way: str) -> None:
    progress(f"{document}: {way}")
