"""What an answer's text can be: words, a JSON object, or JSON of a schema."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, model_validator

from everlong_models import GrammarError
from everlong_server.api.native.sessions import require_json
from everlong_server.api.schemas import Wire
from everlong_server.errors import InvalidRequest
from everlong_server.services import Services

FORMATS = "a format is of type 'text', 'json_object' or 'json_schema'; others are not known"


class Nullable(BaseModel):
    """A field that is null is one that was not given: the SDKs and their users send both."""

    @model_validator(mode="before")
    @classmethod
    def _given(cls, value: object) -> object:
        return {name: given for name, given in value.items() if given is not None} if isinstance(value, dict) else value


class TextFormat(Wire):
    """Words."""

    type: Literal["text"]


class JsonObjectFormat(Wire):
    """Any JSON object."""

    type: Literal["json_object"]


def format_kind(value: object) -> str | None:
    """Which of the formats a value is."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    kinds = {"text": "TextFormat", "json_object": "JsonObjectFormat", "json_schema": "JsonSchemaFormat"}
    return kinds.get(kind) if isinstance(kind, str) else None


async def require_schema(services: Services, schema: dict[str, Any], name: str) -> dict[str, Any]:
    """The schema in the field `name` of the request. Raises `InvalidRequest` for one that no answer can follow."""
    require_json(schema, name)
    try:
        await services.engine.grammar(schema)
    except GrammarError as error:
        raise InvalidRequest(f"{name}: {error}", param=name) from error
    return schema
