"""The objects of OpenAI's files and uploads that the server supports: a source of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from everlong_server.api.schemas import OCR_LANGUAGE, Nullable, Wire
from everlong_server.engine.documents.multipart_uploads import MAX_PARTS


class File(Wire):
    """A document, or a file of batches, in the format of OpenAI's API."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = Field(None, description="when a file of batches is deleted; null: never")
    filename: str
    purpose: Literal["user_data", "batch", "batch_output"] = "user_data"
    status: str = Field(description="uploaded (being read), processed or error")
    status_details: str | None


class FileList(Wire):
    """A page of files, newest first."""

    object: Literal["list"] = "list"
    data: list[File]
    has_more: bool


class FileDeleted(Wire):
    """The deleted file."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class CreateUpload(Nullable, Wire):
    """A new multipart upload."""

    bytes: int = Field(ge=1, description="size of the file: all parts together")
    filename: str = Field(min_length=1, max_length=255)
    mime_type: str = Field(max_length=255, description="ignored: the server checks the content")
    purpose: Literal["user_data", "assistants"] = Field(description="assistants: another name of user_data")


class CompleteUpload(Nullable, Wire):
    """The parts of a complete upload."""

    part_ids: list[Annotated[str, Field(max_length=128)]] = Field(
        min_length=1, max_length=MAX_PARTS, description="ids of all parts, in the order of the file"
    )
    md5: str | None = Field(None, pattern="^[0-9a-fA-F]{32}$", description="MD5 of the whole file, checked if given")
    ocr_language: str | None = Field(None, max_length=60, description=f"an extension: {OCR_LANGUAGE}")


class Upload(Wire):
    """A multipart upload."""

    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["user_data"]
    status: Literal["pending", "completed", "cancelled"]
    file: File | None


class UploadPart(Wire):
    """A stored part of an upload."""

    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str
