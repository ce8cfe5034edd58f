"""Formats of an answer: plain text, a JSON object, or JSON that follows a schema."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, model_validator

from everlong_models import GrammarError
from everlong_server.api.schemas import Wire
from everlong_server.api.turn_parameters import require_json
from everlong_server.errors import InvalidRequest
from everlong_server.services import Services

FORMATS = "type must be 'text', 'json_object' or 'json_schema'"


class Nullable(BaseModel):
    """Treats a field that is null as left out, because the SDKs send either."""

    @model_validator(mode="before")
    @classmethod
    def _given(cls, value: object) -> object:
        return {name: given for name, given in value.items() if given is not None} if isinstance(value, dict) else value


class TextFormat(Wire):
    """Plain text."""

    type: Literal["text"]


class JsonObjectFormat(Wire):
    """Any JSON object."""

    type: Literal["json_object"]


def format_kind(value: object) -> str | None:
    """Return the tag of a format, for the union of formats."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    kinds = {"text": "TextFormat", "json_object": "JsonObjectFormat", "json_schema": "JsonSchemaFormat"}
    return kinds.get(kind) if isinstance(kind, str) else None


async def require_schema(services: Services, schema: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the schema in the field `name`. Raises `InvalidRequest` if no answer can be constrained to it."""
    require_json(schema, name)
    try:
        await services.shared.engine.grammar(schema)
    except GrammarError as error:
        raise InvalidRequest(f"{name}: {error}", param=name) from error
    return schema
