"""Texts with questions about them, as `Source` and `Question`; one reader for each data set."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from everlong_models.errors import DataError
from everlong_server.eval.data import find, read_text
from everlong_server.eval.scores import content_words

Span = tuple[int, int]
Split = Literal["tune", "test"]
"""`tune`: for choosing templates and thresholds. `test`: for tables. No text stands in both."""


@dataclass(frozen=True, slots=True)
class Question:
    """`answers`: references, each as good as the others; none if the text does not hold the answer.

    `right`: the parts of the source's text, as characters (start, end), any of which a person would look the answer up in.
    `places`: where in them an answer stands word for word, if it does.
    """

    text: str
    answers: tuple[str, ...]
    right: tuple[Span, ...]
    places: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """A text and what is asked about it. `whole`: it is a document by itself, not one of many short passages."""

    name: str
    text: str
    whole: bool
    questions: tuple[Question, ...]


def fairytaleqa(folder: Path, split: Split) -> list[Source]:
    """Stories of about 2,200 words; the right part is the sections that the annotator named. Raises `DataError`."""
    part = {"tune": "val", "test": "test"}[split]
    stories, asked = (find(folder, f"data-by-train-split/{kind}") / part for kind in ("section-stories", "questions"))
    files = sorted(asked.glob("*-questions.csv"))
    if not files:
        raise DataError(f"{asked} holds no *-questions.csv")
    sources = []
    for file in files:
        name = file.name.removesuffix("-questions.csv")
        text, spans = "", {}
        for where, row in _rows(stories / f"{name}-story.csv", ("section", "text")):
            if text:
                text += "\n\n"
            start = len(text)
            text += row["text"].strip()
            spans[_number(row["section"], where)] = (start, len(text))
        questions = []
        for where, row in _rows(file, ("question", "cor_section", "answer1")):
            answers = [row.get(f"answer{n}") or "" for n in range(1, 7)]
            numbers = [_number(number, where) for number in re.split(r"[,;\s]+", row["cor_section"].strip())]
            if unknown := [number for number in numbers if number not in spans]:
                raise DataError(f"{where}: section {unknown[0]} is not in the story")
            questions.append(_question(row["question"], answers, _joined(spans[number] for number in numbers), text))
        sources.append(Source(name, text, True, tuple(questions)))
    return sources


def squality(folder: Path, split: Split) -> list[Source]:
    """Stories of about 5,000 words with four long answers to each question; the first question, for the plot, is left out.

    Nobody noted where an answer stands: the right parts are the three stretches of a hundred words that have most
    of what all four answers say (words that the story repeats everywhere weigh less). Raises `DataError`.
    """
    file = find(folder, f"txt/{ {'tune': 'dev', 'test': 'test'}[split] }.jsonl")
    sources = []
    for number, line in enumerate(read_text(file).splitlines(), 1):
        where = f"{file}, line {number}"
        try:
            story = json.loads(line)
            name, text = str(story["metadata"]["passage_id"]), str(story["document"]).strip()
            asked = [
                (str(q["question_text"]), [str(r["response_text"]).strip() for r in q["responses"]])
                for q in story["questions"][1:]
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{where}: {_said(error)}") from error
        stretches = _stretches(text)
        questions = [Question(q.strip(), tuple(a), _silver(text, stretches, a), ()) for q, a in asked]
        sources.append(Source(name, text, True, tuple(questions)))
    return sources


def squad(folder: Path, split: Split) -> list[Source]:
    """Paragraphs of SQuAD 2.0, articles of even number for tuning and of odd number for the test. Raises `DataError`."""
    file = find(folder, "dev-v2.0.json")
    sources = []
    try:
        articles = json.loads(read_text(file))["data"]
        for article in articles[split == "test" :: 2]:
            for number, paragraph in enumerate(article["paragraphs"]):
                text = paragraph["context"]
                questions = tuple(_squad_question(q, text) for q in paragraph["qas"])
                sources.append(Source(f"{article['title']} {number}", text, False, questions))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file}: {_said(error)}") from error
    return sources


Reader = Callable[[Path, Split], list[Source]]
READERS: dict[str, tuple[str, Reader]] = {
    "squad": ("squad2_dev_half", squad),
    "fairytaleqa": ("fairytaleqa", fairytaleqa),
    "squality": ("squality", squality),
}
"""By name: the data set's name and its reader."""


def _squad_question(stored: dict[str, Any], text: str) -> Question:
    for answer in stored["answers"]:
        start, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
        if text[start:end] != answer["text"]:
            raise ValueError(f"question {stored['id']}: the answer is not at character {start}")
    # A question without an answer was asked about this paragraph all the same.
    return _question(stored["question"], [answer["text"] for answer in stored["answers"]], [(0, len(text))], text)


def _question(question: str, answers: Sequence[str], right: Sequence[Span], text: str) -> Question:
    answers = tuple(dict.fromkeys(answer.strip() for answer in answers if answer.strip()))
    places: set[Span] = set()
    for answer in answers:
        words = r"\W+".join(map(re.escape, re.findall(r"\w+", answer)))
        if words:
            pattern = re.compile(rf"(?<!\w){words}(?!\w)", re.IGNORECASE)
            places |= {match.span() for start, end in right for match in pattern.finditer(text, start, end)}
    return Question(question.strip(), answers, tuple(right), tuple(sorted(places)))


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Spans that follow each other as one."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start - joined[-1][1] <= len("\n\n"):
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _stretches(text: str) -> list[Span]:
    words = [match.span() for match in re.finditer(r"\S+", text)]
    return [(words[at][0], words[min(at + 100, len(words)) - 1][1]) for at in range(0, len(words), 50)]


def _silver(text: str, stretches: Sequence[Span], answers: Sequence[str]) -> tuple[Span, ...]:
    held = [content_words(text[start:end]) for start, end in stretches]
    common = Counter(word for words in held for word in words)
    wanted = Counter(word for answer in answers for word in content_words(answer))
    scores = [sum(wanted[word] / common[word] for word in words) for words in held]
    best = sorted(range(len(stretches)), key=lambda n: -scores[n])[:3]
    return tuple(stretches[n] for n in sorted(best))


def _rows(file: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Rows of a CSV file, each with its place for complaints."""
    reader = csv.DictReader(io.StringIO(read_text(file), newline=""))
    if missing := [column for column in columns if column not in (reader.fieldnames or ())]:
        raise DataError(f"{file}, line 1: no column {missing[0]!r}")
    while True:
        where = f"{file}, line {reader.line_num + 1}"
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise DataError(f"{where}: {error}") from error
        if row is None:
            return
        if empty := [column for column in columns if not (row[column] or "").strip()]:
            raise DataError(f"{where}: nothing in column {empty[0]!r}")
        yield where, row


def _number(text: str, where: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise DataError(f"{where}: {text!r} is no number of a section") from error


def _said(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)
