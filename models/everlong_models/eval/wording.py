"""How near an answer is to a reference, in words: F1, ROUGE, METEOR, all by libraries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from everlong_models.errors import RunError


def wording(given: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Means over pairs, in percent.

    `f1`: of words, as for SQuAD (Rajpurkar et al. 2016): small letters, without articles and punctuation. `rouge1`,
    `rougeL`: F-measures (Lin 2004). Both by torchmetrics. `meteor`: Banerjee and Lavie 2005, by nltk, with the stages
    "exact" and "stem" (Porter). The third, WordNet's synonyms, is left out: its data is no package and would have to be
    downloaded; so scores are a little lower than with it. Raises `RunError` where a library is missing.
    """
    try:
        from nltk.stem.porter import PorterStemmer  # noqa: PLC0415 - the library serves without them
        from nltk.translate.meteor_score import single_meteor_score  # noqa: PLC0415
        from torchmetrics.functional.text import rouge_score, squad  # noqa: PLC0415
    except ImportError as error:
        raise RunError(f"scoring answers needs {error.name}: pip install 'everlong[train]'") from error
    pairs = list(zip(given, references, strict=True))
    answers = [{"id": str(i), "prediction_text": said} for i, said in enumerate(given)]
    expected = [{"id": str(i), "answers": {"text": [said], "answer_start": [0]}} for i, said in enumerate(references)]
    rouge = rouge_score(list(given), list(references), rouge_keys=("rouge1", "rougeL"))
    stemmer, synonyms = PorterStemmer(), _NoSynonyms()
    meteor = [
        single_meteor_score(_words(right), _words(said), stemmer=stemmer, wordnet=synonyms) for said, right in pairs
    ]
    return {
        "f1": float(squad(answers, expected)["f1"]),
        "rouge1": 100 * float(rouge["rouge1_fmeasure"]),
        "rougeL": 100 * float(rouge["rougeL_fmeasure"]),
        "meteor": 100 * sum(meteor) / len(meteor),
    }


class _NoSynonyms:
    """In the place of WordNet."""

    def synsets(self, word: str, *_: Any) -> list[Any]:
        return []


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())
