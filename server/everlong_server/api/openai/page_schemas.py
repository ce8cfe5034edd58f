"""`Page`: a page of a list in the format of OpenAI's API, with the ids from which the next and the previous page continue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Literal, Self, TypeVar

from everlong_server.api.schemas import Wire

Item = TypeVar("Item")


class Page(Wire, Generic[Item]):
    """A page of a list."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def of(cls, data: Sequence[Any], *, more: bool) -> Self:
        """Return the page with the items `data`, which have the field `id`. `more`: others follow."""
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        return cls(data=list(data), first_id=first, last_id=last, has_more=more)
