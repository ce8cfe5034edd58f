"""Formats of an answer: plain text, a JSON object, or JSON that follows a schema."""

from __future__ import annotations

from typing import Literal

from everlong_server.api.schemas import Wire
from everlong_server.api.translation.fields import by_type

FORMATS = "type must be 'text', 'json_object' or 'json_schema'"


class TextFormat(Wire):
    """Plain text."""

    type: Literal["text"]


class JsonObjectFormat(Wire):
    """Any JSON object."""

    type: Literal["json_object"]


format_kind = by_type({"text": "TextFormat", "json_object": "JsonObjectFormat", "json_schema": "JsonSchemaFormat"})
"""Returns the tag of a format, for the union of formats."""
