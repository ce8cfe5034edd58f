"""`check_ports`: whether the server can listen, before the model is loaded."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress

import psutil

from everlong_server.settings import Settings


class PortError(Exception):
    """The server cannot listen on its address. The message says why and what to do."""


def check_ports(settings: Settings) -> None:
    """Raise `PortError` if the server cannot listen on one of its ports, or if both are the same: only the probes would answer."""
    check_port(settings.host, settings.port)
    if settings.metrics_port is not None:
        if settings.metrics_port == settings.port:
            raise PortError(
                f"--metrics-port (EVERLONG_METRICS_PORT)={settings.metrics_port}: must differ from --port (EVERLONG_PORT), since a "
                "port for metrics serves nothing else"
            )
        check_port(settings.host, settings.metrics_port)


def check_port(host: str, port: int) -> None:
    """Raise `PortError` if no server can listen on `port` (0: any free port) of `host`."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise PortError(f"--host {host}: {error.strerror}") from None
    for family, kind, protocol, _, address in addresses:
        with suppress(OSError), socket.socket(family, kind, protocol) as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # both as asyncio does
            if family == socket.AF_INET6:
                free.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                free.bind(address)
            except OSError as error:
                raise PortError(_reason(host, port, error)) from None


def _reason(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use by {_holder(port)}: stop that, or choose another port with --port"
    if error.errno == errno.EACCES:
        return f"--port {port}: only root may listen on ports below 1024: choose another port"
    return f"cannot listen on port {port} of {host}: {error.strerror}"


def _holder(port: int) -> str:
    """Name the process that listens on `port`. The operating system names other users' processes to root only."""
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            at = connection.laddr
            if connection.status == psutil.CONN_LISTEN and at and at.port == port and connection.pid:
                process = psutil.Process(connection.pid)
                own = "this process" if connection.pid == os.getpid() else f"process {connection.pid}"
                return f"{own} ({' '.join(process.cmdline())[:120] or process.name()})"
    return "another program"
