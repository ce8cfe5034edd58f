"""Converts JSON to frozen dataclasses. Tolerates fields that a newer server adds or an older one omits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from everlong_client.errors import UnexpectedAnswerError

T = TypeVar("T")


def from_json(cls: type[T], data: object) -> T:
    """Build an instance of the dataclass `cls` from a JSON object. Ignores unknown fields.

    Raises `UnexpectedAnswerError` if `data` is not an object, or lacks a field that has no default.
    """
    if not isinstance(data, Mapping):
        raise UnexpectedAnswerError(f"expected a {cls.__name__.lower()}, got {str(data)[:80]!r}")
    try:
        return cls(**{name: _value(hint, data[name]) for name, hint in get_type_hints(cls).items() if name in data})
    except TypeError as error:  # its message names the missing fields
        raise UnexpectedAnswerError(f"invalid {cls.__name__.lower()}: {error}") from error


def _value(hint: Any, value: object) -> object:
    if value is None:
        return None
    if isinstance(hint, UnionType):
        hint = next((arg for arg in get_args(hint) if is_dataclass(arg) or get_origin(arg) is tuple), None)
    if is_dataclass(hint):
        return from_json(hint, value)  # type: ignore[arg-type]  # is_dataclass also allows instances, hints are none
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_value(get_args(hint)[0], item) for item in value)
    return value
