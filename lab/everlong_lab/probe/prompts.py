"""`LabelledPrompt`: a prompt as the server makes it, and whether its passages hold the answer to its question.

Documents are stretches of texts, of different lengths, around the words that tell an answer. Passages lack an answer because those that tell it
were taken out, because the question is about another text, or because people wrote it so (SQuAD 2.0). Requests that no passage answers, such as "Can
you write a poem about this?", count as if the passages held the answer: a model should not decline them. The packaged texts are documents as they
are, with questions that they answer and that they do not: short ones (`short-texts.jsonl.xz`), each with a conversation, and those of a few pages
(`few-pages.tar.xz`, folder `training`).
"""

from __future__ import annotations

import asyncio
import json
import lzma
import math
import random
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from everlong_lab.corpora.sources import read
from everlong_lab.eval.labelled import LabelledQuestion, overlaps, places, questions, texts_of
from everlong_lab.eval.questions import text_of
from everlong_lab.harness.progress import Progress
from everlong_lab.harness.search_corpus import SearchCorpus
from everlong_lab.rerank.examples import DATA_SETS, of_sources
from everlong_models.errors import DataError
from everlong_models.memories.window import WindowConfig
from everlong_models.text.embedder import Embedder
from everlong_server.engine.answering.evidence.grounding import select_passages
from everlong_server.engine.answering.evidence.templates import INSTRUCT, follow_up_template
from everlong_server.engine.answering.search.question import search_query
from everlong_server.engine.answering.turn_context import Exchange
from everlong_server.store.records import Document
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.passage import Passage

ROOM = (300, 500, 800)
"""Numbers of tokens of evidence, equally frequent."""
_SHORTEST, _LONGEST = 1_500, 40_000
"""Characters of a document."""
_WINDOW_TOKENS = WindowConfig().window
"""Tokens of a conversation to which a later message attends, at most. If it is longer, its prompt begins anew."""
_WITHOUT, _OTHER, _REQUEST = 0.6, 0.5, 0.2
"""Share of the documents for which there is a prompt without the passages that tell the answer, one with a question about another text,
and one with a request."""


class LabelledPrompt(NamedTuple):
    """`source`: the name of the text. `before`: the text before the question, with the passages. `holds`: whether they, or the conversation, hold the answer.

    `answer`: what the model says before the next prompt of the conversation; "" if none follows. `follows`: this prompt follows the previous one in the same conversation.
    """

    source: str
    before: str
    question: str
    holds: bool
    answer: str = ""
    follows: bool = False


@dataclass(frozen=True, slots=True)
class ProbePromptsPlan:
    """`file`: questions, or None; `folders`: where their texts are. `data`: the folder of data sets; None uses none. `most`: number of questions
    from each of the file and the data sets, at most. `passages`: how many the search finds. `packaged`: use the packaged texts, too."""

    file: Path | None
    folders: Sequence[Path]
    data: Path | None
    most: int
    passages: int
    seed: int = 0
    packaged: bool = False


class ConversationTurn(NamedTuple):
    """A message about a text, a right answer, and whether the text or the conversation holds it."""

    question: str
    answer: str
    holds: bool


class LabelledText(NamedTuple):
    """A text named `source`, questions that it answers, questions that it does not answer, and a conversation about it."""

    source: str
    text: str
    holds: Sequence[str]
    lacks: Sequence[str]
    conversation: Sequence[ConversationTurn] = ()


def packaged_texts() -> list[LabelledText]:
    """Return the packaged texts: short ones, and those of a few pages."""
    return [*_short_texts(), *_texts_of_a_few_pages()]


def _short_texts() -> Iterator[LabelledText]:
    packed = files("everlong_lab.corpora").joinpath("short-texts.jsonl.xz").read_bytes()
    for n, line in enumerate(lzma.decompress(packed).decode().splitlines(), 1):
        one = json.loads(line)
        turns = [ConversationTurn(*turn) for turn in one["conversation"]]
        yield LabelledText(f"short text {n}", one["text"], one["holds"], one["lacks"], turns)


def _texts_of_a_few_pages() -> Iterator[LabelledText]:
    packed = files("everlong_lab.corpora").joinpath("few-pages.tar.xz")
    with (
        packed.open("rb") as file,
        tempfile.TemporaryDirectory(prefix="evl") as to,
        tarfile.open(fileobj=file) as archive,
    ):
        archive.extractall(to, filter="data")
        folder = Path(to) / "few-pages" / "training"
        asked = [json.loads(line) for line in (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
        for name in dict.fromkeys(one["text"] for one in asked):
            holds, lacks = (
                [one["q"] for one in asked if one["text"] == name and one["holds"] is held] for held in (True, False)
            )
            yield LabelledText(name, text_of(folder / name), holds, lacks)


class _Stretch(NamedTuple):
    """A part of a text, used as a document. `asked`: its places are in the document; if it has none, the document does not hold the answer."""

    source: str
    text: str
    asked: LabelledQuestion


def make_prompts(
    plan: ProbePromptsPlan, count: Callable[[str], int], embedder: Embedder, progress: Progress
) -> list[LabelledPrompt]:
    """Return the prompts. `count` returns the number of tokens of a text. Raises `DataError`, also if one kind of prompt is missing."""
    rng = random.Random(plan.seed)  # noqa: S311 - for samples
    stretches = list(_stretches(plan, rng))
    with tempfile.TemporaryDirectory(prefix="evl") as folder:
        corpus = SearchCorpus(Blobs(f"file://{folder}"), embedder)
        made = asyncio.run(_Writer(plan, corpus, count, rng).prompts(stretches, progress))
    if len({prompt.holds for prompt in made}) < 2:
        raise DataError(
            f"{plan.file or 'without a file'}: prompts with and without the answer are needed; {len(made)} of one kind were made"
        )
    return made


def _stretches(plan: ProbePromptsPlan, rng: random.Random) -> Iterator[_Stretch]:
    """Yield a document for each chosen question of the file, then of the data sets."""
    groups = list[list[tuple[str, LabelledQuestion]]]()
    if plan.file is not None:
        texts = texts_of(plan.file, plan.folders)
        groups.append([(texts[one.text], one) for one in questions(plan.file, texts) if one.spans])
    for name, most in DATA_SETS.items() if plan.data is not None else ():
        sources = read(plan.data or Path(), name, "train")[:most]
        groups.append([(text, one) for _, text, asked in of_sources(sources) for one in asked])
        impossible = [
            (source.joint.join(source.parts), LabelledQuestion(source.name, question.question, ()))
            for source in sources
            for question in source.questions
            if not question.answers
        ]
        groups.append(impossible)
    for group in groups:
        for text, asked in rng.sample(group, min(plan.most, len(group))):
            yield _cut(text, asked, rng)


def _cut(text: str, asked: LabelledQuestion, rng: random.Random) -> _Stretch:
    """Cut a stretch of random length, of whole lines, with the first place that tells the answer somewhere in it."""
    size = int(math.exp(rng.uniform(math.log(_SHORTEST), math.log(_LONGEST))))
    first, last = asked.spans[0] if asked.spans else (0, 0)
    start = max(0, min(first - rng.randint(0, size), len(text) - size))
    end = min(len(text), max(start + size, last))
    start, end = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    part = text[start : end if end >= 0 else len(text)]
    spans = tuple((a - start, b - start) for a, b in asked.spans if a >= start and b - start <= len(part))
    return _Stretch(asked.text, part, asked._replace(spans=spans))


class _Writer:
    """Searches documents, and writes prompts with what is found."""

    def __init__(
        self, plan: ProbePromptsPlan, corpus: SearchCorpus, count: Callable[[str], int], rng: random.Random
    ) -> None:
        self._plan, self._corpus, self._count, self._rng = plan, corpus, count, rng
        text = files("everlong_lab.corpora").joinpath("requests.txt").read_text(encoding="utf-8")
        self._requests = text.splitlines()

    async def prompts(self, stretches: Sequence[_Stretch], progress: Progress) -> list[LabelledPrompt]:
        """Return the prompts about all documents."""
        made: list[LabelledPrompt | None] = []
        for n, stretch in enumerate(stretches):
            progress(f"searching {stretch.source}", n / len(stretches))
            document = await self._corpus.add(stretch.text, stretch.source)
            made += await self._about(stretch, document, stretches)
            await self._corpus.remove(document)
        made += await self._about_packaged_texts(progress) if self._plan.packaged else []
        return [prompt for prompt in made if prompt is not None]

    async def _about_packaged_texts(self, progress: Progress) -> list[LabelledPrompt | None]:
        """Return the prompts about the packaged texts."""
        made, texts = list[LabelledPrompt | None](), packaged_texts()
        for n, one in enumerate(texts):
            progress(f"searching {one.source}", n / len(texts))
            document = await self._corpus.add(one.text, one.source)
            for holds, asked in ((True, one.holds), (False, one.lacks)):
                for question in asked:
                    stretch = _Stretch(one.source, one.text, LabelledQuestion(one.source, question, ()))
                    made.append(await self._prompt(stretch, document, question, holds=holds, room=ROOM[-1]))
            made += await self._conversation(one.source, document, one.conversation)
            await self._corpus.remove(document)
        return made

    async def _conversation(
        self, source: str, document: Document, turns: Sequence[ConversationTurn]
    ) -> list[LabelledPrompt]:
        """Return the prompts of a conversation about a document. As in the server, passages that a message sees anyway are not repeated."""
        made, previous, said = list[LabelledPrompt](), None, ""
        for turn in turns:
            if (query := search_query(turn.question, previous and previous.question)) is None:
                continue
            result = await self._corpus.passages.find([document.id], query, self._plan.passages, by_sentences=True)
            repeats = previous is not None and query.message_start
            template = follow_up_template(INSTRUCT, previous) if previous and repeats else INSTRUCT
            _, before = select_passages(result.passages, said, ROOM[-1], self._count, template)
            if follows := bool(said) and self._count(said + before + turn.question) <= _WINDOW_TOKENS:
                said += before + turn.question + turn.answer
            else:
                _, before = select_passages(result.passages, "", ROOM[-1], self._count, template)
                said = before + turn.question + turn.answer
            made.append(LabelledPrompt(source, before, turn.question, turn.holds, turn.answer, follows=follows))
            previous = Exchange(turn.question, turn.answer)
        return made

    async def _about(
        self, stretch: _Stretch, document: Document, stretches: Sequence[_Stretch]
    ) -> list[LabelledPrompt | None]:
        """Return the prompts about one document; None for one whose passages do not have what it is for."""
        asked, rng = stretch.asked, self._rng
        made = []
        if rng.random() < _REQUEST:
            made.append(await self._prompt(stretch, document, rng.choice(self._requests), holds=True))
        if not asked.spans:
            return [*made, await self._prompt(stretch, document, asked.question, holds=False)]
        made.append(await self._prompt(stretch, document, asked.question, holds=True, told=True))
        if rng.random() < _WITHOUT:
            made.append(await self._prompt(stretch, document, asked.question, holds=False, told=False))
        if rng.random() < _OTHER:
            other = rng.choice(stretches)
            if other.source != stretch.source:
                made.append(await self._prompt(stretch, document, other.asked.question, holds=False, lacks=other))
        return made

    async def _prompt(
        self, stretch: _Stretch, document: Document, question: str, *, holds: bool, told: bool | None = None,
        lacks: _Stretch | None = None, room: int | None = None,
    ) -> LabelledPrompt | None:  # fmt: skip
        """Return the prompt for a question; None if the search finds nothing, or takes the question for one about the whole text.

        `room`: the number of tokens of evidence; default one of `ROOM` at random.
        `told`: True returns None if the passages do not tell the answer; False takes out those that do. `lacks`: returns None if the passages
        have the words that tell the answer to its question.
        """
        if (query := search_query(question, None)) is None:
            return None
        result = await self._corpus.passages.find([document.id], query, self._plan.passages, by_sentences=True)
        if result.overview is not None:
            return None
        found = result.passages
        if told is False:
            found = [passage for passage in found if not _may_tell(passage, stretch.asked)]
        evidence, before = select_passages(found, "", room or self._rng.choice(ROOM), self._count, INSTRUCT)
        if not evidence or (told and not any(overlaps(p.start, p.end, stretch.asked) for p in evidence)):
            return None
        if lacks is not None and any(places(lacks.text[a:b], before) for a, b in lacks.asked.spans):
            return None
        return LabelledPrompt(stretch.source, before, question, holds)


def _may_tell(passage: Passage, asked: LabelledQuestion) -> bool:
    """Return whether a passage has any word that tells the answer, or matches its pattern."""
    touches = any(passage.start < end and start < passage.end for start, end in asked.spans)
    return touches or bool(asked.pattern and re.search(asked.pattern, passage.text, re.IGNORECASE))
