"""What `everlong eval grounded` measures, and the report of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from everlong_lab.eval.grounded.hiding import DocumentQuestion
from everlong_lab.eval.grounded.questions import SETS, Split
from everlong_lab.eval.grounded.scores import Mean, mean, ratio
from everlong_lab.harness.report import Report, Target
from everlong_models import Model
from everlong_server.engine.answering.evidence.grounding import Recall
from everlong_server.engine.answering.evidence.templates import INSTRUCT, TEMPLATE, Template

WAYS = {
    "neither": "the question alone",
    "memory": "what the model has read is in its memory; no passages",
    "recall": "passages of the document before the question; an empty memory",
    "both": "as the server answers",
    "ceiling": "the right passage before the question, and nothing else",
    "floor": "the backbone by itself, on the end of the document that its own positions hold",
}
"""What an answer is based on."""

REFUSALS = {"asked": "wrongly", "elsewhere": "what is not in it", "impossible": "what it nearly holds"}
"""Kinds of questions, and what a refusal of each means. `asked`: answered by this document. `elsewhere`: about the document
before. `impossible`: about this document's passages, which do not hold the answer."""

TEMPLATES = {
    "few-words": TEMPLATE,
    "instruct": INSTRUCT,
    "passages": Template("Passages from the text above that may help to answer:\n\n", "\n\n[…]\n\n", "\n\nQuestion: "),
    "plain": Template("", "\n\n", "\n\n"),
}
"""The templates that the server uses, for models trained with it and for instruct models, and those they were compared with."""


@dataclass(frozen=True, slots=True)
class GroundedPlan:
    """What to measure. `samples`: number of questions answered per set and length. `searches`: number of questions searched
    for, which needs no model. `recall`: None uses the server's default. `floor`: positions of the backbone baseline."""

    sets: tuple[str, ...] = tuple(SETS)
    lengths: tuple[int, ...] = (2_000, 8_000, 32_000)
    ways: tuple[str, ...] = tuple(WAYS)
    samples: int = 60
    searches: int = 300
    split: Split = "test"
    seed: int = 0
    template: str = "few-words"
    recall: Recall | None = None
    floor: int = 8192
    max_tokens: int = 32


@dataclass(slots=True)
class GroundedScores:
    """Results for one set and length, as they are written to `--json`.

    `tokens`: lengths of the documents. `ranks`: `rank` of the questions whose answers are `stated`; `ranked`: the texts that
    these are about; `untold`: number of the other questions. `shares`, `refused` and `sources` are by kind of question,
    see `REFUSALS`: the best passage's share of the question's words, 0 where nothing was found; 1 where nothing was found so
    that the model is told to refuse; and the text that each question is about. `scores`: by way, (F1, exact match, answer contained, refused) of
    each question, in the same order. `declined`: for unanswerable questions, 1 where the model refused. `answered`: number
    of questions asked in every way.
    """

    name: str
    length: int
    tokens: list[int] = field(default_factory=list)
    ranks: list[int | None] = field(default_factory=list)
    ranked: list[str] = field(default_factory=list)
    untold: int = 0
    shares: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, list[float]] = field(default_factory=dict)
    sources: dict[str, list[str]] = field(default_factory=dict)
    scores: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    declined: list[float] = field(default_factory=list)
    answered: int = 0
    answers: list[dict[str, Any]] = field(default_factory=list)

    def keep(self, way: str, question: DocumentQuestion, answer: str, score: float) -> None:
        """Record an answer for the file."""
        self.answers.append(
            {"set": self.name, "length": self.length, "way": way, "question": question.question,
             "references": question.answers, "answer": answer, "score": score}
        )  # fmt: skip


def report(plan: GroundedPlan, model: Model, cells: Sequence[GroundedScores], minutes: float) -> Report:
    rows: list[dict[str, Any]] = []
    targets: list[Target] = []
    for cell in cells:
        sources = cell.sources["asked"]
        hit = mean([float(found is not None) for found in cell.ranks], cell.ranked, plan.seed)
        first = mean([1 / found if found else 0.0 for found in cell.ranks], cell.ranked, plan.seed)
        rows.append(
            _row(cell, "evidence", hit=hit, mrr=first) | {"documents": len(cell.tokens), "left out": cell.untold}
        )
        for way, scores in cell.scores.items():
            columns = zip(("f1", "exact", "within", "declined"), zip(*scores, strict=True), strict=True)
            figures = {name: mean(values, sources[: len(values)], plan.seed) for name, values in columns}
            rows.append(_row(cell, way, **figures))
        if cell.declined:
            about = cell.sources["impossible"][: len(cell.declined)]
            rows.append(_row(cell, "recall, no answer", declined=mean(cell.declined, about, plan.seed)))
        for kind, what in REFUSALS.items():
            if refused := cell.refused.get(kind):
                rows.append(_row(cell, f"refuses {what}", refused=mean(refused, cell.sources[kind], plan.seed)))
        where = f"{cell.name} at {cell.length:,}"
        targets.append(Target(f"{where}: evidence holds the answer", hit.value, 0.9, at_most=False))
        if {"both", "ceiling"} <= cell.scores.keys():
            share = _share([cell], plan.seed)
            rows.append(_row(cell, "both ÷ ceiling", f1=share))
            targets.append(Target(f"{where}: F1 with both ÷ ceiling", share.value, 0.9, at_most=False))
    if len(cells) > 1 and all({"both", "ceiling"} <= cell.scores.keys() for cell in cells):
        every = GroundedScores("all", 0)
        rows.append(_row(every, "both ÷ ceiling", f1=_share(cells, plan.seed)))
    recall = plan.recall
    notes = [f"{way}: {what}" for way, what in WAYS.items() if way in plan.ways] + [
        f"model {model.name}, memory {model.memory_name}, {plan.split} split, seed {plan.seed}, template {plan.template}, "
        f"recall {'with the default settings' if recall is None else recall}, greedy, at most {plan.max_tokens} tokens, "
        f"{minutes:.1f} minutes",
        "left out: questions whose answers share no word with the right part of the text; their evidence cannot be checked",
        "in brackets: 95 % intervals, bootstrapped over the texts that questions are about",
    ]  # fmt: skip
    if model.memory_name == "window" and plan.ways:
        notes.append(
            "memory `window` does not remember: `memory` is the backbone on the first and last tokens of the document, "
            "`neither` is the backbone without a document"
        )
    return Report("grounded", rows, targets, notes, kind="eval")


def _share(cells: Sequence[GroundedScores], seed: int) -> Mean:
    """Return F1 with both ÷ F1 of the ceiling, on the same questions."""
    both, ceiling = ([score[0] for cell in cells for score in cell.scores[way]] for way in ("both", "ceiling"))
    sources = [
        f"{cell.name}: {source}" for cell in cells for source in cell.sources["asked"][: len(cell.scores["both"])]
    ]
    return ratio(both, ceiling, sources, seed)


def _row(cell: GroundedScores, way: str, **figures: Mean) -> dict[str, Any]:
    shown = {name: f"{mean.value:.3f} ({mean.low:.2f}–{mean.high:.2f})" for name, mean in figures.items()}
    columns = dict.fromkeys(("f1", "exact", "within", "declined", "hit", "mrr", "refused"), "") | shown
    counts = {"n": next(iter(figures.values())).count, "documents": "", "left out": ""}
    return {"questions": cell.name, "length": cell.length, "way": way} | columns | counts
