"""`everlong bench drafts`: how much faster answers are with guesses of their next tokens, without HTTP.

Questions about the packaged text get the passages and the prompt that they get in the server. Two engines with the same model answer each
prompt in turns, greedily: one guesses, the other does not. So other load on the machine slows down both. The processor time of a token
depends least on other load.
"""

from __future__ import annotations

import asyncio
import queue
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from everlong_lab.corpora.text import packaged
from everlong_lab.harness.report import Report, Target
from everlong_lab.harness.search_corpus import SearchCorpus
from everlong_models import Model, SamplingParams
from everlong_server.engine.answering.evidence.grounding import select_passages
from everlong_server.engine.answering.evidence.templates import INSTRUCT
from everlong_server.engine.answering.search.question import search_query
from everlong_server.engine.device.answer_text import TokenDelta
from everlong_server.engine.device.requests import AnswerFinished, AnswerRequest, RequestFailed
from everlong_server.engine.device.runner import Runner
from everlong_server.process.loading import load
from everlong_server.settings import load_settings
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.passage import Passage

QUESTIONS: dict[str, Sequence[str]] = {
    "facts": (
        "Where does Jonathan Harker stay in Bistritz?",
        "What does the landlady in Bistritz hang round Jonathan Harker's neck?",
        "What colour are the Count's eyes when he is angry?",
        "What happens to the shaving glass?",
        "Why does Lucy Westenra write to Mina Murray?",
        "What is the name of the ship that comes into Whitby in the storm?",
        "What did the captain of the ship hold in his hands?",
        "What does Renfield eat?",
    ),
    "quotations": (
        "Quote the sentences in which Jonathan Harker describes the Count's face.",
        "Quote what the Count says about the children of the night.",
        "Quote the beginning of the letter that Count Dracula left at the hotel in Bistritz.",
        "Quote what Quincey Morris says when he asks Lucy to marry him.",
    ),
    "summaries": (
        "Summarise what the log of the Demeter says.",
        "Describe the Count's castle as Jonathan Harker saw it.",
    ),
    "free text": (
        "Write a poem about the sea. Do not use the book.",
        "Explain how a bicycle works. Do not use the book.",
    ),
}
"""Questions about the packaged text, by what their answers take from it. Those of the last kind get no passages."""
_NO_PASSAGES = "free text"


@dataclass(slots=True)
class Timings:
    """The tokens after the first of each answer, their seconds, processor seconds, verified guesses and right ones."""

    tokens: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0


def run(
    *, model: str, device: str, draft_tokens: int | None, most: int, turns: int, progress: Callable[[str], None]
) -> Report:
    """Answer all questions `turns` times. `draft_tokens`: see `Drafting.of`; `most`: tokens of an answer.

    Raises `SettingsError` and `EverlongModelError`, and `RuntimeError` if the answers differ on a CPU with quantised weights, the engine fails,
    or no answer of a kind has a second token."""
    settings = load_settings().model_copy(update={"model": model, "device": device})
    served = load(settings, progress)
    rows = []
    with ExitStack() as stack:
        without, guessing = (stack.enter_context(_engine(served, settings.cuda_graphs, n)) for n in (0, draft_tokens))
        for kind, prompts in asyncio.run(_prompts(served)).items():
            found = (Timings(), Timings())
            for number, prompt in enumerate(prompts * turns):
                pairs = list(zip((without, guessing), found, strict=True))
                texts = [_answer(runner, served, prompt, most, timings) for runner, timings in pairs[:: (-1) ** number]]
                if len(set(texts)) > 1 and without.on_cpu and settings.quantize:
                    raise RuntimeError(f"the answers differ:\n{texts[0]}\n{texts[1]}")
            rows.append(_row(kind, len(prompts) * turns, *found))
            progress(f"{kind}: {rows[-1]['ratio']:.2f} times as many tokens/s")
    return Report("drafts", rows, targets(rows), _NOTES)


_NOTES = [
    "seconds and processor seconds: from the first token of each answer to its end, in one process, two engines in turns",
    "ratio, processor ratio: without guesses ÷ with guesses; greedy, so both engines' answers are the same on a CPU with quantised weights",
    "at most: the ratio if guesses cost nothing, since each accepted guess saves one step; drafted: verified guesses, accepted: right ones",
]


def targets(rows: Sequence[dict[str, Any]]) -> list[Target]:
    """Return the targets: a gain where answers come from passages, and no loss where they do not."""
    ratios = {row["answers"]: row["ratio"] for row in rows}
    gain = [
        Target(f"{kind}: tokens/s with guesses ÷ without", ratios[kind], 1.1, at_most=False)
        for kind in ratios
        if kind != _NO_PASSAGES
    ]
    return [*gain, Target("free text: tokens/s with guesses ÷ without", ratios[_NO_PASSAGES], 0.97, at_most=False)]


async def _prompts(model: Model) -> dict[str, list[list[int]]]:
    """Return the prompts of the questions, by kind, with the passages that the search by words finds."""
    encode, chat = model.tokenizer.encode, model.chat
    found: dict[str, list[list[int]]] = {}
    with tempfile.TemporaryDirectory(prefix="evl") as folder:
        corpus = SearchCorpus(Blobs(f"file://{folder}"))
        document = await corpus.put(packaged())
        await corpus.passages.ensure(document)
        for kind, questions in QUESTIONS.items():
            found[kind] = []
            for question in questions:
                passages: list[Passage] = []
                query = None if kind == _NO_PASSAGES else search_query(question, None)
                if query is not None:
                    results = await corpus.passages.find([document.id], query, 96, by_sentences=True)
                    passages, _ = select_passages(
                        results.passages, "", INSTRUCT.tokens, lambda text: len(encode(text)), INSTRUCT
                    )
                evidence = INSTRUCT.render([passage.text for passage in passages])
                found[kind].append([*chat.head, *encode(evidence), *encode(question), *chat.ask])
    return found


@contextmanager
def _engine(model: Model, graphs: bool, draft_tokens: int | None) -> Iterator[Runner]:
    runner = Runner(model, max_streams=None, reading_share=0.3, max_stall=0.1, graphs=graphs, draft_tokens=draft_tokens)
    runner.start()
    try:
        yield runner
    finally:
        runner.stop()


def _answer(runner: Runner, model: Model, prompt: list[int], most: int, timings: Timings) -> str:
    """Answer a prompt, add what it took to `timings` and return the text."""
    events: queue.SimpleQueue[TokenDelta | AnswerFinished | RequestFailed] = queue.SimpleQueue()
    params = SamplingParams(temperature=0, max_tokens=most)
    runner.submit(AnswerRequest(model.memory.initial_state(1), [], prompt, params, 0, events.put))
    first: tuple[float, float] | None = None
    while isinstance(event := events.get(), TokenDelta):
        first = first or (time.perf_counter(), time.process_time())
    ended = time.perf_counter(), time.process_time()
    if isinstance(event, RequestFailed):
        raise RuntimeError("the engine failed") from event.error
    if first is not None:
        timings.tokens += event.tokens - 1
        timings.seconds += ended[0] - first[0]
        timings.cpu_seconds += ended[1] - first[1]
        timings.drafted += event.drafted
        timings.accepted += event.accepted
    return event.text


def _row(kind: str, count: int, without: Timings, guessing: Timings) -> dict[str, Any]:
    if not without.tokens or not guessing.tokens:
        raise RuntimeError(f"{kind}: no answer has a second token, so its speed cannot be measured")
    return {
        "answers": kind,
        "questions": count,
        "tokens": without.tokens,
        "ms_per_token": 1e3 * without.seconds / without.tokens,
        "ms_per_token_guessing": 1e3 * guessing.seconds / guessing.tokens,
        "ratio": (without.seconds / without.tokens) / (guessing.seconds / guessing.tokens),
        "processor_ratio": (without.cpu_seconds / without.tokens) / (guessing.cpu_seconds / guessing.tokens),
        "at_most": guessing.tokens / (guessing.tokens - guessing.accepted),
        "drafted": guessing.drafted,
        "accepted": guessing.accepted,
    }
