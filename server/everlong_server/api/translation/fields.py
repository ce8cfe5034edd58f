"""Limits and fields that the APIs of OpenAI, Anthropic and Ollama have in common: a source of the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from everlong_models import SamplingParams

MAX_MESSAGES = 2048
MAX_TOOLS = 128
MAX_TOKENS = 1_000_000
"""Maximum number of tokens of an answer."""
ToolName = Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]
CallId = Annotated[str, Field(min_length=1, max_length=128)]
_LIKELIEST = 1e-9
"""A `top_p` that leaves only the likeliest token."""
TopP = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), AfterValidator(lambda share: share or _LIKELIEST)]
"""A `top_p` that may be 0, as with OpenAI, Anthropic and Ollama."""
TopK = Annotated[int, Field(ge=-1, le=1_000_000), AfterValidator(lambda number: max(number, 0))]
"""A `top_k` that may be -1 for all tokens, as with Ollama and vLLM."""


class ClientSampling(SamplingParams):
    """Sampling parameters with the values that other servers accept."""

    top_p: TopP = Field(
        0.9,
        description="Sample from the smallest set of likeliest tokens with at least this total probability; 0 always takes the "
        "likeliest token",
    )
    top_k: TopK = Field(0, description="Sample from the k likeliest tokens only; 0 and -1 mean all tokens")


def content_kind(value: object) -> str | None:
    """Return the tag of a message's content, for the union of a string and a list of parts."""
    if isinstance(value, str):
        return "Text"
    return "Parts" if isinstance(value, list) else None


def by_type(tags: Mapping[str, str], default: str | None = None) -> Callable[[object], str | None]:
    """Return a function that returns the tag of an object, for a union whose members differ in their field `type`.

    `tags`: the tag of each type. They start with a capital, so that an error's path can leave them out. `default`: the type of an
    object without the field.
    """

    def tag(value: object) -> str | None:
        kind = value.get("type", default) if isinstance(value, dict) else getattr(value, "type", None)
        return tags.get(kind) if isinstance(kind, str) else None

    return tag
