"""The report of `everlong eval remembers`: what a memory keeps of the gain that the whole text brings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from everlong_lab.eval.grounded.scores import Mean, mean, ratio
from everlong_lab.eval.remembers.measure import WAYS, DocumentScores, RemembersPlan


def rows(plan: RemembersPlan, scores: Sequence[DocumentScores]) -> list[dict[str, Any]]:
    """Return a table: for each kind of question and length, each way's likelihood, gain and share with 95 % intervals.

    `gain`: over the control, the memory of another text, paired by question. `share`: of the gain of the whole text.
    `beside`: gain over the passages alone. Documents are resampled as wholes.
    """
    table = []
    for kind, length, cell in _cells(scores):
        groups = [document.document for document in cell for _ in document.questions]
        asked = [question for document in cell for question in document.questions]
        ways = {way: [float(one["likelihood"][way]) for one in asked] for way in plan.ways}
        for way, values in ways.items():
            row: dict[str, Any] = {"questions": kind, "tokens": length, "way": way, "count": len(values)}
            row["likelihood"] = _shown(mean(values, groups, plan.seed))
            with_passages = "passages" in way
            row["gain"] = row["share"] = row["beside passages"] = ""
            if "other" in ways and not with_passages and way != "other":
                row["gain"] = _shown(_gain(values, ways["other"], groups, plan.seed))
                if "whole" in ways:
                    row["share"] = _shown(share(values, ways["other"], ways["whole"], groups, plan.seed))
            if "passages" in ways and with_passages and way != "passages":
                row["beside passages"] = _shown(_gain(values, ways["passages"], groups, plan.seed))
            answered = [one["f1"][way] for one in asked if "f1" in one]
            owners = [document.document for document in cell for one in document.questions if "f1" in one]
            row["answers' F1"] = _shown(mean(answered, owners, plan.seed)) if answered else ""
            seconds = [document.seconds[way] for document in cell if way in document.seconds]
            row["seconds per 1,000"] = f"{sum(seconds) / len(seconds):.2f}" if seconds else ""
            table.append(row)
    return table


def share(
    values: Sequence[float], other: Sequence[float], whole: Sequence[float], groups: Sequence[str], seed: int = 0
) -> Mean:
    """Return the share of the whole text's gain over the control that `values` keep: Σ(v − other) ÷ Σ(whole − other)."""
    above = [value - control for value, control in zip(values, other, strict=True)]
    below = [value - control for value, control in zip(whole, other, strict=True)]
    return ratio(above, below, groups, seed)


def notes(plan: RemembersPlan, scores: Sequence[DocumentScores]) -> list[str]:
    """Return what a reader must know to interpret the table."""
    lines = [f"{way}: {WAYS[way]}" for way in plan.ways]
    lines.append(
        "likelihood: mean natural logarithm of the probability of a reference answer's token. gain: over the memory of "
        f"another text. share: of the gain of the whole text; 95 % intervals. The {plan.split} split, seed {plan.seed}"
    )
    return [*lines, f"the memory has {scores[0].bytes:,} bytes; seconds of processor time per 1,000 tokens read"]


def _gain(values: Sequence[float], control: Sequence[float], groups: Sequence[str], seed: int) -> Mean:
    return mean([value - base for value, base in zip(values, control, strict=True)], groups, seed)


def _cells(scores: Sequence[DocumentScores]) -> Iterator[tuple[str, int, list[DocumentScores]]]:
    for kind, length in sorted(
        {(one.kind, one.length) for one in scores}, key=lambda cell: (cell[0] != "gist", cell[1])
    ):
        yield kind, length, [one for one in scores if (one.kind, one.length) == (kind, length)]


def _shown(found: Mean) -> str:
    return f"{found.value:.2f} ({found.low:.2f} … {found.high:.2f})"
