"""`everlong status`: whether a server answers, what it serves, and what it is doing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from everlong_client.client import Everlong
from everlong_client.errors import APIConnectionError, ServiceUnavailableError
from everlong_client.types.model import Model


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """The state of a server. `reason`: why it is not ready. `model`: the one that answers by default. `others`: further models, of which
    the one for embeddings is the last. `documents`: their number by status."""

    url: str
    ready: bool
    reason: str | None = None
    model: Model | None = None
    others: tuple[Model, ...] = ()
    documents: dict[str, int] | None = None
    sessions: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the status for JSON."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """Yield the status as lines of text."""
        yield f"server     {self.url}, {'ready' if self.ready else f'not ready: {self.reason}'}"
        if not self.ready:
            yield "           Start a server with `everlong serve`, or name another one with --url."
        if (model := self.model) is not None:
            size = f", {model.parameters / 1e6:,.0f} million parameters" if model.parameters else ""
            kept = "" if model.remembered_tokens is None else f", keeps {model.remembered_tokens:,} tokens of a text"
            yield f"model      {model.id}{size}"
            yield f"memory     {model.memory}{kept}"
        for other in self.others:
            use = "embeddings" if other.dimensions else "loaded" if other.loaded else "loaded when a request names it"
            yield f"also       {other.id}, {use}"
        if self.documents is not None:
            parts = [f"{number:,} {status}" for status, number in sorted(self.documents.items())]
            yield f"documents  {', '.join(parts) or 'none'}"
            yield f"sessions   {self.sessions:,}"


def status_of(client: Everlong, url: str) -> Status:
    """Return the status of the server at `url`. Raises `EverlongError` for other failures than being unavailable."""
    try:
        model, *others = client.models.list()
    except (APIConnectionError, ServiceUnavailableError) as error:
        return Status(url=url, ready=False, reason=str(error))
    documents = Counter(document.status for document in client.documents.list())
    sessions = len(client.sessions.list())
    return Status(url=url, ready=True, model=model, others=tuple(others), documents=dict(documents), sessions=sessions)
