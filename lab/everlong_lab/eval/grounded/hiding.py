"""Build documents of a given length: sources hidden in novels, or a stretch of a longer source."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from everlong_lab.corpora.text import read
from everlong_lab.eval.grounded.questions import Question, SourceText, Span
from everlong_lab.eval.grounded.scores import content_words
from everlong_models.errors import DataError

_HIDDEN = 10
"""Maximum number of short passages hidden in a document; together they take at most a third of it."""
_QUESTIONS = 10
"""Maximum number of questions about a document, so that a sample covers many documents."""


@dataclass(frozen=True, slots=True)
class DocumentQuestion:
    """A question about a document. `source`: name of the text it is about. `right` and `places`: as in `Question`, but in
    characters of the document."""

    source: str
    question: str
    answers: tuple[str, ...]
    right: tuple[Span, ...]
    places: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class HaystackDocument:
    """A document with questions about it. `tokens`: its length."""

    text: str
    tokens: int
    questions: tuple[DocumentQuestion, ...]

    def passage(self, question: DocumentQuestion) -> str:
        """Return the parts of the text that answer the question."""
        return "\n\n".join(self.text[start:end].strip() for start, end in question.right)


def rank(document: HaystackDocument, question: DocumentQuestion, evidence: Sequence[Span]) -> int | None:
    """Return how many pieces of `evidence`, best first, are needed to hold the answer; None if all of them do not.

    If an answer occurs verbatim in the right parts, one piece must contain it. Otherwise, within one right part, the pieces
    must have at least fifty characters and at least half of the answer's content words that occur in this part.
    """
    for number, (start, end) in enumerate(evidence, 1):
        if question.places:
            if any(start <= first and last <= end for first, last in question.places):
                return number
        elif any(_holds_answer(document.text, part, evidence[:number], question.answers) for part in question.right):
            return number
    return None


def stated(document: HaystackDocument, question: DocumentQuestion) -> bool:
    """Return whether a right part shares a word with an answer. If none does ("Why did she cry?" "She was sad."), `rank`
    cannot tell whether evidence holds the answer."""
    parts = [content_words(document.text[start:end]) for start, end in question.right]
    return bool(question.places) or any(part & content_words(answer) for part in parts for answer in question.answers)


def _holds_answer(text: str, part: Span, evidence: Sequence[Span], answers: Sequence[str]) -> bool:
    inside = [text[max(start, part[0]) : min(end, part[1])] for start, end in evidence]
    found, possible = content_words(" ".join(inside)), content_words(text[slice(*part)])
    expected = [possible & wanted for wanted in map(content_words, answers)]
    enough = any(words and 2 * len(found & words) >= len(words) for words in expected)
    return enough and sum(map(len, inside)) >= 50


def books(folder: Path) -> list[Path]:
    """Return the books in a folder. Raises `DataError` if there are none."""
    files = sorted(folder.glob("*.md")) + sorted(folder.glob("*.txt"))
    if not files:
        raise DataError(f"{folder} has no books (*.md, *.txt)")
    return files


class Novels:
    """Book text to hide sources in, each time from a random place."""

    def __init__(self, files: Sequence[Path], count: Callable[[str], int]) -> None:
        """`count` returns the number of tokens of a text. Raises `DataError`."""
        self._texts = [read(file) for file in files]
        self._count = count

    def take(self, tokens: int, rng: random.Random) -> list[str]:
        """Return paragraphs of about `tokens` tokens, from as many books as needed."""
        taken: list[str] = []
        while tokens > 0:
            text = rng.choice(self._texts)
            rate = len(text[:20_000]) / self._count(text[:20_000])
            start = rng.randrange(max(1, len(text) - int(tokens * rate)))
            paragraphs = [p for p in text[start : start + int(tokens * rate)].split("\n\n")[1:-1] if p.strip()]
            taken += paragraphs
            tokens -= max(1, self._count("\n\n".join(paragraphs))) if paragraphs else 0
            if tokens < 100:
                break
        return taken


def documents(
    texts: Sequence[SourceText],
    novels: Novels,
    tokens: int,
    count: Callable[[str], int],
    seed: int,
    *,
    answerable: bool,
    every: bool = False,
) -> Iterator[HaystackDocument]:
    """Yield documents of about `tokens` tokens, endlessly. All texts are used before one is used again.

    `answerable`: use the questions that have an answer, otherwise those that have none. `every`: use all questions of a
    text, instead of one per short passage and ten per long text.
    """
    rng = random.Random(seed)  # noqa: S311 - for samples, not for secrets
    texts = [text for text in texts if _questions_of(text, answerable)]
    while True:
        waiting = rng.sample(texts, len(texts))
        while waiting:
            if waiting[-1].whole:
                source = waiting.pop()
                questions = _questions_of(source, answerable)
                name, text, held = _stretch(source, rng.sample(questions, len(questions)), tokens, count)
                pieces: list[Piece] = [(name, text, held if every else held[:_QUESTIONS])]
            else:
                pieces = []
                room = tokens / 3
                while waiting and len(pieces) < _HIDDEN and (not pieces or room > count(waiting[-1].text)):
                    source = waiting.pop()
                    questions = _questions_of(source, answerable)
                    pieces.append((source.name, source.text, rng.sample(questions, len(questions) if every else 1)))
                    room -= count(source.text)
            yield _hide(pieces, novels, tokens, count, rng)


def _questions_of(text: SourceText, answerable: bool) -> list[Question]:
    return [question for question in text.questions if bool(question.answers) == answerable]


Piece = tuple[str, str, list[Question]]
"""A source's name, its text or a stretch of it, and questions about that."""


def _stretch(source: SourceText, questions: Sequence[Question], tokens: int, count: Callable[[str], int]) -> Piece:
    """Return the source, or `tokens` tokens of it around what the first question is about, with the questions it answers."""
    start, end = 0, len(source.text)
    if (total := count(source.text)) > tokens:
        size = int(len(source.text) * tokens / total)
        first, last = questions[0].right[0]
        start = min(max(0, (first + last - size) // 2), len(source.text) - size)
        # Cut between words.
        start = start and source.text.index(" ", start) + 1
        end = start + len(source.text[start : start + size].rsplit(" ", 1)[0]) if start + size < end else end
    moved = []
    for q in questions:
        right, places = ([(a - start, b - start) for a, b in s if start <= a and b <= end] for s in (q.right, q.places))
        if len(right) == len(q.right):
            moved.append(Question(q.text, q.answers, tuple(right), tuple(places)))
    return source.name, source.text[start:end], moved


def _hide(
    pieces: list[Piece], novels: Novels, tokens: int, count: Callable[[str], int], rng: random.Random
) -> HaystackDocument:
    around = novels.take(tokens - sum(count(text) for _, text, _ in pieces), rng)
    # Spread the pieces evenly: each gets a random place within its share of the paragraphs.
    places = [(n * len(around) + rng.randrange(len(around) + 1)) // len(pieces) for n in range(len(pieces))]
    text, questions, at = "", [], 0
    for (source, piece, about), place in zip(rng.sample(pieces, len(pieces)), places, strict=True):
        text += "".join(f"{paragraph}\n\n" for paragraph in around[at:place])
        at = max(at, place)
        for q in about:
            right, spots = (tuple((a + len(text), b + len(text)) for a, b in spans) for spans in (q.right, q.places))
            questions.append(DocumentQuestion(source, q.text, q.answers, right, spots))
        text += piece + "\n\n"
    text += "\n\n".join(around[at:])
    return HaystackDocument(text, count(text), tuple(questions))
