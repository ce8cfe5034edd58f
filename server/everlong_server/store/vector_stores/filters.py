"""`accepts`: whether a file passes a filter on its attributes, in the form of OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import ge, gt, le, lt
from typing import Any

from everlong_server.store.vector_stores.records import Attributes

_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {"gt": gt, "gte": ge, "lt": lt, "lte": le}


def accepts(filter: Mapping[str, Any] | None, attributes: Attributes) -> bool:
    """Return whether a file with these attributes passes. None: every file does.

    A filter has a `type`: `and` or `or` with `filters`; or a comparison with `key` and `value`. A file without the attribute, or
    with a value of another type, passes only `ne` and `nin`.
    """
    if filter is None:
        return True
    kind = filter["type"]
    if kind in ("and", "or"):
        return (all if kind == "and" else any)(accepts(each, attributes) for each in filter["filters"])
    own, value = attributes.get(filter["key"]), filter["value"]
    if kind in ("ne", "nin"):
        return not accepts({**filter, "type": "eq" if kind == "ne" else "in"}, attributes)
    if kind == "in":
        return any(_same(own, each) for each in (value if isinstance(value, list) else [value]))
    if kind == "eq":
        return _same(own, value)
    texts = isinstance(own, str) and isinstance(value, str)
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (own, value))
    return (texts or numbers) and _ORDERS[kind](own, value)


def _same(one: object, other: object) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and one == other
