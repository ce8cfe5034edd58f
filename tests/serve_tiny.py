"""`python -m tests.serve_tiny`: runs a server with a tiny model, for the tests of clients in other languages.

Prints its address as the first line on stdout. Ends when stdin is closed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.process import Server
from tests.tinymodel import make_model


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Server(make_model(Path(folder)), Path(folder) / "data") as server:
        server.start()
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
