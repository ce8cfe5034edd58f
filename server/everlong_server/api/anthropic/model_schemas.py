"""Models in the form of Anthropic's API."""

from __future__ import annotations

from typing import Literal

from everlong_server.api.schemas import Wire
from everlong_server.api.translation.fields import MAX_TOKENS


class AnthropicModel(Wire):
    """A model that answers messages. `created_at`: when the server started."""

    type: Literal["model"] = "model"
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    deprecated_at: None = None
    retires_at: None = None
    line: None = None
    max_input_tokens: None = None
    max_tokens: int = MAX_TOKENS
    capabilities: None = None


class AnthropicModelList(Wire):
    """A page of models."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None
