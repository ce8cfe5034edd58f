"""`everlong prompts --labelled FILE`: the prompts that the server would build for labelled questions, with their answers.

Each text is a document, and is searched as the server does. A question about a fact becomes a prompt only if the evidence has the answer:
a model that learns to decline also declines what the text does say (docs/research/lab-notes.md). A question about a text as a whole becomes
one only if the search recognises it as such.
"""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from everlong_lab.eval.grounded.report import TEMPLATES
from everlong_lab.eval.labelled import LabelledQuestion, overlaps, questions, texts_of
from everlong_lab.harness.search_corpus import SearchCorpus
from everlong_models.errors import DataError
from everlong_models.text.embedder import Embedder
from everlong_server.engine.answering.evidence.grounding import select_passages
from everlong_server.engine.answering.evidence.templates import whole_template
from everlong_server.engine.answering.search.question import search_query
from everlong_server.store.records import Document
from everlong_server.store.texts.blobs import Blobs


@dataclass(frozen=True, slots=True)
class LabelledPromptsPlan:
    """`file`: the questions. `folders`: where their texts are. `room`: choices of the number of tokens for the evidence. `passages`: how
    many the search finds at most. `template`: from `TEMPLATES`."""

    file: Path
    folders: Sequence[Path]
    room: tuple[int, ...]
    passages: int
    template: str
    seed: int = 0


async def write_labelled(
    plan: LabelledPromptsPlan,
    count: Callable[[str], int],
    to: TextIO,
    progress: Callable[[str, float], None],
    embedder: Embedder | None = None,
) -> int:
    """Write prompts as JSON lines for `everlong_lab.tasks.prompts`; return their number.

    `count` returns the number of tokens of a text. `progress` is called with a text's name and the share of the texts that is done.
    `embedder`: None to search by words alone. Raises `DataError`.
    """
    texts = texts_of(plan.file, plan.folders)
    asked = questions(plan.file, texts)
    if missing := next((question for question in asked if not question.answer), None):
        raise DataError(f"{plan.file}: {missing.question!r:.80} has no answer: prompts to train on need one")
    rng, written = random.Random(plan.seed), 0  # noqa: S311 - for samples
    with tempfile.TemporaryDirectory(prefix="everlong-") as folder:
        corpus = SearchCorpus(Blobs(f"file://{folder}"), embedder)
        for number, (name, text) in enumerate(texts.items()):
            progress(name, number / len(texts))
            document = await corpus.add(text, name)
            for question in asked:
                if question.text == name:
                    prompt = await _prompt(plan, corpus, document, question, rng.choice(plan.room), count)
                    if prompt is not None:
                        turns = [{"prompt": prompt, "answers": [question.answer]}]
                        to.write(json.dumps({"source": name, "turns": turns}, ensure_ascii=False) + "\n")
                        written += 1
            await corpus.remove(document)
    if not written:
        raise DataError(f"{plan.file}: the search found the answer of no question")
    return written


async def _prompt(
    plan: LabelledPromptsPlan, corpus: SearchCorpus, document: Document, question: LabelledQuestion, room: int,
    count: Callable[[str], int],
) -> str | None:  # fmt: skip
    """Return the prompt; None if its evidence does not tell the answer, or the search takes one kind of question for the other."""
    template = TEMPLATES[plan.template]
    if (query := search_query(question.question, None)) is None:
        return None
    found = await corpus.passages.find([document.id], query, plan.passages, by_sentences=template.gap is not None)
    if (found.overview is None) == (not question.spans):
        return None
    if found.overview is not None:
        return select_passages(found.passages, "", room, count, whole_template(found.overview))[1] + question.question
    evidence, before = select_passages(found.passages, "", room, count, template)
    told = any(overlaps(passage.start, passage.end, question) for passage in evidence)
    if not told or not re.search(question.pattern or "", "\n".join(p.text for p in evidence), re.IGNORECASE):
        return None
    return before + question.question
