"""`/v1/tickets`: authenticates WebSockets of browsers, which cannot set headers."""

from __future__ import annotations

from fastapi import APIRouter, Request

from everlong_server.api.caller_services import CallerServices
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.native import key_schemas

router = APIRouter(prefix="/v1/tickets", tags=["access"], responses={s: ERROR_RESPONSES[s] for s in (429, 503)})


@router.post("", status_code=201)
async def create(request: Request, services: CallerServices) -> key_schemas.Ticket:
    """Creates a ticket that opens one WebSocket, as `?ticket=…` in place of the API key. It is valid for 30 s."""
    ticket, ends = await services.shared.credentials.ticket(request.state.caller)
    return key_schemas.Ticket(ticket=ticket, expires_at=ends)
