"""Tools and calls of tools in Ollama's formats: a source of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from everlong_server.api.schemas import Nullable, Wire
from everlong_server.api.translation.fields import ToolName

_SPARSE = ("$defs", "items", "properties", "required", "type", "description", "enum", "anyOf")
"""Keywords of a schema that Ollama's clients send as null if they have no value."""


def _repair(schema: Any) -> Any:
    """Return a schema as JSON Schema. Ollama's clients write a null for a missing keyword, and "integer, string" for several types."""
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if not (value is None and name in _SPARSE)}
    if isinstance(kept.get("type"), str) and ", " in kept["type"]:
        kept["type"] = kept["type"].split(", ")
    if isinstance(kept.get("properties"), dict):
        kept["properties"] = {name: _repair(value) for name, value in kept["properties"].items()}
    return kept


class OllamaFunction(Nullable, Wire):
    """A function that the model may call."""

    name: ToolName
    description: str | None = Field(None, max_length=100_000)
    type: str | None = Field(None, max_length=64, description="ignored")
    parameters: Annotated[dict[str, Any], BeforeValidator(_repair)] = Field(
        default_factory=lambda: {"type": "object", "properties": {}},
        description="JSON Schema that the arguments follow, as far as the server can enforce it",
    )


class OllamaTool(Nullable, Wire):
    """A tool that the client runs."""

    type: Literal["function"] = "function"
    function: OllamaFunction
    items: Any = Field(None, description="ignored")


class OllamaCalledFunction(Nullable, Wire):
    """The name and the arguments of a call."""

    index: int | None = Field(None, ge=0, description="the number of the call in its answer; ignored in requests")
    name: ToolName
    arguments: dict[str, Any] = Field(default_factory=dict)


class OllamaToolCall(Nullable, Wire):
    """A call in an answer."""

    id: str | None = Field(None, max_length=128, description="names the call in its result (`tool_call_id`)")
    type: Literal["function"] | None = Field(None, description="ignored")
    function: OllamaCalledFunction
