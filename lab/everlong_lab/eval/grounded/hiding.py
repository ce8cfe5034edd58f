"""Documents of a wanted length: sources hidden in novels, or a stretch of a source that is longer than that."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from everlong_lab.corpora.text import read
from everlong_lab.eval.grounded.questions import Question, Span, SourceText
from everlong_lab.eval.grounded.scores import content_words
from everlong_models.errors import DataError

_HIDDEN = 10
"""At most so many short passages are hidden in a document, and they make up at most a third of it."""
_QUESTIONS = 10
"""At most so many questions are asked about a document, so that a sample has many documents."""


@dataclass(frozen=True, slots=True)
class DocumentQuestion:
    """A question of a document. `source`: the text that it is about. `right` and `places` are as of `Question`, in characters of the document."""

    source: str
    question: str
    answers: tuple[str, ...]
    right: tuple[Span, ...]
    places: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class HaystackDocument:
    """A document with what is asked about it. `tokens`: its length."""

    text: str
    tokens: int
    questions: tuple[DocumentQuestion, ...]

    def passage(self, asked: DocumentQuestion) -> str:
        """The right parts, word for word."""
        return "\n\n".join(self.text[start:end].strip() for start, end in asked.right)


def rank(document: HaystackDocument, asked: DocumentQuestion, evidence: Sequence[Span]) -> int | None:
    """How many pieces of `evidence`, the best first, it takes until they hold the answer; None if all don't.

    They do if an answer that stands in the right parts word for word lies within one piece. Of an answer in other words
    they do if, within one right part, they have at least fifty characters and at least half of the answer's content
    words that this part has, if it has any.
    """
    for number, (start, end) in enumerate(evidence, 1):
        if asked.places:
            if any(start <= first and last <= end for first, last in asked.places):
                return number
        elif any(_held(document.text, part, evidence[:number], asked.answers) for part in asked.right):
            return number
    return None


def stated(document: HaystackDocument, asked: DocumentQuestion) -> bool:
    """Whether a right part has a word of an answer at all. Where none has ("Why did she cry?" "She was sad."), `rank` cannot
    tell whether evidence holds it."""
    parts = [content_words(document.text[start:end]) for start, end in asked.right]
    return bool(asked.places) or any(part & content_words(answer) for part in parts for answer in asked.answers)


def _held(text: str, part: Span, evidence: Sequence[Span], answers: Sequence[str]) -> bool:
    inside = [text[max(start, part[0]) : min(end, part[1])] for start, end in evidence]
    found, possible = content_words(" ".join(inside)), content_words(text[slice(*part)])
    there = [possible & wanted for wanted in map(content_words, answers)]
    enough = any(words and 2 * len(found & words) >= len(words) for words in there)
    return enough and sum(map(len, inside)) >= 50


def books(folder: Path) -> list[Path]:
    """The books in a folder. Raises `DataError` if there are none."""
    files = sorted(folder.glob("*.md")) + sorted(folder.glob("*.txt"))
    if not files:
        raise DataError(f"{folder} holds no books (*.md, *.txt)")
    return files


class Novels:
    """SourceText to hide things in: books, each from a place drawn anew."""

    def __init__(self, files: Sequence[Path], count: Callable[[str], int]) -> None:
        """`count`: tokens of a text. Raises `DataError`."""
        self._texts = [read(file) for file in files]
        self._count = count

    def take(self, tokens: int, draw: random.Random) -> list[str]:
        """Paragraphs of about so many tokens, one or several books' worth."""
        taken: list[str] = []
        while tokens > 0:
            text = draw.choice(self._texts)
            rate = len(text[:20_000]) / self._count(text[:20_000])
            start = draw.randrange(max(1, len(text) - int(tokens * rate)))
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
    """Documents of about `tokens` tokens, without end; no text again until all were used.

    `answerable`: questions with an answer, else those without. `every`: all of a text's, not one of a short passage and ten of
    another text.
    """
    draw = random.Random(seed)  # noqa: S311 - for samples, not for secrets
    texts = [s for s in texts if any(bool(q.answers) == answerable for q in s.questions)]
    while True:
        waiting = draw.sample(texts, len(texts))
        while waiting:
            if waiting[-1].whole:
                source = waiting.pop()
                asked = [q for q in source.questions if bool(q.answers) == answerable]
                name, text, held = _stretch(source, draw.sample(asked, len(asked)), tokens, count)
                pieces: list[Piece] = [(name, text, held if every else held[:_QUESTIONS])]
            else:
                pieces = []
                room = tokens / 3
                while waiting and len(pieces) < _HIDDEN and (not pieces or room > count(waiting[-1].text)):
                    source = waiting.pop()
                    asked = [q for q in source.questions if bool(q.answers) == answerable]
                    pieces.append((source.name, source.text, draw.sample(asked, len(asked) if every else 1)))
                    room -= count(source.text)
            yield _hide(pieces, novels, tokens, count, draw)


Piece = tuple[str, str, list[Question]]
"""A source's name, its text or a stretch of it, and what is asked about that."""


def _stretch(source: SourceText, asked: Sequence[Question], tokens: int, count: Callable[[str], int]) -> Piece:
    """The source, or so many tokens of it around what the first question is about; and the questions that it holds."""
    start, end = 0, len(source.text)
    if (all_of_it := count(source.text)) > tokens:
        size = int(len(source.text) * tokens / all_of_it)
        first, last = asked[0].right[0]
        start = min(max(0, (first + last - size) // 2), len(source.text) - size)
        # At borders of words.
        start = start and source.text.index(" ", start) + 1
        end = start + len(source.text[start : start + size].rsplit(" ", 1)[0]) if start + size < end else end
    moved = []
    for q in asked:
        right, places = ([(a - start, b - start) for a, b in s if start <= a and b <= end] for s in (q.right, q.places))
        if len(right) == len(q.right):
            moved.append(Question(q.text, q.answers, tuple(right), tuple(places)))
    return source.name, source.text[start:end], moved


def _hide(pieces: list[Piece], novels: Novels, tokens: int, count: Callable[[str], int], draw: random.Random) -> HaystackDocument:
    around = novels.take(tokens - sum(count(text) for _, text, _ in pieces), draw)
    # Spread evenly: a place drawn from each piece's share of the paragraphs.
    places = [(n * len(around) + draw.randrange(len(around) + 1)) // len(pieces) for n in range(len(pieces))]
    text, asked, at = "", [], 0
    for (source, piece, questions), place in zip(draw.sample(pieces, len(pieces)), places, strict=True):
        text += "".join(f"{paragraph}\n\n" for paragraph in around[at:place])
        at = max(at, place)
        for q in questions:
            right, spots = (tuple((a + len(text), b + len(text)) for a, b in spans) for spans in (q.right, q.places))
            asked.append(DocumentQuestion(source, q.text, q.answers, right, spots))
        text += piece + "\n\n"
    text += "\n\n".join(around[at:])
    return HaystackDocument(text, count(text), tuple(asked))
