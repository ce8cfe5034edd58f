"""Runs the MCP server: over standard input and output, or over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

from mcp.server.transport_security import TransportSecuritySettings

from everlong_client.mcp.server import DocumentServer

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on `host`."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def run_http(server: DocumentServer, host: str, port: int, names: Sequence[str]) -> None:
    """Serve streamable HTTP at `http://host:port/mcp` until a signal ends the process.

    `names`: the host names that clients use, in place of those of this machine. Requests with another `Host` or `Origin` are
    refused, so that a web page of another site cannot send any (DNS rebinding).
    """
    allowed = [*names] if names else [*LOOPBACK, f"[{host}]" if ":" in host else host]
    hosts = [form for name in allowed for form in (name, f"{name}:*")]
    security = TransportSecuritySettings(
        allowed_hosts=hosts, allowed_origins=[f"{scheme}://{form}" for scheme in ("http", "https") for form in hosts]
    )
    # Stateless: no request depends on an earlier one, so that clients survive a restart.
    server.run("streamable-http", host=host, port=port, stateless_http=True, transport_security=security)
