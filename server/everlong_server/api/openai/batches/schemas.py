"""The objects of OpenAI's batches: a source of the OpenAPI document."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from everlong_server.api.openai.chat_schemas import Metadata
from everlong_server.api.openai.page_schemas import Page
from everlong_server.api.schemas import Nullable, Wire
from everlong_server.store.batches.records import Status

Endpoint = Literal["/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/embeddings"]


class OutputExpiry(Wire):
    """When the output files of a batch expire."""

    anchor: Literal["created_at"] = Field(description="the time at which the files are created")
    seconds: int = Field(ge=3600, le=2_592_000)


class CreateBatch(Nullable, Wire):
    """A new batch."""

    input_file_id: str = Field(max_length=128, description="id of a file with the purpose `batch`")
    endpoint: Endpoint = Field(description="endpoint of all requests of the batch")
    completion_window: Literal["24h"] = Field(description="time after which a batch that is not completed expires")
    metadata: Metadata | None = Field(None, description="up to 16 pairs")
    output_expires_after: OutputExpiry | None = Field(
        None, description="default: the output files are kept as long as the batch"
    )


class BatchError(Wire):
    """Why a batch failed."""

    code: str
    message: str
    line: int | None = Field(description="line of the input file, counted from 1")
    param: str | None = Field(description="field of the request in that line")


class BatchErrors(Wire):
    """Why a batch failed: at most 100 errors."""

    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(Wire):
    """The numbers of a batch's requests."""

    total: int
    completed: int = Field(description="answered requests")
    failed: int = Field(description="requests whose result is an error")


class Batch(Wire):
    """A batch. All times are Unix times in seconds."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: Literal["24h"] = "24h"
    status: Status
    output_file_id: str | None = Field(description="file with the results of the answered requests")
    error_file_id: str | None = Field(description="file with the results of the failed requests")
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class BatchList(Page[Batch]):
    """A page of batches, newest first."""
