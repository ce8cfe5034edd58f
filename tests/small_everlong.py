"""`python -m tests.small_everlong …`: runs an `everlong` command with less work, to test the commands in the documentation.

`train` takes two steps, `eval` uses short documents, and `serve` ends as soon as it is ready.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

LESS = {
    "train facts-detect": [
        "--threads", "1", "--set", "stages=[{segments: 1, steps: 2}]", "--set", "rows=2", "--set", "check.samples=2",
    ],
    "eval facts": ["--threads", "1", "--lengths", "1,2", "--samples", "2"],
    "eval horizon": ["--updates", "4", "--basis", "32", "--segment-length", "32"],
}  # fmt: skip


def main(arguments: list[str]) -> None:
    if arguments[0] != "serve":
        less = LESS.get(" ".join(arguments[:2]), [])
        os.execv(sys.executable, [sys.executable, "-m", "everlong_client", *arguments, *less])
    from tests.process import Server

    option, model = arguments[1:]
    assert option == "--model"
    with tempfile.TemporaryDirectory() as folder, Server(Path(model), Path(folder)) as server:
        server.start()


if __name__ == "__main__":
    main(sys.argv[1:])
