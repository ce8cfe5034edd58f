"""`enforceable`, `relaxed`: a JSON Schema without keywords that need not, or cannot, be enforced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"}
)
"""The formats of a string that llguidance enforces."""
_SCHEMA = ("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then")
_SCHEMAS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_NAMED = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
_UNENFORCED = (
    "$dynamicRef", "contains", "dependentRequired", "dependentSchemas", "else", "if", "maxContains", "maxProperties",
    "minContains", "minProperties", "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
)  # fmt: skip
"""Keywords that llguidance lacks. Without them, a schema allows more values."""
_NO_EFFECT = {"uniqueItems": False, "minProperties": 0}
"""Values with which a keyword allows everything."""


def enforceable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `schema` without formats that nothing enforces, and without keywords that allow everything.

    By the standard, an unknown `format` is an annotation: OpenAPI's `int32` and Pydantic's `password` are common. Raises `ValueError`
    for a number that JSON does not have.
    """
    copied: dict[str, Any] = json.loads(json.dumps(schema, allow_nan=False))
    for part in _parts(copied):
        format = part.get("format")
        if isinstance(format, str) and format not in FORMATS:
            del part["format"]
        for name, value in _NO_EFFECT.items():
            if name in part and part[name] == value:
                del part[name]
    return copied


def relaxed(schema: dict[str, Any], *, patterns: bool) -> dict[str, Any]:
    """Return a copy of an `enforceable` schema without the keywords that llguidance lacks. `patterns`: keep `pattern`.

    It allows every value that `schema` allows. "oneOf" becomes "anyOf".
    """
    copied: dict[str, Any] = json.loads(json.dumps(schema))
    for part in _parts(copied):
        for name in _UNENFORCED if patterns else (*_UNENFORCED, "pattern"):
            part.pop(name, None)
        if not patterns and part.pop("patternProperties", None) is not None:
            part.pop("additionalProperties", None)  # it would forbid the properties that the patterns allowed
        if "oneOf" in part and "anyOf" not in part:
            part["anyOf"] = part.pop("oneOf")
    return copied


def _parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield `schema` and all schemas inside it. Each may be changed before the next one is asked for.

    Works without recursion, because a schema may be nested deeper than Python's stack.
    """
    open: list[Any] = [schema]
    while open:
        part = open.pop()
        if isinstance(part, dict):
            yield part
            open += _schemas_in(part)


def _schemas_in(schema: dict[str, Any]) -> Iterator[Any]:
    """Yield the schemas directly inside `schema`. Values such as `const` and `enum` are none."""
    yield from (schema[name] for name in _SCHEMA if name in schema)
    for name in _SCHEMAS:
        if isinstance(schema.get(name), list):
            yield from schema[name]
    for name in _NAMED:
        if isinstance(schema.get(name), dict):
            yield from schema[name].values()
