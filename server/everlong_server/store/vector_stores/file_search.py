"""`FileSearch`: the vector stores that a response searches. `SearchCall`: what it found there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from everlong_server.store.vector_stores.records import Attributes


@dataclass(frozen=True, slots=True)
class FileSearch:
    """The request: ids of vector stores, and a filter on the attributes of their files; None: all files."""

    stores: tuple[str, ...]
    filter: Mapping[str, Any] | None

    def json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    @classmethod
    def of(cls, stored: Mapping[str, Any] | None) -> Self | None:
        """Return what `json` returned; None for None."""
        return None if stored is None else cls(tuple(stored["stores"]), stored["filter"])


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A passage that the model was shown."""

    file_id: str
    filename: str | None
    score: float
    text: str
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class SearchCall:
    """A search: an item of a response. `queries`: what was searched for."""

    id: str
    queries: tuple[str, ...]
    results: tuple[SearchResult, ...]

    def json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """Return what `json` returned."""
        results = tuple(SearchResult(**result) for result in stored["results"])
        return cls(stored["id"], tuple(stored["queries"]), results)
