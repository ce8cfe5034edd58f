"""`Names`: Docker's DNS, as far as the proxy uses it: the addresses of one name, which may change."""

from __future__ import annotations

import socket
import threading


class Names:
    """Answers every question with `addresses`, over UDP at `port`."""

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                query, client = self._socket.recvfrom(512)
            except OSError:  # closed
                return
            end = query.index(b"\0", 12) + 5  # behind the question: name, type, class
            answers = b"".join(
                b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + socket.inet_aton(address) for address in self.addresses
            )
            counts = b"\0\1" + len(self.addresses).to_bytes(2, "big") + b"\0\0\0\0"
            self._socket.sendto(query[:2] + b"\x81\x80" + counts + query[12:end] + answers, client)

    def close(self) -> None:
        """Stop answering."""
        self._socket.close()
