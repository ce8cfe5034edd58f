"""How near an answer is to a reference, in words: F1, ROUGE, METEOR, all by libraries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from everlong_models.errors import RunError


def squad(answer: str, references: Sequence[str]) -> tuple[float, float]:
    """F1 over words and exact match of one answer, 0 … 1, against the reference that is nearest, as for SQuAD (Rajpurkar et
    al. 2016): small letters, without articles and punctuation. Raises `RunError` where torchmetrics is missing."""
    try:
        from torchmetrics.functional.text import squad as measure  # noqa: PLC0415 - the library serves without it
    except ImportError as error:
        raise _missing(error) from error
    expected = {"id": "0", "answers": {"text": list(references), "answer_start": [0] * len(references)}}
    found = measure([{"id": "0", "prediction_text": answer}], [expected])
    return float(found["f1"]) / 100, float(found["exact_match"]) / 100


def overlap_scores(given: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Means over pairs, in percent.

    `f1`: as of `squad`. `rouge1`,
    `rougeL`: F-measures (Lin 2004). Both by torchmetrics. `meteor`: Banerjee and Lavie 2005, by nltk, with the stages
    "exact" and "stem" (Porter). The third, WordNet's synonyms, is left out: its data is no package and would have to be
    downloaded; so scores are a little lower than with it. Raises `RunError` where a library is missing.
    """
    try:
        from nltk.stem.porter import PorterStemmer  # noqa: PLC0415 - the library serves without them
        from nltk.translate.meteor_score import single_meteor_score  # noqa: PLC0415
        from torchmetrics.functional.text import rouge_score  # noqa: PLC0415
    except ImportError as error:
        raise _missing(error) from error
    pairs = list(zip(given, references, strict=True))
    rouge = rouge_score(list(given), list(references), rouge_keys=("rouge1", "rougeL"))
    stemmer, synonyms = PorterStemmer(), _NoSynonyms()
    meteor = [
        single_meteor_score(_words(right), _words(said), stemmer=stemmer, wordnet=synonyms) for said, right in pairs
    ]
    return {
        "f1": 100 * sum(squad(said, [right])[0] for said, right in pairs) / len(pairs),
        "rouge1": 100 * float(rouge["rouge1_fmeasure"]),
        "rougeL": 100 * float(rouge["rougeL_fmeasure"]),
        "meteor": 100 * sum(meteor) / len(meteor),
    }


def _missing(error: ImportError) -> RunError:
    return RunError(f"scoring answers needs {error.name}: pip install 'everlong-lab[train]'")


class _NoSynonyms:
    """In the place of WordNet."""

    def synsets(self, word: str, *_: Any) -> list[Any]:
        return []


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())
