"""Formats of Ollama's API: objects have only the properties that a schema names, unless it says otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from everlong_server.api.ollama.requests import closed

CAT = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
CLOSED_CAT = {**CAT, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (CAT, CLOSED_CAT),
        ({"type": "array", "items": CAT}, {"type": "array", "items": CLOSED_CAT}),
        ({"$defs": {"Cat": CAT}, "$ref": "#/$defs/Cat"}, {"$defs": {"Cat": CLOSED_CAT}, "$ref": "#/$defs/Cat"}),
        ({"anyOf": [CAT, {"type": "null"}]}, {"anyOf": [CLOSED_CAT, {"type": "null"}]}),
    ],
)
def test_objects_areclosed(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert closed(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        CAT | {"additionalProperties": True},
        CAT | {"patternProperties": {"^x": {}}},
        CAT | {"allOf": [{"properties": {"name": {}}}]},
        CAT | {"required": ["name"]},
        CAT | {"required": [["age"]]},
        CAT | {"required": "age"},
        CAT | {"anyOf": [{"properties": {"phone": {}}, "required": ["phone"]}, {"properties": {"mail": {}}}]},
        {
            "$defs": {"Cat": CAT},
            "properties": {"pet": {"allOf": [{"$ref": "#/$defs/Cat"}, {"properties": {"name": {}}}]}},
        },
        {"properties": 1, "items": [1], "$defs": None, "anyOf": 2},
    ],
)
def test_objects_that_may_have_more_stay_open(schema: dict[str, Any]) -> None:
    assert closed(schema) == schema


def test_a_deep_schema() -> None:
    schema: dict[str, Any] = CAT
    for _ in range(5000):
        schema = {"items": schema}
    assert closed(schema)["items"]
