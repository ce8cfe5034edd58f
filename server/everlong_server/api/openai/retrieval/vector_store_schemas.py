"""The objects of OpenAI's vector stores that the server supports: a source of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from everlong_server.api.openai.page_schemas import Page
from everlong_server.api.openai.retrieval.filter_schemas import Filter, Key, Text, Value
from everlong_server.api.schemas import Evidence, Nullable, Wire
from everlong_server.store.vector_stores.stores import MAX_FILES

MAX_RESULTS = 50
_MAX_FIELDS = 16
_MAX_QUERIES = 16

FileId = Annotated[str, Field(min_length=1, max_length=128)]
Metadata = Annotated[dict[Key, Text], Field(max_length=_MAX_FIELDS)]
FileAttributes = Annotated[dict[Key, Value], Field(max_length=_MAX_FIELDS)]
Name = Annotated[str, Field(max_length=256)]
Ranker = Literal["auto", "none", "default-2024-11-15", "default_2024_08_21"]


def _refuse(value: object) -> object:
    if value is not None:
        raise PydanticCustomError("expires_after", "vector stores do not expire: delete them instead")
    return value


class ChunkingStrategy(Nullable, Wire):
    """How files are cut. Only the server's own way is supported: passages of about 70 words."""

    type: Literal["auto"]


class CreateVectorStore(Nullable, Wire):
    """A new vector store."""

    name: Name | None = None
    description: Name | None = None
    file_ids: list[FileId] = Field(default_factory=list, max_length=MAX_FILES)
    metadata: Metadata = Field(default_factory=dict)
    chunking_strategy: ChunkingStrategy | None = None
    expires_after: Annotated[Any, AfterValidator(_refuse)] = Field(None, description="not supported")


class UpdateVectorStore(Wire):
    """The fields of a vector store to change. Fields that are left out keep their values; null removes one."""

    name: Name | None = None
    description: Name | None = None
    metadata: Metadata | None = None
    expires_after: Annotated[Any, AfterValidator(_refuse)] = Field(None, description="not supported")


class FileCounts(Wire):
    """Files by their status. A file can be searched at once, so that all are completed."""

    in_progress: Literal[0] = 0
    completed: int
    failed: Literal[0] = 0
    cancelled: Literal[0] = 0
    total: int


class VectorStore(Wire):
    """A set of files that can be searched together."""

    id: str
    object: Literal["vector_store"] = "vector_store"
    created_at: int
    name: str | None
    description: str | None
    metadata: dict[str, str]
    usage_bytes: int = Field(description="size of the files' texts")
    file_counts: FileCounts
    status: Literal["completed"] = "completed"
    last_active_at: int = Field(description="when a file was last added")
    expires_after: None = None
    expires_at: None = None


class VectorStoreList(Page[VectorStore]):
    """A page of vector stores, newest first."""


class VectorStoreDeleted(Wire):
    """The deleted vector store. Its files stay."""

    id: str
    object: Literal["vector_store.deleted"] = "vector_store.deleted"
    deleted: Literal[True] = True


class AddFile(Nullable, Wire):
    """A file to add."""

    file_id: FileId
    attributes: FileAttributes = Field(default_factory=dict)
    chunking_strategy: ChunkingStrategy | None = None


class AddFiles(Nullable, Wire):
    """Files to add at once: `files`, each with its attributes, or `file_ids` with the same ones."""

    file_ids: list[FileId] | None = Field(None, min_length=1, max_length=MAX_FILES)
    files: list[AddFile] | None = Field(None, min_length=1, max_length=MAX_FILES)
    attributes: FileAttributes = Field(default_factory=dict, description="of all `file_ids`")
    chunking_strategy: ChunkingStrategy | None = None


class FileBatch(Wire):
    """Files that were added at once."""

    id: str
    object: Literal["vector_store.files_batch"] = "vector_store.files_batch"
    created_at: int
    vector_store_id: str
    status: Literal["completed"] = "completed"
    file_counts: FileCounts


class UpdateFile(Nullable, Wire):
    """New attributes of a file."""

    attributes: FileAttributes


class OtherChunking(Wire):
    """The server's own way to cut files: passages of about 70 words."""

    type: Literal["other"] = "other"


class VectorStoreFile(Wire):
    """A file in a vector store."""

    id: str
    object: Literal["vector_store.file"] = "vector_store.file"
    created_at: int
    vector_store_id: str
    usage_bytes: int
    status: Literal["completed"] = "completed"
    last_error: None = None
    attributes: dict[str, Value]
    chunking_strategy: OtherChunking = OtherChunking()


class VectorStoreFileList(Page[VectorStoreFile]):
    """A page of files, newest first."""


class VectorStoreFileDeleted(Wire):
    """The file that was removed from the vector store. It stays a file."""

    id: str
    object: Literal["vector_store.file.deleted"] = "vector_store.file.deleted"
    deleted: Literal[True] = True


class RankingOptions(Nullable, Wire):
    """How results are ranked."""

    ranker: Ranker = Field(
        "auto",
        description='"none": by words and by meaning, without the reranker; all others: with the reranker, for English',
    )
    score_threshold: float = Field(0, ge=0, le=1, description="minimum score")


_Query = Annotated[str, Field(min_length=1)]
Queries = Annotated[
    Annotated[_Query, Tag("Query")]
    | Annotated[list[_Query], Field(min_length=1, max_length=_MAX_QUERIES), Tag("Queries")],
    Discriminator(
        lambda value: {str: "Query", list: "Queries"}.get(type(value)),
        custom_error_type="queries",
        custom_error_message="query must be a string or a list of strings",
    ),
]


class SearchVectorStore(Nullable, Wire):
    """A search in a vector store."""

    query: Queries
    filters: Filter | None = None
    max_num_results: int = Field(10, ge=1, le=MAX_RESULTS)
    ranking_options: RankingOptions = Field(default_factory=RankingOptions)
    rewrite_query: Literal[False] = Field(False, description="queries are not rewritten")


class ResultText(Wire):
    """The text of a passage."""

    type: Literal["text"] = "text"
    text: str


class SearchResultItem(Wire):
    """A passage that was found. `evidence`: the same with its offsets, page and section."""

    file_id: str
    filename: str = Field(description="name of the file, or its id if it has no name")
    score: float
    attributes: dict[str, Value]
    content: list[ResultText]
    evidence: Evidence


class SearchResultPage(Wire):
    """The passages, best first."""

    object: Literal["vector_store.search_results.page"] = "vector_store.search_results.page"
    search_query: list[str]
    data: list[SearchResultItem]
    has_more: Literal[False] = False
    next_page: None = None
