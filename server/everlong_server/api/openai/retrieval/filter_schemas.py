"""Filters of OpenAI's vector stores: which files are searched, by their attributes."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Discriminator, Field, Tag

from everlong_server.api.schemas import Wire
from everlong_server.api.translation.fields import by_type

Key = Annotated[str, Field(min_length=1, max_length=64)]
Text = Annotated[str, Field(max_length=512)]


def _value_kind(value: object) -> str | None:
    if isinstance(value, list):
        return "Values"
    kinds: dict[type, str] = {bool: "Bool", int: "Number", float: "Number", str: "Text"}
    return kinds.get(type(value))


Value = Annotated[
    Annotated[bool, Tag("Bool")] | Annotated[float, Tag("Number")] | Annotated[Text, Tag("Text")],
    Discriminator(
        _value_kind, custom_error_type="value", custom_error_message="a value must be a string, a number or a boolean"
    ),
]
Values = Annotated[
    Annotated[bool, Tag("Bool")]
    | Annotated[float, Tag("Number")]
    | Annotated[Text, Tag("Text")]
    | Annotated[list[Value], Field(max_length=256), Tag("Values")],
    Discriminator(
        _value_kind,
        custom_error_type="value",
        custom_error_message="a value must be a string, a number, a boolean or a list",
    ),
]


Operator = Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]


class Comparison(Wire):
    """Compares an attribute of a file. A file without the attribute, or with a value of another type, passes only `ne` and `nin`."""

    type: Operator
    key: Key
    value: Values = Field(description="a list for `in` and `nin`")


class Compound(Wire):
    """Combines filters."""

    type: Literal["and", "or"]
    filters: list[AttributeFilter] = Field(min_length=1, max_length=64)


_KINDS = dict.fromkeys(get_args(Operator), "Comparison") | dict.fromkeys(("and", "or"), "Compound")
MAX_VALUES = 1000
"""Maximum number of values in a whole filter. Each is compared with each file of a search."""


def _values(filter: Comparison | Compound) -> int:
    if isinstance(filter, Compound):
        return sum(map(_values, filter.filters))
    return len(filter.value) if isinstance(filter.value, list) else 1


def _limit_values(filter: Comparison | Compound) -> Comparison | Compound:
    if (count := _values(filter)) > MAX_VALUES:
        raise ValueError(f"a filter may have {MAX_VALUES} values, this one has {count}")
    return filter


AttributeFilter = Annotated[
    Annotated[Comparison, Tag("Comparison")] | Annotated[Compound, Tag("Compound")],
    Discriminator(
        by_type(_KINDS),
        custom_error_type="filter",
        custom_error_message="type must be 'and' or 'or', or 'eq', 'ne', 'gt', 'gte', 'lt', 'lte', 'in' or 'nin'",
    ),
]

Filter = Annotated[AttributeFilter, AfterValidator(_limit_values)]
"""A whole filter, of limited size."""

Compound.model_rebuild()
