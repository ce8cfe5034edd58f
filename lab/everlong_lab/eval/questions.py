"""`everlong eval questions`: the questions that people ask about texts, each with a pattern that a right answer matches.

A file has one JSON object a line: `text`, the name of a file; `question` (or `q`); `pattern` (or `a`), a regular expression, in
which case does not matter; and optionally `kind`, and `follows`: true for a message of the conversation that the line before belongs to. An
answer is right if the pattern is found in it. The evidence holds the answer if the pattern is found in it.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from everlong_client.cli.answer import DOUBTFUL
from everlong_lab.harness.process import Process
from everlong_lab.harness.progress import Progress
from everlong_lab.harness.report import Report
from everlong_lab.harness.search_corpus import SearchCorpus
from everlong_lab.harness.sse_timing import StreamTimer
from everlong_models.errors import DataError
from everlong_models.text.embedder import Embedder
from everlong_server.engine.answering.evidence.grounding import Recall, select_passages
from everlong_server.engine.answering.evidence.templates import INSTRUCT, REFUSAL, whole_template
from everlong_server.engine.answering.search.question import search_query
from everlong_server.engine.documents.formats import conversion
from everlong_server.engine.documents.formats.catalogue import detect
from everlong_server.store.records import Document
from everlong_server.store.search.passages import Found
from everlong_server.store.texts.blobs import Blobs

KINDS = ("fact", "whole text", "not in the text")
_HEAD_BYTES = 1024
_MAX_BYTES = 1 << 32
_PATIENCE = 600.0
"""Seconds without progress after which the vectors of a document that is read are given up: their building may have failed."""


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question about the file `text`. `kind`: one of `KINDS`. `follows`: in the session of the question before it, which is about the same text."""

    text: str
    question: str
    pattern: str
    kind: str
    follows: bool = False

    def matches(self, answer: str) -> bool:
        """Return whether the pattern is found in an answer or in evidence."""
        return re.search(self.pattern, answer, re.IGNORECASE) is not None


@dataclass(slots=True)
class Result:
    """What became of a question. Without a model, `right` is None and the seconds are those of the search.

    `evidence`: the passages, best first. `first`, `over`: seconds to the first token and to the end. `agreement`: see the field of the
    server's messages.
    """

    question: AskedQuestion
    held: bool
    evidence: list[str] = field(default_factory=list)
    answer: str | None = None
    right: bool | None = None
    first: float = 0.0
    over: float = 0.0
    agreement: float | None = None

    @property
    def doubted(self) -> bool:
        """Whether everlong's clients say that the answer is probably wrong."""
        return self.agreement is not None and self.agreement < DOUBTFUL


def questions(file: Path) -> list[AskedQuestion]:
    """Read a file of questions. Raises `DataError` that names the line."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {file}: {error}") from error
    found = list[AskedQuestion]()
    for n, json_line in enumerate(lines, 1):
        if json_line.strip():
            found.append(_question(json_line, f"{file}, line {n}", found[-1].text if found else None))
    if not found:
        raise DataError(f"{file} has no questions")
    return found


def _question(line: str, where: str, before: str | None) -> AskedQuestion:
    """Return the question of a line. `before`: the text of the line before it, if there is one."""
    try:
        row = json.loads(line)
        text, question, pattern = row["text"], row.get("question") or row["q"], row.get("pattern") or row["a"]
        re.compile(pattern)
    except (ValueError, KeyError, AttributeError, TypeError, re.error) as error:
        raise DataError(
            f"{where}: must be a JSON object with text, question (or q) and pattern (or a), a regular expression: {error!r}"
        ) from error
    kind = row.get("kind") or _kind(pattern)
    if kind not in KINDS:
        raise DataError(f"{where}: kind is {kind!r}; must be one of {', '.join(KINDS)}")
    follows = row.get("follows", False)
    if not isinstance(follows, bool) or (follows and text != before):
        raise DataError(
            f"{where}: follows is {follows!r}; must be true or false, and true only below a question about the same text"
        )
    return AskedQuestion(text, question, pattern, kind, follows)


def in_one_session(asked: Sequence[AskedQuestion]) -> list[AskedQuestion]:
    """Return the questions by text, so that those about a text follow each other in one session."""
    by_text: dict[str, list[AskedQuestion]] = {}
    for question in asked:
        by_text.setdefault(question.text, []).append(question)
    return [replace(question, follows=n > 0) for some in by_text.values() for n, question in enumerate(some)]


def _kind(pattern: str) -> str:
    """Return the kind of a question that names none: a refusal is right if nothing is in the text, and a pattern that needs several
    things together is about the whole text."""
    if re.search(pattern, REFUSAL, re.IGNORECASE):
        return "not in the text"
    return "whole text" if pattern.count("(?=") > 1 else "fact"


def find_texts(names: Iterable[str], folders: Sequence[Path]) -> dict[str, Path]:
    """Return the file of each text. Raises `DataError` for one that is in none of the folders."""
    found: dict[str, Path] = {}
    for name in dict.fromkeys(names):
        file = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if file is None:
            raise DataError(f"no text {name!r} in {', '.join(map(str, folders))}: give its folder with --texts")
        found[name] = file
    return found


def search(
    asked: Sequence[AskedQuestion], texts: dict[str, Path], embedder: Embedder | None, count: Callable[[str], int],
    recall: Recall, progress: Progress,
) -> list[Result]:  # fmt: skip
    """Search for every question as for an instruct model, but without one. `count` returns the number of tokens of a text."""
    with tempfile.TemporaryDirectory(prefix="evl") as folder:
        corpus = SearchCorpus(Blobs(f"file://{folder}"), embedder)
        return asyncio.run(_search(corpus, asked, texts, count, recall, progress))


async def _search(
    corpus: SearchCorpus, asked: Sequence[AskedQuestion], texts: dict[str, Path], count: Callable[[str], int],
    recall: Recall, progress: Progress,
) -> list[Result]:  # fmt: skip
    documents: dict[str, Document] = {}
    for n, (name, file) in enumerate(texts.items()):
        progress(f"indexing {name}", n / len(texts))
        documents[name] = await corpus.add(await asyncio.to_thread(text_of, file), name)
    found = []
    for n, question in enumerate(asked):
        progress(question.question, n / len(asked))
        began = time.perf_counter()
        query = search_query(question.question, asked[n - 1].question if question.follows else None)
        within = [documents[question.text].id]
        result = (
            Found([])
            if query is None
            else await corpus.passages.find(within, query, recall.passages, by_sentences=True)
        )
        seconds = time.perf_counter() - began
        template = INSTRUCT if result.overview is None else whole_template(result.overview)
        evidence = [p.text for p in select_passages(result.passages, "", recall.tokens, count, template)[0]]
        found.append(Result(question, question.matches("\n".join(evidence)), evidence, first=seconds, over=seconds))
    return found


def text_of(file: Path) -> str:
    """Return the text of a file, converted as by the server."""
    with file.open("rb") as stream:
        kind = detect(stream.read(_HEAD_BYTES), file.name)
    if kind is None:
        try:
            return file.read_bytes().decode()  # with its line ends, as it is uploaded
        except UnicodeDecodeError as error:
            raise DataError(f"{file} is neither UTF-8 text nor a file that the server converts: {error}") from error
    with tempfile.NamedTemporaryFile(suffix=".txt") as converted:
        conversion.convert(file, kind, Path(converted.name), _MAX_BYTES)
        return Path(converted.name).read_bytes().decode()


def ask(
    http: httpx.Client, asked: Sequence[AskedQuestion], texts: dict[str, Path], tokens: int, progress: Progress
) -> list[Result]:
    """Ask a server every question, greedily. Each conversation has a session of its own. `tokens`: maximum length of an answer."""
    documents: dict[str, str] = {}
    try:
        for n, (name, file) in enumerate(texts.items()):
            progress(f"reading {name}", n / len(texts))
            documents[name] = str(
                _json(http.post("/v1/documents", params={"filename": name}, content=file.read_bytes()))["id"]
            )
            _wait(http, name, documents[name])
        found, session = list[Result](), ""
        for n, question in enumerate(asked):
            progress(question.question, n / len(asked))
            if not question.follows:
                session = str(_json(http.post("/v1/sessions", json={"documents": [documents[question.text]]}))["id"])
            found.append(_ask(http, session, question, tokens))
            if n + 1 == len(asked) or not asked[n + 1].follows:
                http.delete(f"/v1/sessions/{session}")
        return found
    finally:
        for document in documents.values():
            http.delete(f"/v1/documents/{document}")


def _wait(http: httpx.Client, name: str, id: str) -> None:
    """Wait until a document has been read and can be searched by meaning, if the server does that. Raises `DataError`."""
    wait, last, since = 0.05, -1.0, time.monotonic()
    while True:
        document = _json(http.get(f"/v1/documents/{id}"))
        if document["status"] == "failed":
            raise DataError(f"the server cannot read {name}: {document['error']['message']}")
        share = (document.get("vectors") or {}).get("progress", 1.0)
        if document["status"] != "ready" or share != last:
            last, since = share, time.monotonic()
        if document["status"] == "ready" and share == 1.0:
            return
        if time.monotonic() - since > _PATIENCE:
            raise DataError(
                f"the vectors of {name} have been at {share:.0%} for {_PATIENCE:.0f} s: see the server's log"
            )
        time.sleep(wait)  # between requests for the document's progress
        wait = min(1.0, wait * 1.5)


def _ask(http: httpx.Client, session: str, question: AskedQuestion, tokens: int) -> Result:
    body = {"content": question.question, "max_tokens": tokens, "temperature": 0, "stream": True}
    timer, began = StreamTimer(), time.perf_counter()
    with http.stream("POST", f"/v1/sessions/{session}/messages", json=body) as response:
        if response.is_error:
            response.read()
            _json(response)
        for line in response.iter_lines():
            timer.feed(line)
    over = time.perf_counter() - began
    if timer.message is None:
        raise DataError(f"the server ended the answer to {question.question!r} early")
    evidence = [passage["text"] for passage in timer.message["evidence"]]
    answer = timer.message["content"]
    first = timer.stamps[0] - began if timer.stamps else over
    return Result(
        question, question.matches("\n".join(evidence)), evidence, answer, question.matches(answer), first, over,
        timer.message.get("agreement"),
    )  # fmt: skip


def _json(response: httpx.Response) -> dict[str, Any]:
    """Return the body. Raises `DataError` with the server's message for a refusal."""
    if response.is_error:
        raise DataError(f"the server answered {response.status_code}: {response.text[:500]}")
    body: dict[str, Any] = response.json()
    return body


@contextmanager
def server(url: str | None, key: str | None, model: str | None) -> Iterator[httpx.Client]:
    """Yield a client of the server at `url`; None: of a server of its own, which serves `model`."""
    if url is None:
        with Process.served(*(["--model", model] if model else [])) as own:
            yield own.http
        return
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=url, headers=headers, timeout=3600) as http:
        yield http


def report(results: Sequence[Result], notes: Sequence[str]) -> Report:
    """Return the figures by kind of question, and of all."""
    rows = list[dict[str, Any]]()
    groups = [(kind, [one for one in results if kind in {one.question.kind, "all"}]) for kind in (*KINDS, "all")]
    if any(one.question.follows for one in results):
        groups += [
            (name, [one for one in results if one.question.follows is follows])
            for name, follows in (("first messages", False), ("later messages", True))
        ]
    for kind, some in groups:
        if not some:
            continue
        row: dict[str, Any] = {"kind": kind, "questions": len(some)}
        if some[0].right is not None:
            row["right"] = sum(bool(result.right) for result in some)
            row["doubted"] = sum(result.doubted for result in some)
            row["doubted but right"] = sum(result.doubted and bool(result.right) for result in some)
        # A refusal is no evidence: that nothing is in the text cannot be found in it.
        row["evidence holds it"] = sum(result.held for result in some) if kind != "not in the text" else ""
        row["first s p50"] = statistics.median(result.first for result in some)
        row["end s p50"] = statistics.median(result.over for result in some)
        row["evidence characters p50"] = statistics.median(sum(map(len, result.evidence)) for result in some)
        rows.append(row)
    return Report("questions", rows, [], list(notes), kind="eval")


def lines(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return the results for `--json`."""
    return [asdict(result) for result in results]
