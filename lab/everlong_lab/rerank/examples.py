"""`Example`: a question, the passages that the search finds for it, and which of their sentences tell the answer.

Questions come from a file in which somebody noted the words that tell each answer (`eval/labelled.py`), or from data sets that do so.
Other sentences that match a question's pattern may tell the answer, too, so they are neither right nor wrong.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from everlong_lab.corpora.sources import Source, read
from everlong_lab.eval.labelled import LabelledQuestion, overlaps, places, questions, texts_of
from everlong_lab.harness.progress import Progress
from everlong_lab.harness.search_corpus import SearchCorpus
from everlong_models.errors import DataError
from everlong_models.text.embedder import Embedder
from everlong_server.engine.answering.search.question import passage_query
from everlong_server.store.records import Document
from everlong_server.store.search.sentences import cut
from everlong_server.store.texts.blobs import Blobs

PASSAGES = 32
"""Passages that the search finds for a question, as for an answer."""
DATA_SETS = {"fairytaleqa": 110, "squad2_dev_half": 20}
"""Further data sets, and the number of their training texts that are used."""
_AROUND = 200
"""Characters before and after an answer. Together they replace its passage if the search did not find it."""


class Candidate(NamedTuple):
    """A passage. `sentences`: start and end of each, in characters. `labels`: of each; 1: it tells the answer, 0: it does not, -1: it may."""

    text: str
    sentences: tuple[tuple[int, int], ...]
    labels: tuple[int, ...]


class Example(NamedTuple):
    """A question about the text named `text`. `candidates`: in the order of the search, the best first."""

    text: str
    question: str
    candidates: tuple[Candidate, ...]


def of_sources(sources: Iterable[Source]) -> Iterator[tuple[str, str, list[LabelledQuestion]]]:
    """Yield the name and the text of each source, and those of its questions whose answer is in the text word for word."""
    for source in sources:
        starts, text = [], ""
        for part in source.parts:
            starts.append(len(text))
            text += part + "\n\n"
        asked = []
        for question in source.questions:
            parts = range(len(starts)) if question.parts is None else question.parts
            spans = tuple(
                (starts[n] + start, starts[n] + end)
                for answer in question.answers[:1]
                for n in parts
                for start, end in places(answer, source.parts[n])
            )
            if spans:
                asked.append(LabelledQuestion(source.name, question.question, spans))
        yield source.name, text, asked


def make_examples(
    file: Path, folders: Sequence[Path], data: Path | None, embedder: Embedder, progress: Progress
) -> list[Example]:
    """Return examples of the questions in `file`, whose texts are in `folders`, and of the data sets in `data`. Raises `DataError`.

    Leaves out questions about a text as a whole.
    """
    texts = texts_of(file, folders)
    asked = questions(file, texts)
    sources = [(name, text, [one for one in asked if one.text == name and one.spans]) for name, text in texts.items()]
    if data is not None:
        for kind, most in DATA_SETS.items():
            found = list(of_sources(read(data, kind, "train")))
            sources += found[:most]
    with tempfile.TemporaryDirectory(prefix="evl") as folder:
        made = asyncio.run(_examples(SearchCorpus(Blobs(f"file://{folder}"), embedder), sources, progress))
    if len({example.text for example in made}) < 2:
        raise DataError("questions about at least two texts are needed: one is held out")
    return made


async def _examples(
    corpus: SearchCorpus, sources: Sequence[tuple[str, str, list[LabelledQuestion]]], progress: Progress
) -> list[Example]:
    made = []
    for n, (name, text, asked) in enumerate(sources):
        progress(f"searching {name}", n / len(sources))
        document = await corpus.add(text, name)
        for question in asked:
            if (example := await _example(corpus, document, text, question)) is not None:
                made.append(example)
        await corpus.remove(document)
    return made


async def _example(corpus: SearchCorpus, document: Document, text: str, question: LabelledQuestion) -> Example | None:
    """Return the example of a question about a document that is indexed; None if it counts as one about the whole text."""
    found = await corpus.passages.find([document.id], passage_query(question.question), PASSAGES)
    if found.overview is not None:
        return None
    candidates = [_candidate(passage.text, passage.start, question) for passage in found.passages]
    if not any(1 in candidate.labels for candidate in candidates):  # the search missed it
        start, end = question.spans[0]
        start, end = max(0, start - _AROUND), min(len(text), end + _AROUND)
        candidates.append(_candidate(text[start:end], start, question))
    if not any(1 in candidate.labels for candidate in candidates):
        return None
    return Example(question.text, question.question, tuple(candidates))


def _candidate(text: str, at: int, question: LabelledQuestion) -> Candidate:
    """Return a passage that begins at character `at` with the labels of its sentences."""
    sentences = tuple(cut(text))
    return Candidate(text, sentences, tuple(_label(text[a:b], at + a, at + b, question) for a, b in sentences))


def _label(sentence: str, start: int, end: int, question: LabelledQuestion) -> int:
    if overlaps(start, end, question):
        return 1
    return -1 if question.pattern and re.search(question.pattern, sentence, re.IGNORECASE) else 0
