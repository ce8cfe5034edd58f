"""`/v1/keys`: the API keys of the caller's tenant. Needs the scope `admin`."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Request

from everlong_server.api.bodies.json_body import JsonRoute
from everlong_server.api.caller_services import CallerServices
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.native import key_schemas
from everlong_server.store.tenants.credentials import ApiKey

router = APIRouter(
    prefix="/v1/keys",
    tags=["access"],
    responses={s: ERROR_RESPONSES[s] for s in (404, 422, 429, 503)},
    route_class=JsonRoute,
)


@router.post("", status_code=201)
async def create(body: key_schemas.CreateApiKey, request: Request, services: CallerServices) -> key_schemas.NewApiKey:
    """Creates an API key of the tenant. Only this response contains the secret."""
    key, secret = await services.shared.credentials.create(
        services.tenant, name=body.name, scopes=body.scopes, seconds=body.expires_in_seconds, by=_actor(request)
    )
    return key_schemas.NewApiKey(key=secret, **_view(key).model_dump())


@router.get("")
async def index(services: CallerServices) -> key_schemas.ApiKeyList:
    """Lists the tenant's API keys, newest first, with expired and revoked ones."""
    return key_schemas.ApiKeyList(data=[_view(key) for key in await services.shared.credentials.all(services.tenant)])


@router.delete("/{key_id}")
async def revoke(key_id: str, request: Request, services: CallerServices) -> key_schemas.ApiKey:
    """Revokes an API key: every server refuses it from the next request on. The key stays in the list."""
    return _view(await services.shared.credentials.revoke(key_id, tenant=services.tenant, by=_actor(request)))


def _actor(request: Request) -> str:
    """Return the caller for the audit log."""
    return f"key {request.state.caller.key}"


def _view(key: ApiKey) -> key_schemas.ApiKey:
    return key_schemas.ApiKey(**{name: value for name, value in asdict(key).items() if name != "tenant"})
