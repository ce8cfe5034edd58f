"""`everlong bench drafts`: how much faster answers are with guesses of their next tokens, with two servers that are asked in turns.

One server guesses, the other does not; each question goes to one and then to the other. So what else the machine does meanwhile slows
down both. Greedy answers of both must be the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx

from everlong_lab.corpora.text import packaged
from everlong_lab.harness.process import Process
from everlong_lab.harness.report import Report, Target
from everlong_lab.harness.sse_timing import StreamTimer

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
"""Questions about the packaged text, by what their answers take from it."""


@dataclass(slots=True)
class Timings:
    """The tokens after the first of each answer, and their seconds."""

    tokens: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0


def run(*, model: str, draft_tokens: int, most: int, turns: int, progress: Callable[[str], None]) -> Report:
    """Ask `model` all questions `turns` times, with at most `draft_tokens` guesses a step and without. `most`: tokens of an answer.

    Raises `RuntimeError` if the answers of the two servers differ, or a server fails."""
    with ExitStack() as stack:
        sessions = []
        for drafts in (0, draft_tokens):
            progress(f"a server with --draft-tokens {drafts} reads the text")
            arguments = ("--model", model, "--draft-tokens", str(drafts), "--embeddings", "off")
            server = stack.enter_context(Process.served(*arguments))
            document = server.read(packaged())["id"]
            sessions.append((server.http, document))
        rows = []
        for kind, questions in QUESTIONS.items():
            found = (Timings(), Timings())
            before = _counts(sessions[1][0])
            for number, question in enumerate(list(questions) * turns):
                order = (0, 1) if number % 2 == 0 else (1, 0)  # neither is always the first
                texts = {}
                for which in order:
                    http, document = sessions[which]
                    texts[which] = ask(http, document, question, most, found[which])
                if texts[0] != texts[1]:
                    raise RuntimeError(f"{question}\nwithout guesses: {texts[0]}\nwith guesses: {texts[1]}")
                progress(f"{kind}: {found[0].rate:.1f} tokens/s, with guesses {found[1].rate:.1f}")
            drafted, accepted = (after - count for after, count in zip(_counts(sessions[1][0]), before, strict=True))
            rows.append(_row(kind, len(questions) * turns, found, drafted, accepted))
    return Report("drafts", rows, targets(rows), _NOTES)


_NOTES = [
    "tokens/s: of all tokens but the first of each answer, from the first piece of text to the end",
    "each question goes to both servers, one after the other; greedy; their answers were the same",
]


def targets(rows: Sequence[dict[str, Any]]) -> list[Target]:
    """Return the targets: a gain where answers quote, and no loss where they do not."""
    ratios = {row["answers"]: row["ratio"] for row in rows}
    return [
        Target("quotations: tokens/s with guesses ÷ without", ratios["quotations"], 1.1, at_most=False),
        Target("free text: tokens/s with guesses ÷ without", ratios["free text"], 0.97, at_most=False),
    ]


def ask(http: httpx.Client, document: str, question: str, most: int, timings: Timings) -> str:
    """Ask a question about a document in a session of its own, add the answer's time to `timings` and return its text."""
    created = http.post("/v1/sessions", json={"documents": [document]})
    created.raise_for_status()
    session, timer, text = created.json()["id"], StreamTimer(), ""
    body = {"content": question, "max_tokens": most, "temperature": 0, "stream": True}
    with http.stream("POST", f"/v1/sessions/{session}/messages", json=body) as response:
        if response.is_error:
            raise RuntimeError(f"the question was refused with {response.status_code}: {response.read().decode()}")
        for line in response.iter_lines():
            timer.feed(line)
            if line.startswith("data: ") and '"response.completed"' in line:
                text = json.loads(line.removeprefix("data: "))["message"]["content"]
    timer.over = timer.over or time.perf_counter()
    http.delete(f"/v1/sessions/{session}")
    if timer.tokens > 1 and timer.stamps:
        timings.tokens += timer.tokens - 1
        timings.seconds += timer.over - timer.stamps[0]
    return text


def _row(kind: str, count: int, found: tuple[Timings, Timings], drafted: int, accepted: int) -> dict[str, Any]:
    without, with_guesses = found
    return {
        "answers": kind,
        "questions": count,
        "tokens": without.tokens,
        "tokens_per_second_without": without.rate,
        "tokens_per_second_with": with_guesses.rate,
        "ratio": with_guesses.rate / without.rate,
        "drafted": drafted,
        "accepted": accepted,
    }


def _counts(http: httpx.Client) -> tuple[int, int]:
    """Return the server's counts of verified guesses and of right ones."""
    counts = {}
    for line in http.get("/metrics").text.splitlines():
        name, _, value = line.partition(" ")
        counts[name] = value
    drafted, accepted = (float(counts[f"everlong_tokens_{name}_total"]) for name in ("drafted", "accepted"))
    return int(drafted), int(accepted)
