"""API keys and tickets as the API's objects."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from everlong_server.api.schemas import Wire


class CreateApiKey(Wire):
    """A new key of the caller's tenant."""

    name: str = Field("", max_length=100, description="note on the key's purpose")
    scopes: list[Literal["read", "write", "admin"]] = Field(default=["read", "write"], min_length=1, max_length=3)
    expires_in_seconds: int | None = Field(
        None, ge=1, le=10**9, description="lifetime in seconds; null: the key does not expire"
    )


class ApiKey(Wire):
    """A key without its secret. Times are Unix times in seconds."""

    id: str
    object: Literal["api_key"] = "api_key"
    name: str
    scopes: list[str]
    created_at: float
    expires_at: float | None
    revoked_at: float | None


class NewApiKey(ApiKey):
    """A key with its secret, which only this response contains."""

    key: str


class ApiKeyList(Wire):
    """All keys of the tenant, newest first."""

    object: Literal["list"] = "list"
    data: list[ApiKey]


class Ticket(Wire):
    """A short-lived replacement for the caller's API key that opens one WebSocket."""

    object: Literal["ticket"] = "ticket"
    ticket: str
    expires_at: float = Field(description="Unix time in seconds")
