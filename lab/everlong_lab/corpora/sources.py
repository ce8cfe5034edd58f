"""Texts with questions and answers, one reader for each data set, as `Source` and `SourceQuestion`.

A source is what is held out: its questions are all learnt from or none. Data sets that were released in parts keep
them; of the others one source in ten is for validation, by its name's hash. Nothing is chosen or learnt on what
`everlong eval grounded` tests: test parts, and every second article of SQuAD.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from everlong_lab.corpora import text
from everlong_lab.corpora.datasets import checked, csv_rows, files, json_file, json_lines
from everlong_models.errors import DataError

DataSplit = Literal["train", "validation", "test"]

_LONG = 200
"""Characters from which on a paragraph of a prompt is taken for its passage."""


_IN_BOTH = frozenset(
    {
        "Warsaw",
        "Normans",
        "Computational_complexity_theory",
        "Huguenot",
        "Steam_engine",
        "1973_oil_crisis",
        "European_Union_law",
        "Packet_switching",
        "Immune_system",
        "Harvard_University",
        "Yuan_dynasty",
        "Scottish_Parliament",
        "Islamism",
        "Imperialism",
        "French_and_Indian_War",
        "Force",
    }
)
"""Articles that stand in XQuAD and in SQuAD 2.0's half."""


class SourceQuestion(NamedTuple):
    """`answers`: references, each as good as the others; none if the text does not hold one. `parts`: those of the source
    that they follow from, in order; None: all."""

    question: str
    answers: tuple[str, ...]
    parts: tuple[int, ...] | None = None


class Source(NamedTuple):
    """`parts`: sections, turns or paragraphs of a text, in order, `joint` between them; none: questions that need no text."""

    name: str
    parts: tuple[str, ...]
    joint: str
    questions: tuple[SourceQuestion, ...]


def fairytaleqa(folder: Path, part: DataSplit) -> list[Source]:
    """Stories of about 2,200 words, in sections; up to six answers to a question, and the sections that an annotator named."""
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
        asked = []
        for where, row in csv_rows(file, ("question", "cor_section", "answer1")):
            sections = re.findall(r"[^,;\s]+", row["cor_section"])
            if unknown := [section for section in sections if section not in numbers]:
                raise DataError(f"{where}: section {unknown[0]!r} is not in {story.name}")
            answers = [row.get(f"answer{n}") or "" for n in range(1, 7)]
            at = sorted(numbers[section] for section in sections)
            asked.append(SourceQuestion(row["question"].strip(), _different(answers), tuple(at)))
        sources.append(Source(name, tuple(parts), "\n\n", tuple(asked)))
    return sources


def squality(folder: Path, part: DataSplit) -> list[Source]:
    """Stories of about 5,000 words with four long answers to each question; the first question is for the plot."""
    named = {"train": "train", "validation": "dev", "test": "test"}[part]
    sources = []
    for where, story in json_lines(folder, f"txt/{named}.jsonl"):
        with checked(where):
            paragraphs = tuple(p.strip() for p in story["document"].split("\n\n") if p.strip())
            asked = [
                SourceQuestion(
                    str(question["question_text"]).strip(),
                    _different([str(response["response_text"]) for response in question["responses"]]),
                )
                for question in story["questions"]
            ]
            sources.append(Source(str(story["metadata"]["passage_id"]), paragraphs, "\n\n", tuple(asked)))
    return sources


def qmsum(folder: Path, part: DataSplit) -> list[Source]:
    """Meetings of about 9,000 words with queries and the turns that these are about."""
    named = {"train": "train", "validation": "val", "test": "test"}[part]
    sources = []
    for file in files(folder, f"ALL/{named}/*.json"):
        meeting = json_file(file)
        with checked(str(file)):
            turns = tuple(f"{turn['speaker']}: {turn['content']}" for turn in meeting["meeting_transcripts"])
            asked = [SourceQuestion(str(one["query"]), (str(one["answer"]),)) for one in meeting["general_query_list"]]
            for one in meeting["specific_query_list"]:
                spans = [(int(first), int(last)) for first, last in one["relevant_text_span"]]
                start, end = min(first for first, _ in spans), min(max(last for _, last in spans) + 1, len(turns))
                asked.append(SourceQuestion(str(one["query"]), (str(one["answer"]),), tuple(range(start, end))))
            sources.append(Source(file.stem, turns, "\n", tuple(asked)))
    return sources


def squad(folder: Path, part: DataSplit) -> list[Source]:
    """Paragraphs of SQuAD 2.0's half, every second article for the test, with the questions that they do not answer."""
    (file,) = files(folder, "dev-v2.0.json")
    return _squad(file, part, articles=slice(part == "test", None, 2), tested=part == "test")


def xquad(folder: Path, part: DataSplit) -> list[Source]:
    """SQuAD's paragraphs in XQuAD, without the articles that stand in SQuAD 2.0's half."""
    (file,) = files(folder, "xquad.en.json")
    return _squad(file, part, without=_IN_BOTH)


def policyqa(folder: Path, part: DataSplit) -> list[Source]:
    """Parts of privacy policies."""
    (file,) = files(folder, "data/dev.json")
    return _squad(file, part)


def t0_docqa(folder: Path, part: DataSplit) -> list[Source]:
    """Prompts made from templates (P3): the longest paragraph is the text, if it is long, all else the question."""
    sources = []
    for file in files(folder, "data_per_template/*.jsonl"):
        for where, row in json_lines(file.parent, file.name):
            with checked(where):
                paragraphs = [p.strip() for p in str(row["prompt"]).split("\n") if p.strip()]
                answer = str(row["completion"]).replace("<|endoftext|>", "").strip()
                longest = max(range(len(paragraphs)), key=lambda i: len(paragraphs[i]))
            if not answer:
                continue  # a few templates ask for what a row lacks
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
"""Readers by the data set's name. They take its folder and raise `DataError` naming file and line."""


def read(data: Path, name: str, *parts: DataSplit) -> list[Source]:
    """The sources of some parts of a data set that have questions. Raises `DataError`, also if there is none."""
    folder = text.find(data, name)
    found = [source for part in parts for source in SOURCES[name](folder, part) if source.questions]
    if not found:
        raise DataError(f"{folder} holds nothing of the part {' or '.join(map(repr, parts))}")
    return found


def _instructions(rows: Iterable[tuple[str, dict[str, Any]]], part: DataSplit) -> list[Source]:
    sources = []
    for where, row in rows:
        with checked(where):
            asked, given, answer = (str(row[key]).strip() for key in ("instruction", "input", "output"))
        if asked and answer and _part(asked) == part:
            question = f"{asked}\n\n{given}" if given else asked
            sources.append(Source(asked[:60], (), "", (SourceQuestion(question, (answer,)),)))
    return sources


def _squad(
    file: Path,
    part: DataSplit,
    *,
    articles: slice = slice(None),
    without: frozenset[str] = frozenset(),
    tested: bool = False,
) -> list[Source]:
    """`tested`: all of the articles, else those of the part by their title."""
    sources = []
    stored = json_file(file)
    with checked(str(file)):
        for article in stored["data"][articles]:
            title = str(article["title"])
            if title in without or not (tested or _part(title) == part):
                continue
            for number, paragraph in enumerate(article["paragraphs"]):
                context = str(paragraph["context"])
                asked = [
                    SourceQuestion(
                        str(qa["question"]).strip(),
                        _different([_squad_answer(qa["id"], a, context) for a in qa["answers"]]),
                    )
                    for qa in paragraph["qas"]
                ]
                sources.append(Source(f"{title} {number}", (context,), "", tuple(asked)))
    return sources


def _squad_answer(question: str, stored: dict[str, Any], context: str) -> str:
    start, answer = stored["answer_start"], str(stored["text"])
    if context[start : start + len(answer)] != answer:
        raise ValueError(f"question {question}: the answer {answer!r} is not at character {start}")
    return answer


def _different(answers: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(answer.strip() for answer in answers if answer.strip()))


def _body(passage: str) -> str:
    """Its longest sentence: by that a passage is the same one in other prompts, which put words of theirs around it."""
    return max(re.split(r"(?<=[.!?])\s+", passage), key=len)


def _part(name: str) -> DataSplit:
    return "validation" if int(hashlib.sha256(name.encode()).hexdigest(), 16) % 10 == 0 else "train"
