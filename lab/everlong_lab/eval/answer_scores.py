"""Compare an answer with references, word by word: F1, ROUGE, METEOR. All scores are computed by libraries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from everlong_models.errors import RunError


def squad(answer: str, references: Sequence[str]) -> tuple[float, float]:
    """Return word F1 and exact match of an answer, 0 … 1, against the best reference, as in SQuAD (Rajpurkar et al. 2016):
    in lower case, without articles and punctuation. Raises `RunError` if torchmetrics is missing."""
    try:
        from torchmetrics.functional.text import squad as measure  # noqa: PLC0415 - the library serves without it
    except ImportError as error:
        raise missing(error) from error
    expected = {"id": "0", "answers": {"text": list(references), "answer_start": [0] * len(references)}}
    scores = measure([{"id": "0", "prediction_text": answer}], [expected])
    return float(scores["f1"]) / 100, float(scores["exact_match"]) / 100


def overlap_scores(given: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return mean scores over pairs of answer and reference, in percent.

    `f1`: as in `squad`. `rouge1`, `rougeL`: F-measures (Lin 2004). These are computed by torchmetrics. `meteor`: Banerjee
    and Lavie 2005, by nltk, with the stages "exact" and "stem" (Porter). The third stage, WordNet's synonyms, is left out,
    because its data is not in a package; scores are slightly lower than with it. Raises `RunError` if a library is missing.
    """
    try:
        from nltk.stem.porter import PorterStemmer  # noqa: PLC0415 - the library serves without them
        from nltk.translate.meteor_score import single_meteor_score  # noqa: PLC0415
        from torchmetrics.functional.text import rouge_score  # noqa: PLC0415
    except ImportError as error:
        raise missing(error) from error
    pairs = list(zip(given, references, strict=True))
    rouge = rouge_score(list(given), list(references), rouge_keys=("rouge1", "rougeL"))
    stemmer, synonyms = PorterStemmer(), _NoSynonyms()
    meteor = [
        single_meteor_score(_words(right), _words(answer), stemmer=stemmer, wordnet=synonyms) for answer, right in pairs
    ]
    return {
        "f1": 100 * sum(squad(answer, [right])[0] for answer, right in pairs) / len(pairs),
        "rouge1": 100 * float(rouge["rouge1_fmeasure"]),
        "rougeL": 100 * float(rouge["rougeL_fmeasure"]),
        "meteor": 100 * sum(meteor) / len(meteor),
    }


def missing(error: ImportError) -> RunError:
    """Return the error for a library that scores are computed with."""
    return RunError(f"scoring needs {error.name}: pip install 'everlong-lab[train]'")


class _NoSynonyms:
    """A WordNet without entries."""

    def synsets(self, word: str, *_: Any) -> list[Any]:
        return []


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())
