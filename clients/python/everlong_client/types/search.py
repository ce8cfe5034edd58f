"""A passage that a search found, and the filters of a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from everlong_client.types.message import Evidence


class SearchFilters(TypedDict, total=False):
    """Search only passages that begin on these pages, or below a heading that contains `section` (ignoring case)."""

    first_page: int
    last_page: int
    section: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundPassage(Evidence):
    """A passage that a search found.

    `score` is 1 for a passage that is first by words, by meaning and for the reranker, and less for later places. `similarity` is the cosine of the
    vectors of passage and query; None: the document has no vectors (yet). `words` is the share of the query's words that the
    passage has, weighted by their rarity.
    """

    filename: str | None = None
    similarity: float | None = None
    words: float = 0
