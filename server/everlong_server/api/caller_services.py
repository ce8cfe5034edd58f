"""Dependencies that give an endpoint the services of the caller's tenant, and of a session's model."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from everlong_server.errors import Conflict, Unavailable
from everlong_server.services import Services, Shared, tenant_services
from everlong_server.store.records import Session


def get_shared(connection: HTTPConnection) -> Shared:
    """Return the parts that all tenants share. Raises `Unavailable` while the model is loading."""
    shared: Shared | None = connection.app.state.shared
    if shared is None:
        raise Unavailable("the model is loading", code="loading", retry_after=2)
    return shared


def get_services(connection: HTTPConnection) -> Services:
    """Return the services of the caller's tenant, for a WebSocket. Raises `Unavailable` while the model is loading."""
    return tenant_services(get_shared(connection), connection.state.caller.tenant)


async def _request_services(connection: HTTPConnection) -> AsyncIterator[Services]:
    """Yield the services of the caller's tenant until the response is sent. Raises `Unavailable` while the model is loading."""
    async with contextlib.AsyncExitStack() as held:
        yield tenant_services(get_shared(connection), connection.state.caller.tenant, held)


CallerServices = Annotated[Services, Depends(_request_services)]


async def session_services(services: Services, session: Session, named: str | None) -> Services:
    """Return the services with the session's model. `named`: the model that a message names, if any.

    Raises `Conflict` if `named` is not the session's model, `StateUnusable` if the server does not serve this model, and
    `Unavailable` if the model cannot be loaded now.
    """
    if named not in (None, session.model_name):
        raise Conflict(
            f"session {session.id!r} belongs to the model {session.model_name!r}; to ask {named[:256]!r}, create a session with it",
            param="model",
            code="model_of_session",
        )
    return await services.with_model_of(session)
