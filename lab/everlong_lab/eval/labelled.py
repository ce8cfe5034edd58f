"""`LabelledQuestion`: a question about a text, and the places in the text that tell its answer.

Somebody noted the words that tell each answer, in a file of JSON lines:

    {"text": "a book.md", "q": "Who runs the inn?", "a": "quill", "quote": "Mrs. Quill kept the inn by the harbour",
     "answer": "Mrs. Quill runs the inn."}

`a` is a regular expression, which the answer and the quote match. `answer` may be left out if there is a
quote. A question about the text as a whole has an answer, and neither `a` nor `quote`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from everlong_lab.corpora.datasets import checked, json_lines
from everlong_lab.eval.questions import find_texts, text_of


class LabelledQuestion(NamedTuple):
    """A question about the text named `text`.

    `spans`: start and end of each place that tells the answer, in characters of the text; () for a question about the text as a
    whole. `pattern`: a regular expression; sentences that match it may tell the answer, too. `answer`: None if nobody wrote one.
    """

    text: str
    question: str
    spans: tuple[tuple[int, int], ...]
    pattern: str | None = None
    answer: str | None = None


def texts_of(file: Path, folders: Sequence[Path]) -> dict[str, str]:
    """Return the texts that a file of questions is about, by name, from `folders`. Raises `DataError`."""
    names = list(dict.fromkeys(str(row.get("text")) for _, row in json_lines(file.parent, file.name)))
    return {name: text_of(path) for name, path in find_texts(names, folders).items()}


def questions(file: Path, texts: dict[str, str]) -> list[LabelledQuestion]:
    """Return the questions of a file. `texts`: by name. Raises `DataError`, also for a quote that is not in its text."""
    found = []
    for where, row in json_lines(file.parent, file.name):
        with checked(where):
            if "quote" not in row and "a" not in row:
                text, question, answer = (str(row[name]) for name in ("text", "q", "answer"))
                found.append(LabelledQuestion(text, question, (), answer=answer))
                continue
            text, question, pattern, quote = (str(row[name]) for name in ("text", "q", "a", "quote"))
            _require_pattern(pattern)
            if not (spans := places(quote, texts[text])):
                raise ValueError(f"the quote {quote!r:.80} is not in {text}")
        found.append(LabelledQuestion(text, question, spans, pattern, row.get("answer")))
    return found


def overlaps(start: int, end: int, question: LabelledQuestion) -> bool:
    """Return whether the characters `start` to `end` of the text share half of a place that tells the answer, or half of them are of it."""
    shared = ((min(end, last) - max(start, first), last - first) for first, last in question.spans)
    return any(both > 0 and 2 * both >= min(end - start, length) for both, length in shared)


def places(quote: str, text: str) -> tuple[tuple[int, int], ...]:
    """Return each place where the text has the words of a quote in a row, with any punctuation and white space between them."""
    words = re.findall(r"[^\W_]+", quote)
    if not words:
        return ()
    return tuple(match.span() for match in re.finditer(r"[\W_]+".join(map(re.escape, words)), text, re.IGNORECASE))


def _require_pattern(pattern: str) -> None:
    """Raise `ValueError` if `pattern` is no regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
