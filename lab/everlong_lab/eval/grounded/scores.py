"""Extra metrics reported next to SQuAD F1 and exact match (`everlong_lab.eval.answer_scores`), with confidence intervals."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from everlong_server.engine.answering.evidence.templates import REFUSAL
from everlong_server.engine.answering.search.question import STOP_WORDS

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> str:
    """Normalise an answer as SQuAD does: lower case, no punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def holds(answer: str, references: Sequence[str]) -> float:
    """Return 1 if the answer contains one of the references, normalised and as whole words, else 0."""
    content = f" {normalised(answer)} "
    return float(any(f" {wanted} " in content for wanted in map(normalised, references) if wanted))


def declines(answer: str) -> float:
    """Return 1 if the answer starts with `REFUSAL`, as models are asked or trained to answer, else 0."""
    return float(normalised(answer).startswith(_DECLINED))


def content_words(text: str) -> set[str]:
    """Return the words of `text` without stop words, cut to five letters so that different forms match."""
    return {word[:5] for word in re.findall(r"[^\W_]+", text.lower()) if word not in STOP_WORDS}


_DECLINED = normalised(REFUSAL)


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean, or a ratio of means, of `count` values, with its 95 % interval."""

    value: float
    low: float
    high: float
    count: int


def mean(values: Sequence[float], groups: Sequence[str], seed: int = 0) -> Mean:
    """Return the mean of `values`; see `ratio`."""
    return ratio(values, [1.0] * len(values), groups, seed)


def ratio(above: Sequence[float], below: Sequence[float], groups: Sequence[str], seed: int = 0) -> Mean:
    """Return Σ `above` ÷ Σ `below` with its bootstrap interval (2,000 resamples of the groups); 0 if Σ `below` is 0.

    Questions of one text are similar, so a group is resampled as a whole.
    """
    names = {name: n for n, name in enumerate(dict.fromkeys(groups))}
    sums = np.zeros((len(names), 2))
    for group, *pair in zip(groups, above, below, strict=True):
        sums[names[group]] += pair
    if not sums[:, 1].any():
        return Mean(0.0, 0.0, 0.0, len(above))
    resamples = sums[np.random.default_rng(seed).integers(0, len(sums), (2000, len(sums)))].sum(axis=1)
    ratios = np.divide(resamples[:, 0], resamples[:, 1], out=np.zeros(len(resamples)), where=resamples[:, 1] != 0)
    low, high = np.percentile(ratios, (2.5, 97.5))
    return Mean(float(sums[:, 0].sum() / sums[:, 1].sum()), float(low), float(high), len(above))
