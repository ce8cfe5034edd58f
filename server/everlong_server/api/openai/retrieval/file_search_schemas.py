"""The tool `file_search` of responses, and its item in their output: a source of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from everlong_server.api.openai.retrieval.filter_schemas import Filter, Value
from everlong_server.api.openai.retrieval.vector_store_schemas import MAX_RESULTS, Ranker
from everlong_server.api.schemas import Nullable, Wire

MAX_STORES = 16


class FileSearchRanking(Nullable, Wire):
    """How passages are ranked. A minimum score is not supported: the server decides by itself which passages fit."""

    ranker: Ranker = Field("auto", description="ignored")
    score_threshold: Literal[0] = Field(0, description="only 0")


class FileSearchTool(Nullable, Wire):
    """A search in vector stores before the answer. The server searches for every question, unless `tool_choice` is none."""

    type: Literal["file_search"]
    vector_store_ids: list[Annotated[str, Field(min_length=1, max_length=128)]] = Field(
        min_length=1, max_length=MAX_STORES
    )
    max_num_results: int | None = Field(
        None,
        ge=1,
        le=MAX_RESULTS,
        description="maximum number of passages; default: the server's, which is also the limit",
    )
    filters: Filter | None = Field(None, description="which files are searched, by their attributes")
    ranking_options: FileSearchRanking | None = None


class HostedTool(Wire):
    """`file_search` as `tool_choice`. It has no effect: the server searches for every question."""

    type: Literal["file_search"]


class FileSearchCallInput(Nullable, Wire):
    """A search of an earlier response, sent back as input: ignored."""

    type: Literal["file_search_call"]
    id: str | None = Field(None, max_length=128, description="ignored")
    queries: Any = Field(None, description="ignored")
    results: Any = Field(None, description="ignored")
    status: str | None = Field(None, max_length=64, description="ignored")


class FileSearchResult(Wire):
    """A passage that the model was shown."""

    file_id: str
    filename: str = Field(description="name of the file, or its id if it has no name")
    score: float
    text: str
    attributes: dict[str, Value]


class FileSearchCall(Wire):
    """The search that an answer rests on. `results` are there if `include` has `file_search_call.results`."""

    id: str
    type: Literal["file_search_call"] = "file_search_call"
    status: Literal["in_progress", "searching", "completed"]
    queries: list[str]
    results: list[FileSearchResult] | None
