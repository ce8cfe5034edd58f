"""`GET /v1/models` in Anthropic's form, for requests with the header `anthropic-version`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from everlong_server.api.anthropic.model_schemas import AnthropicModel, AnthropicModelList
from everlong_server.api.caller_services import CallerServices
from everlong_server.api.error_forms import is_anthropic, vary_by_api
from everlong_server.errors import InvalidRequest
from everlong_server.services import Services


class _AnthropicRoute(APIRoute):
    """A route for requests with the header `anthropic-version` alone. Others get OpenAI's form, from `native/models.py`."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return super().matches(scope) if is_anthropic(scope) else (Match.NONE, {})


# Not in the OpenAPI document, which has one operation for each path and method.
router = APIRouter(
    prefix="/v1/models", route_class=_AnthropicRoute, include_in_schema=False, dependencies=[Depends(vary_by_api)]
)


@router.get("")
async def models(
    services: CallerServices,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
    after_id: str | None = None,
    before_id: str | None = None,
) -> AnthropicModelList:
    """Lists the models that answer messages, the default one first."""
    every = [_view(services, model.name) for model in services.shared.models.all]
    first, last = 0, len(every)
    if after_id is not None:
        first = _index(every, after_id, "after_id") + 1
    if before_id is not None:
        last = _index(every, before_id, "before_id")
    found = every[first:last]
    page = found[-limit:] if before_id is not None else found[:limit]
    ids = [page[0].id, page[-1].id] if page else [None, None]
    return AnthropicModelList(data=page, has_more=len(page) < len(found), first_id=ids[0], last_id=ids[1])


@router.get("/{model_id:path}")
async def model(model_id: str, services: CallerServices) -> AnthropicModel:
    """Returns a model. Does not load it."""
    return _view(services, services.shared.models.named(model_id, "model_id").name)


def _view(services: Services, name: str) -> AnthropicModel:
    started = datetime.fromtimestamp(int(services.shared.started_at), UTC)
    return AnthropicModel(id=name, display_name=name, created_at=started.isoformat().replace("+00:00", "Z"))


def _index(models: list[AnthropicModel], id: str, param: str) -> int:
    """Return the place of the model `id`. Raises `InvalidRequest`, naming the query parameter `param`."""
    for index, each in enumerate(models):
        if each.id == id:
            return index
    raise InvalidRequest(f"{param}: no model {id[:60]!r}", param=param)
