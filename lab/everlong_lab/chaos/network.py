"""`network`: hosts in network namespaces on one bridge, where packets from one host to another can be dropped. Linux only, as root."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from everlong_lab.chaos.namespaces import OWN, own_namespace
from everlong_lab.chaos.processes import ClusterError

_SUBNET = "10.77.0"
_NOBODY = "02:00:00:00:00:fe"
"""A hardware address that no host has: the bridge loses what is sent to it, as a broken cable would."""


class Host:
    """A host with an `address` of its own. `namespace`: the file of its network namespace."""

    def __init__(self, number: int) -> None:
        self.address = f"{_SUBNET}.{number}"
        # The namespace lives as long as this process, which ends with ours: its stdin is closed.
        self._holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)
        self.namespace = f"/proc/{self._holder.pid}/ns/net"
        self.prefix = ["nsenter", f"--net={self.namespace}", "--"]
        """Start of a command that runs on this host."""
        while os.readlink(self.namespace) == os.readlink(OWN):
            if self._holder.poll() is not None:
                raise ClusterError("`unshare --net` failed: network namespaces need Linux and root")
            time.sleep(0.01)
        _run(
            "ip", "link", "add", f"host{number}", "type", "veth", "peer", "name", "eth0", "netns", str(self._holder.pid)
        )
        _run("ip", "link", "set", f"host{number}", "master", "switch", "up")
        _run(*self.prefix, "ip", "link", "set", "lo", "up")
        _run(*self.prefix, "ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        _run(*self.prefix, "ip", "link", "set", "eth0", "up")

    def lose(self, other: Host) -> None:
        """Lose everything that this host sends to `other`; connections stay open."""
        _run(*self.prefix, "ip", "neighbour", "replace", other.address, "lladdr", _NOBODY, "nud", "permanent", "dev", "eth0")  # fmt: skip

    def mend(self) -> None:
        """Lose nothing any more."""
        _run(*self.prefix, "ip", "neighbour", "flush", "dev", "eth0", "nud", "permanent")

    def close(self) -> None:
        """Delete the host. Its processes must have ended."""
        self._holder.kill()
        self._holder.wait()
        assert self._holder.stdin is not None
        self._holder.stdin.close()


class Network:
    """The hosts, which reach each other and are reached by this thread."""

    def __init__(self) -> None:
        self.hosts: list[Host] = []

    def add(self) -> Host:
        """Add a host."""
        self.hosts.append(Host(10 + len(self.hosts)))
        return self.hosts[-1]

    @staticmethod
    def part(some: list[Host], others: list[Host]) -> None:
        """Lose everything between two groups of hosts, in both directions."""
        for one in some:
            for other in others:
                one.lose(other)
                other.lose(one)

    def mend(self) -> None:
        """Lose nothing any more."""
        for host in self.hosts:
            host.mend()

    def close(self) -> None:
        """Delete the hosts."""
        for host in self.hosts:
            host.close()


@contextmanager
def network() -> Iterator[Network]:
    """Move this thread to a network of its own for the duration of the block. Raises `ClusterError` if this user may not."""
    if sys.platform != "linux":
        raise ClusterError("network namespaces need Linux")
    found = Network()
    with ExitStack() as stack:
        try:
            stack.enter_context(own_namespace())
        except OSError as error:
            raise ClusterError(f"no network namespace: {error}") from error
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "switch", "type", "bridge", "forward_delay", "0")
        _run("ip", "address", "add", f"{_SUBNET}.1/24", "dev", "switch")
        _run("ip", "link", "set", "switch", "up")
        stack.callback(found.close)
        yield found


def _run(*command: str) -> None:
    """Run a command. Raises `ClusterError` with what it says if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"{' '.join(command)}: {done.stderr.strip()}")
