"""`require_known_query`: refuses query parameters that an endpoint does not have, like unknown fields of a body."""

from __future__ import annotations

from fastapi import Request
from fastapi.routing import APIRoute

from everlong_server.errors import InvalidRequest


def require_known_query(request: Request) -> None:
    """Raise `InvalidRequest` for a query parameter that the endpoint does not have, such as a misspelt one.

    Only for everlong's own endpoints: SDKs of other APIs add parameters of their own, such as `api-version` or `beta`.
    """
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    known = sorted(field.alias for field in route.dependant.query_params)
    for name in request.query_params:
        if name not in known:
            takes = f"takes only {', '.join(known)}" if known else "takes none"
            raise InvalidRequest(
                f"{name[:60]}: unknown query parameter; this endpoint {takes}",
                param=name[:60],
                code="unknown_parameter",
            )
