"""Read data sets of texts with questions and answers as `Source` and `SourceQuestion`, one reader per data set.

A source is in one split with all of its questions. Data sets that were released in splits keep them. Of the others, one
source in ten is for validation, chosen by the hash of its name. Nothing that `everlong eval grounded` tests is used for
training or for choosing settings: the test splits, and every second article of SQuAD.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from everlong_lab.corpora import text
from everlong_lab.corpora.datasets import checked, csv_rows, files, json_file, json_lines
from everlong_models.errors import DataError

DataSplit = Literal["train", "validation", "test"]

_LONG = 200
"""Minimum number of characters of a paragraph that is taken for a prompt's passage."""


_IN_BOTH = frozenset((
    "Warsaw", "Normans", "Computational_complexity_theory", "Huguenot", "Steam_engine", "1973_oil_crisis", "European_Union_law",
    "Packet_switching", "Immune_system", "Harvard_University", "Yuan_dynasty", "Scottish_Parliament", "Islamism", "Imperialism",
    "French_and_Indian_War", "Force",
))  # fmt: skip
"""Articles that are both in XQuAD and in our half of SQuAD 2.0."""


class SourceQuestion(NamedTuple):
    """`answers`: equally good references; none if the text does not answer the question. `parts`: indices of the source's
    parts that the answer follows from, in order; None for all."""

    question: str
    answers: tuple[str, ...]
    parts: tuple[int, ...] | None = None


class Source(NamedTuple):
    """`parts`: sections, turns or paragraphs of a text, in order, to be joined by `joint`; none if questions need no text."""

    name: str
    parts: tuple[str, ...]
    joint: str
    questions: tuple[SourceQuestion, ...]


def fairytaleqa(folder: Path, part: DataSplit) -> list[Source]:
    """Stories of about 2,200 words in sections. A question has up to six answers, and sections named by an annotator."""
    named = {"train": "train", "validation": "val", "test": "test"}[part]
    sources = []
    for file in files(folder, f"questions/{named}/*-questions.csv"):
        name = file.name.removesuffix("-questions.csv")
        story = file.parents[2] / "section-stories" / named / f"{name}-story.csv"
        parts: list[str] = []
        numbers: dict[str, int] = {}
        for _, row in csv_rows(story, ("section", "text")):
            numbers[row["section"].strip()] = len(parts)
            parts.append(row["text"].strip())
        questions = []
        for where, row in csv_rows(file, ("question", "cor_section", "answer1")):
            sections = re.findall(r"[^,;\s]+", row["cor_section"])
            if unknown := [section for section in sections if section not in numbers]:
                raise DataError(f"{where}: section {unknown[0]!r} is not in {story.name}")
            answers = [row.get(f"answer{n}") or "" for n in range(1, 7)]
            indices = sorted(numbers[section] for section in sections)
            questions.append(SourceQuestion(row["question"].strip(), _different(answers), tuple(indices)))
        sources.append(Source(name, tuple(parts), "\n\n", tuple(questions)))
    return sources


def squality(folder: Path, part: DataSplit) -> list[Source]:
    """Stories of about 5,000 words with four long answers to each question. The first question asks for the plot."""
    named = {"train": "train", "validation": "dev", "test": "test"}[part]
    sources = []
    for where, story in json_lines(folder, f"txt/{named}.jsonl"):
        with checked(where):
            paragraphs = tuple(p.strip() for p in story["document"].split("\n\n") if p.strip())
            questions = [
                SourceQuestion(
                    str(question["question_text"]).strip(),
                    _different([str(response["response_text"]) for response in question["responses"]]),
                )
                for question in story["questions"]
            ]
            sources.append(Source(str(story["metadata"]["passage_id"]), paragraphs, "\n\n", tuple(questions)))
    return sources


def qmsum(folder: Path, part: DataSplit) -> list[Source]:
    """Meetings of about 9,000 words with queries and the turns that each query is about."""
    named = {"train": "train", "validation": "val", "test": "test"}[part]
    sources = []
    for file in files(folder, f"ALL/{named}/*.json"):
        meeting = json_file(file)
        with checked(str(file)):
            turns = tuple(f"{turn['speaker']}: {turn['content']}" for turn in meeting["meeting_transcripts"])
            questions = [
                SourceQuestion(str(one["query"]), (str(one["answer"]),)) for one in meeting["general_query_list"]
            ]
            for one in meeting["specific_query_list"]:
                spans = [(int(first), int(last)) for first, last in one["relevant_text_span"]]
                start, end = min(first for first, _ in spans), min(max(last for _, last in spans) + 1, len(turns))
                questions.append(SourceQuestion(str(one["query"]), (str(one["answer"]),), tuple(range(start, end))))
            sources.append(Source(file.stem, turns, "\n", tuple(questions)))
    return sources


def squad(folder: Path, part: DataSplit) -> list[Source]:
    """Paragraphs of our half of SQuAD 2.0, with its unanswerable questions. Every second article is for the test."""
    (file,) = files(folder, "dev-v2.0.json")
    return _squad(file, part, articles=slice(part == "test", None, 2), tested=part == "test")


def xquad(folder: Path, part: DataSplit) -> list[Source]:
    """SQuAD's paragraphs in XQuAD, without the articles in our half of SQuAD 2.0."""
    (file,) = files(folder, "xquad.en.json")
    return _squad(file, part, without=_IN_BOTH)


def policyqa(folder: Path, part: DataSplit) -> list[Source]:
    """Parts of privacy policies with questions."""
    (file,) = files(folder, "data/dev.json")
    return _squad(file, part)


def t0_docqa(folder: Path, part: DataSplit) -> list[Source]:
    """Prompts made from templates (P3). The longest paragraph, if long enough, is the text; the rest is the question."""
    sources = []
    for file in files(folder, "data_per_template/*.jsonl"):
        for where, row in json_lines(file.parent, file.name):
            with checked(where):
                paragraphs = [p.strip() for p in str(row["prompt"]).split("\n") if p.strip()]
                answer = str(row["completion"]).replace("<|endoftext|>", "").strip()
                longest = max(range(len(paragraphs)), key=lambda i: len(paragraphs[i]))
            if not answer:
                continue  # a few templates refer to values that a row lacks
            passage = paragraphs.pop(longest) if len(paragraphs[longest]) >= _LONG else ""
            if paragraphs:
                name = passage or paragraphs[0]
                question = SourceQuestion("\n".join(paragraphs), (answer,))
                if _part(_body(name)) == part:
                    sources.append(Source(name[:60], (passage,) if passage else (), "", (question,)))
    return sources


def instruct_rasbt(folder: Path, part: DataSplit) -> list[Source]:
    """Short instructions."""
    (file,) = files(folder, "instruction-data.json")
    return _instructions(((f"{file}, entry {i}", row) for i, row in enumerate(json_file(file, list))), part)


def instruct_small(folder: Path, part: DataSplit) -> list[Source]:
    """Instructions written by people for Self-Instruct."""
    rows = []
    for name in ("seed_tasks.jsonl", "user_oriented_instructions.jsonl"):
        for where, row in json_lines(folder, name):
            with checked(where):
                rows.append((where, {"instruction": row["instruction"]} | row["instances"][0]))
    return _instructions(rows, part)


SOURCES: dict[str, Callable[[Path, DataSplit], list[Source]]] = {
    "fairytaleqa": fairytaleqa,
    "squality": squality,
    "qmsum": qmsum,
    "squad2_dev_half": squad,
    "xquad_en": xquad,
    "policyqa": policyqa,
    "t0_docqa": t0_docqa,
    "instruct_rasbt": instruct_rasbt,
    "instruct_small": instruct_small,
}
"""Readers by name of the data set. They take its folder and raise `DataError` naming file and line."""


def read(data: Path, name: str, *parts: DataSplit) -> list[Source]:
    """Return the sources with questions of some splits of a data set. Raises `DataError`, also if there are none."""
    folder = text.find(data, name)
    found = [source for part in parts for source in SOURCES[name](folder, part) if source.questions]
    if not found:
        raise DataError(f"{folder} has no questions in the split {' or '.join(map(repr, parts))}")
    return found


def _instructions(rows: Iterable[tuple[str, dict[str, Any]]], part: DataSplit) -> list[Source]:
    sources = []
    for where, row in rows:
        with checked(where):
            instruction, context, answer = (str(row[key]).strip() for key in ("instruction", "input", "output"))
        if instruction and answer and _part(instruction) == part:
            question = f"{instruction}\n\n{context}" if context else instruction
            sources.append(Source(instruction[:60], (), "", (SourceQuestion(question, (answer,)),)))
    return sources


def _squad(
    file: Path,
    part: DataSplit,
    *,
    articles: slice = slice(None),
    without: frozenset[str] = frozenset(),
    tested: bool = False,
) -> list[Source]:
    """Read a file in SQuAD's format. `tested`: return all `articles`, not only those that belong to `part` by their title."""
    sources = []
    stored = json_file(file)
    with checked(str(file)):
        for article in stored["data"][articles]:
            title = str(article["title"])
            if title in without or not (tested or _part(title) == part):
                continue
            for number, paragraph in enumerate(article["paragraphs"]):
                context = str(paragraph["context"])
                questions = [
                    SourceQuestion(
                        str(qa["question"]).strip(),
                        _different([_squad_answer(qa["id"], a, context) for a in qa["answers"]]),
                    )
                    for qa in paragraph["qas"]
                ]
                sources.append(Source(f"{title} {number}", (context,), "", tuple(questions)))
    return sources


def _squad_answer(question: str, stored: dict[str, Any], context: str) -> str:
    start, answer = stored["answer_start"], str(stored["text"])
    if context[start : start + len(answer)] != answer:
        raise ValueError(f"question {question}: the answer {answer!r} is not at character {start}")
    return answer


def _different(answers: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(answer.strip() for answer in answers if answer.strip()))


def _body(passage: str) -> str:
    """Return the passage's longest sentence, which identifies it in prompts that put other words around it."""
    return max(re.split(r"(?<=[.!?])\s+", passage), key=len)


def _part(name: str) -> DataSplit:
    return "validation" if text.is_held_out(name, 10) else "train"
