"""`everlong bench recall`: the cost of indexing a text, relative to reading it, and of searching it."""

from __future__ import annotations

import asyncio
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from everlong_lab.corpora import text
from everlong_lab.harness.report import Report, Target
from everlong_lab.harness.search_corpus import SearchCorpus
from everlong_models.backbone.loading import DEFAULT_BACKBONE, find_backbone, load_tokenizer
from everlong_models.errors import DataError
from everlong_models.text.tokenizer import Tokenizer
from everlong_server.engine.answering.search.question import search_query
from everlong_server.engine.documents.token_stream import token_blocks
from everlong_server.store.records import Document
from everlong_server.store.texts.blobs import Blobs

PASSAGES = 16
"""Number of passages searched for per question, as by the server."""
_SENTENCE = re.compile(r"[A-Z][^.!?]{20,120}[.!?]")


def run(
    *,
    megabytes: float,
    texts: Path | None,
    questions: int,
    rounds: int,
    models_dir: Path,
    progress: Callable[[str], None],
) -> Report:
    """Measure with a folder of `.md` and `.txt` files, `texts`, in order of their names; or with the packaged novel, repeated.

    One thread works at a time, so CPU seconds are those of one core. Raises `DataError`, `BackboneError`."""
    whole = whole_text(texts, int(megabytes * 1e6))
    tokenizer = load_tokenizer(find_backbone(DEFAULT_BACKBONE, models_dir=models_dir, progress=progress))
    with tempfile.TemporaryDirectory(prefix="evl") as folder:
        return asyncio.run(
            _measure(SearchCorpus(Blobs(f"file://{folder}")), tokenizer, whole, questions, rounds, progress)
        )


def whole_text(folder: Path | None, size: int) -> str:
    """Return a text of `size` characters. Raises `DataError` if the folder has fewer."""
    if folder is None:
        novel = text.packaged()
        return (novel * (size // len(novel) + 1))[:size]
    files = sorted(file for file in folder.rglob("*") if file.suffix in {".md", ".txt"})
    whole = "\n\n".join(text.read(file) for file in files)
    if len(whole) < size:
        raise DataError(f"{folder} has {len(whole):,} characters of text (.md, .txt), --megabytes needs {size:,}")
    return whole[:size]


async def _measure(
    shelf: SearchCorpus,
    tokenizer: Tokenizer,
    whole: str,
    questions: int,
    rounds: int,
    progress: Callable[[str], None],
) -> Report:
    document = await shelf.put(whole)
    encoding, indexing = [], []
    for number in range(rounds):  # in turns, so that other load on the machine affects both
        progress(f"encoding and indexing {document.bytes / 1e6:.1f} MB, {number + 1} of {rounds}")
        encoding.append(_cpu(lambda: _encode(shelf, tokenizer, document)))
        await shelf.passages.delete(document.id)
        begin = time.process_time()
        await shelf.passages.ensure(document)
        indexing.append(time.process_time() - begin)
    progress(f"asking {questions} questions")
    seconds = [await _search(shelf, document, question) for question in _questions(whole, questions)]
    ratio = statistics.median(index / encode for index, encode in zip(indexing, encoding, strict=True))
    row = {
        "megabytes": document.bytes / 1e6,
        "encode_cpu_s": min(encoding),
        "index_cpu_s": min(indexing),
        "ratio": ratio,
        "questions": questions,
        "search_p50_ms": statistics.median(seconds) * 1e3,
        "search_p99_ms": sorted(seconds)[int(0.99 * (len(seconds) - 1))] * 1e3,
        "search_most_ms": max(seconds) * 1e3,
    }
    targets = [
        Target("indexing ÷ reading, where reading is encoding alone", ratio, 0.10, at_most=True),
        Target("the longest search, CPU ms", max(seconds) * 1e3, 20.0, at_most=True),
    ]
    notes = [
        "reading: with `window`, which only encodes; other memories take longer, and the share is smaller",
        "ratio: median of the rounds; searches: the second search for each question, CPU time",
    ]
    return Report("recall", [row], targets, notes)


def _cpu(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def _encode(shelf: SearchCorpus, tokenizer: Tokenizer, document: Document) -> int:
    with shelf.blobs.open(document.id, 0) as file:
        return sum(len(piece.tokens) for piece in token_blocks(file, tokenizer, 0))


async def _search(shelf: SearchCorpus, document: Document, question: str) -> float:
    """Return the CPU seconds of a search, from the words to the passages."""
    begin = 0.0
    for _ in range(2):  # the first search loads the file
        begin = time.process_time()
        query = search_query(question, None)
        if query is not None:
            await shelf.search([document.id], query, PASSAGES)
    return time.process_time() - begin


def _questions(whole: str, count: int) -> Sequence[str]:
    """Return random sentences of the text as questions; they have common and rare words."""
    found = [match[0] for match in _SENTENCE.finditer(whole)]
    if not found:
        raise DataError("the text has no sentences to use as questions")
    return random.Random(0).choices(found, k=count)  # noqa: S311 - a sample
