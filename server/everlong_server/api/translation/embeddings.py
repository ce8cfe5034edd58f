"""Requests for embeddings: parse the field with the texts, embed them, and write the vectors as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError, to_json

from everlong_server.engine.embeddings import Floats
from everlong_server.errors import InvalidRequest
from everlong_server.pools import Pool
from everlong_server.services import Services

MAX_TEXTS = 2048
_ENCODED_AT_ONCE = 64
_POOL = Pool("everlong-encode", 1)
"""Encodes vectors as JSON, 64 at a time: 2,048 of them take a second, which would block the event loop."""


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refuse_tokens(value: object) -> object:
    """Raise `PydanticCustomError` for a list of tokens, or of such lists."""
    first = value[0] if isinstance(value, list) and value else None
    if _is_token(first) or (isinstance(first, list) and (not first or _is_token(first[0]))):
        raise PydanticCustomError(
            "tokens",
            "lists of token ids are not supported, since each model has its own: send text (with LangChain: "
            "`check_embedding_ctx_length=False`)",
        )
    return value


InputText = Annotated[str, Field(min_length=1)]
Texts = Annotated[
    Annotated[InputText, Tag("Text")]
    | Annotated[list[InputText], Field(min_length=1, max_length=MAX_TEXTS), Tag("Texts")],
    Discriminator(
        lambda value: {str: "Text", list: "Texts"}.get(type(value)),
        custom_error_type="texts",
        custom_error_message="input must be a string or a list of strings",
    ),
    BeforeValidator(_refuse_tokens),
]


async def embed_input(
    services: Services, model: str, texts: str | list[str] | None, dimensions: int | None, field: str = "input"
) -> tuple[Floats, int]:
    """Return a vector of length 1 for each text, [texts, dimensions], and the number of their tokens.

    `texts`: None for no texts. `dimensions`: None for all that the model has. `field`: the field of the request with the texts. Raises
    `ServerError`.
    """
    embedder = services.embeddings.require_model(model)
    if dimensions is not None and dimensions > embedder.dimension:
        raise InvalidRequest(
            f"dimensions: {dimensions} is more than the model's {embedder.dimension}", param="dimensions"
        )
    if texts is None:
        return np.zeros((0, embedder.dimension), np.float32), 0
    if isinstance(texts, str):
        named = [(field, texts)]
    else:
        named = [(f"{field}.{number}", text) for number, text in enumerate(texts)]
    embedded = await services.embeddings.embed(embedder, named)
    return await embedded.vectors(dimensions), embedded.tokens


async def encoded(vectors: Floats, items: Callable[[Floats, int], list[Any]]) -> bytes:
    """Return the JSON list of the items that `items` returns for slices of `vectors`. It gets a slice and the index of its first
    vector."""

    def encode(start: int) -> bytes:
        return to_json(items(vectors[start : start + _ENCODED_AT_ONCE], start))[1:-1]

    parts = [await _POOL.run(encode, start) for start in range(0, len(vectors), _ENCODED_AT_ONCE)]
    return b"[%s]" % b",".join(parts)
