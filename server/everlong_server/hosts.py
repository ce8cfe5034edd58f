"""Names and addresses of hosts: how URLs write them, and which of them are this machine's."""

from __future__ import annotations

import ipaddress

import httpx

# Nobody can register names under these domains: RFC 6762, ICANN's resolution 2024.07.29.06.
_PRIVATE_DOMAINS = (".internal", ".local")


def authority(host: str, port: int) -> str:
    """Return `host:port` as in a URL, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """True if `host` is `localhost` or a loopback address."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_private(host: str) -> bool:
    """True if `host` is an IP address, or a name that nobody can register for the internet."""
    return "." not in host or host.endswith(_PRIVATE_DOMAINS) or is_address(host)


def is_address(host: str) -> bool:
    """True if `host` is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:  # a name, which may belong to anybody
        return False
    return True


def normalised_authority(host: str) -> str:
    """Return `host`, which may have a port, in lower case and ASCII. Raises `ValueError` unless it is a host."""
    try:
        url = httpx.URL(f"//{host}")
        only_host = url.host != "" and (url.path, url.query, url.fragment, url.userinfo) == ("/", b"", "", b"")
    except (httpx.InvalidURL, UnicodeError) as error:
        raise ValueError(f"{host!r} is not a valid host: {error}") from None
    if not only_host:
        raise ValueError(f"{host!r} is not a host, or a host with a port; give HOST or HOST:PORT")
    return url.netloc.decode()


def normalised_host(host: str) -> str:
    """Return the name or address of a host in lower case and ASCII, without a dot at its end. Raises `ValueError` for other strings."""
    if is_address(host):
        return str(ipaddress.ip_address(host))
    try:
        url = httpx.URL(f"//{normalised_authority(host)}")
    except ValueError:
        url = httpx.URL()
    name = url.raw_host.decode().lower().removesuffix(".")
    if not name or url.port is not None:
        raise ValueError(f"{host!r} is not a host; give a name or an address, without a port")
    return str(ipaddress.ip_address(name)) if is_address(name) else name
