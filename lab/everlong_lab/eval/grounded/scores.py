"""What is counted beside SQuAD's F1 and exact match (`everlong_lab.eval.answer_scores`); means with intervals."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from everlong_lab.tasks.reading import REFUSAL
from everlong_server.engine.answering.grounding import STOP_WORDS

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> str:
    """As SQuAD compares answers: small letters, no punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def holds(answer: str, references: Sequence[str]) -> float:
    """1 if the answer has one of the references within it, normalised, as whole words; else 0. For models that talk."""
    said = f" {normalised(answer)} "
    return float(any(f" {wanted} " in said for wanted in map(normalised, references) if wanted))


def declines(answer: str) -> float:
    """1 if the answer says that the text does not hold one, as the model is asked or has learnt to; else 0."""
    return float(normalised(answer).startswith(_DECLINED))


def content_words(text: str) -> set[str]:
    """The words of `text` that say something, cut to five letters so that their forms are alike."""
    return {word[:5] for word in re.findall(r"[^\W_]+", text.lower()) if word not in STOP_WORDS}


_DECLINED = normalised(REFUSAL)


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean, or a ratio of means, with its 95 % interval, of `count` values."""

    value: float
    low: float
    high: float
    count: int


def mean(values: Sequence[float], groups: Sequence[str], seed: int = 0) -> Mean:
    """The mean of `values`; see `ratio`."""
    return ratio(values, [1.0] * len(values), groups, seed)


def ratio(above: Sequence[float], below: Sequence[float], groups: Sequence[str], seed: int = 0) -> Mean:
    """Σ `above` ÷ Σ `below` with its bootstrap interval (2,000 resamples of the groups): questions of one text, which are alike, are
    drawn together. 0 where nothing is below."""
    names = {name: n for n, name in enumerate(dict.fromkeys(groups))}
    sums = np.zeros((len(names), 2))
    for group, *pair in zip(groups, above, below, strict=True):
        sums[names[group]] += pair
    if not sums[:, 1].any():
        return Mean(0.0, 0.0, 0.0, len(above))
    draws = sums[np.random.default_rng(seed).integers(0, len(sums), (2000, len(sums)))].sum(axis=1)
    found = np.divide(draws[:, 0], draws[:, 1], out=np.zeros(len(draws)), where=draws[:, 1] != 0)
    low, high = np.percentile(found, (2.5, 97.5))
    return Mean(float(sums[:, 0].sum() / sums[:, 1].sum()), float(low), float(high), len(above))
