"""OpenAI's objects, as far as there is something behind them: the source of the OpenAPI document."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from everlong_server.api.schemas import Wire


class File(Wire):
    """A document under OpenAI's names."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: None = None
    filename: str
    purpose: Literal["user_data"] = "user_data"
    status: str = Field(description="uploaded: it is being read; processed; error")
    status_details: str | None


class FileList(Wire):
    """Newest first."""

    object: Literal["list"] = "list"
    data: list[File]
    has_more: bool


class FileDeleted(Wire):
    """What was deleted."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True
