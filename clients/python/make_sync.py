"""Write the modules of the blocking client from those of the asyncio client: `python clients/python/make_sync.py`.

The build runs it, and so do the tests. The results are not in the repository.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

FOLDER = Path(__file__).parent / "everlong_client"
MADE = {
    "async_client.py": "client.py",
    "async_streams.py": "streams.py",
    "transport/async_http.py": "transport/http.py",
}
"""The modules of the asyncio client, and those that are made from them."""
HEAD = "# Made from {} by make_sync.py: change that file, not this one.\n"
NAMES = {
    "async_http": "http",
    "async_streams": "streams",
    "asyncio": "time",
    "asynccontextmanager": "contextmanager",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclose": "close",
    "aiter": "iter",
    "aiter_bytes": "iter_bytes",
    "anext": "next",
    "aread": "read",
    "AnySource": "Source",
    "Tasks": "Threads",
    "task": "thread",
}
PHRASES = {
    r"\n +`source` may also be an async iterator.*": "",
    r"websockets\.asyncio": "websockets.sync",
    r"asyncio\.to_thread\((\w+), ": r"\1(",
    r"Awaitable\[(\w+)\]": r"\1",
    r"\b(async|await) ": "",
    r"\bAsync(?=[A-Z])": "",
    r"\bAn asyncio client": "A blocking client",
    r"  # noqa: ASYNC109.*": "",
}


def blocking(source: str) -> str:
    """Return the source of a blocking module for that of an asyncio module."""
    for phrase, replacement in PHRASES.items():
        source = re.sub(phrase, replacement, source)
    return re.sub(r"\w+", lambda word: NAMES.get(word[0], word[0]), source)


def main() -> None:
    """Write each file, unless it is up to date. Several processes may do so at once."""
    for name, made_name in MADE.items():
        target = FOLDER / made_name
        made = HEAD.format(name) + blocking((FOLDER / name).read_text(encoding="utf-8"))
        if not target.exists() or target.read_text(encoding="utf-8") != made:
            part = target.with_name(f".{target.stem}.{os.getpid()}.part")
            part.write_text(made, encoding="utf-8")
            part.replace(target)


if __name__ == "__main__":
    main()
