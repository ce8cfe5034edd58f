"""The address is checked before the model is loaded."""

from __future__ import annotations

import socket

import pytest

from everlong_server.process.port import PortError, check_port, check_ports
from everlong_server.settings import Settings


def test_a_free_port() -> None:
    check_port("127.0.0.1", 0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    check_port("127.0.0.1", port)


def test_a_port_in_use_names_the_process_that_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            PortError, match=rf"port {port} of 127.0.0.1 is in use by this process \(.*python"
        ) as raised:
            check_port("127.0.0.1", port)
    assert str(raised.value).endswith("stop that, or choose another port with --port")


def test_an_address_of_another_machine() -> None:
    with pytest.raises(PortError, match=r"cannot listen on port 1 of 192\.0\.2\.1: "):
        check_port("192.0.2.1", 1)
    with pytest.raises(PortError, match=r"--host no-such-host\.invalid: "):
        check_port("no-such-host.invalid", 0)


def test_the_port_for_metrics_is_another_one() -> None:
    """Two sockets may be bound to one port; the server would start, and answer every request of the API with 404."""
    with pytest.raises(PortError, match=r"EVERLONG_METRICS_PORT\)=1999: must differ from --port"):
        check_ports(Settings(port=1999, metrics_port=1999))
