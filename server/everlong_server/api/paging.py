"""Query parameters of endpoints that list objects."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

PageLimit = Annotated[int, Query(ge=1, le=100)]
AfterId = Annotated[str | None, Query(max_length=128, description="last id of the previous page")]
