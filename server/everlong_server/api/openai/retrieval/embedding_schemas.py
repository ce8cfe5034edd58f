"""The objects of `/v1/embeddings` and `/v1/rerank`: a source of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from everlong_server.api.schemas import Nullable, Wire
from everlong_server.api.translation.embeddings import MAX_TEXTS, InputText, Texts
from everlong_server.engine.embeddings import MAX_TEXT_TOKENS


class CreateEmbeddings(Nullable, Wire):
    """Texts to embed."""

    model: str = Field(max_length=256, description="the embedding model of `GET /v1/models`")
    input: Texts = Field(
        description=f"a text or a list of texts, of at most {MAX_TEXT_TOKENS} tokens each. The vector of a text of more than 256 "
        "tokens is the mean of its parts' vectors"
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="base64: the bytes of 32-bit floats, little-endian"
    )
    dimensions: int | None = Field(
        None, ge=1, description="keep only the first components of each vector, and scale it to length 1"
    )
    user: str | None = Field(None, max_length=512, description="ignored")


class Embedding(Wire):
    """The vector of a text, of length 1."""

    object: Literal["embedding"] = "embedding"
    index: int = Field(description="place of the text in `input`, from 0")
    embedding: list[float] | str


class EmbeddingUsage(Wire):
    """Token counts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Wire):
    """The vectors, in the order of the texts."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class RerankText(Wire):
    """A document as an object. Other fields are not supported."""

    text: str = Field(min_length=1)


RerankDocument = Annotated[
    Annotated[InputText, Tag("Text")] | Annotated[RerankText, Tag("RerankText")],
    Discriminator(
        lambda value: (
            "Text" if isinstance(value, str) else "RerankText" if isinstance(value, dict | RerankText) else None
        ),
        custom_error_type="document",
        custom_error_message="a document must be a string or an object with `text`",
    ),
]


class CreateRerank(Nullable, Wire):
    """Texts to rank by their relevance for a query. Takes the fields of Cohere's and Jina's APIs."""

    model: str = Field(max_length=256, description="the embedding model of `GET /v1/models`")
    query: str = Field(min_length=1)
    documents: list[RerankDocument] = Field(
        min_length=1, max_length=MAX_TEXTS, description=f"at most {MAX_TEXT_TOKENS} tokens each"
    )
    top_n: int | None = Field(None, ge=1, description="maximum number of results; default: all documents")
    return_documents: bool = Field(False, description="return the texts, too")
    max_tokens_per_doc: int | None = Field(None, ge=1, description="ignored: documents are never cut")


class RerankResult(Wire):
    """A ranked document."""

    index: int = Field(description="place of the document in the request, from 0")
    relevance_score: float = Field(
        description="0 to 1: mean of the cosine with the query and the reranker's probability that the document has the answer; without a "
        "reranker, the cosine. Of a document of more than 256 tokens, of its nearest part"
    )
    document: RerankText | None = Field(None, description="only with `return_documents`")


class RerankUsage(Wire):
    """Token counts."""

    prompt_tokens: int
    total_tokens: int


class Reranking(Wire):
    """The documents, the most relevant first."""

    id: str
    object: Literal["list"] = "list"
    model: str
    results: list[RerankResult]
    usage: RerankUsage
