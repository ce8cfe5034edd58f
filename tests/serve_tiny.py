"""`python -m tests.serve_tiny`: a server with a tiny model, for the tests of clients in other languages.

Its address is the first line on stdout; it ends when stdin does.
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
