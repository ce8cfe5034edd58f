"""`Query`: what passages are searched for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Query:
    """`text`: the question, whose meaning is compared. `words`: words to search for, each with a weight; empty: none.

    `asks`: it is a question. Where meaning is compared, a remark is searched for more strictly, since it may be small talk.
    """

    text: str
    words: Mapping[str, float]
    asks: bool = True
