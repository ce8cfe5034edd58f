"""The models that a server offers, as pydantic models."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from everlong_server.api.schemas import Wire

_MEMORY_BYTES = "bytes of memory that the model takes, estimated from its files; null: not known"


class _Model(Wire):
    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="Unix time in seconds at which the server started")
    owned_by: str = "everlong"


class UnloadedModel(_Model):
    """A model that is loaded when a request names it. More is known of it once it is loaded."""

    loaded: Literal[False] = False
    memory_bytes: int | None = Field(description=_MEMORY_BYTES)


class ServedModel(_Model):
    """A model that answers questions."""

    loaded: Literal[True] = True
    memory_bytes: int | None = Field(description=_MEMORY_BYTES)
    backbone: str | None = Field(description="name of the backbone; null for a model trained from scratch")
    memory: str
    memory_trained: bool | None = Field(
        description="false: the memory has no trained weights, so answers are nonsense; null: it has no weights to train"
    )
    remembered_tokens: int | None = Field(
        description="tokens of the context that the memory keeps, at most; null: it keeps a compressed form of all"
    )
    parameters: int | None = Field(
        description="parameters of the backbone; null for one that the catalogue does not have"
    )
    recall_passages: int = Field(
        description="maximum number of passages that the server searches for a question by default; 0: recall is off"
    )
    recall_tokens: int = Field(description="maximum number of tokens of all passages by default")
    max_recall_tokens: int = Field(description="maximum of `recall.tokens` in requests: the model's context")
    segment_length: int
    state_bytes: int = Field(description="size of a session's memory in bytes, for documents of any length")
    fingerprint: str
    description: str


class EmbeddingModel(_Model):
    """The model of `/v1/embeddings`, `/v1/rerank` and the search by meaning. It answers no questions."""

    dimensions: int = Field(description="length of its vectors")
    max_tokens: int = Field(description="tokens that one vector is computed from; a longer text is embedded in parts")
    languages: list[str] | None = Field(description="languages that it was trained on (ISO 639-1); null: not known")
    fingerprint: str
    description: str


class ModelList(Wire):
    """The models that answer questions, the default one first, and the embedding model if the server has one."""

    object: Literal["list"] = "list"
    data: list[ServedModel | UnloadedModel | EmbeddingModel]
