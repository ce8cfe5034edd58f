"""`Server`: a real `everlong serve` process that tests can start, kill and restart. `everlong`: runs any everlong command."""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
import redis

from everlong_client.cli.main import main
from everlong_lab.harness.ports import free_port
from everlong_server.store.redis import keys

START_SECONDS = 300

# Servers are forked from a process that has imported everything already: importing takes ten times as long as the rest of a start.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.preloaded"])


def wait_for(condition: Any, seconds: float = 60, what: str = "") -> Any:
    """Wait for a true value of `condition()` and return it. Fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds} s without success {what}")


class Forked:
    """A command in a process of its own, like `subprocess.Popen`, but forked from a process that has imported everything."""

    def __init__(
        self, arguments: list[str], environment: dict[str, str], stdout: Path, stderr: Path, *, daemon: bool
    ) -> None:
        """`daemon`: the process ends with this one, and may not use multiprocessing."""
        self._process = _FORKS.Process(target=_run, args=(arguments, environment, stdout, stderr), daemon=daemon)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"the process did not end within {timeout} s"
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process if it is running."""
        self._process.kill()


def _run(arguments: list[str], environment: dict[str, str], stdout: Path, stderr: Path) -> None:
    """Run the command, in the fork."""
    os.environ.clear()
    os.environ.update(environment)
    for target, path in enumerate((Path(os.devnull), stdout, stderr)):
        source = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(source, target)
        os.close(source)
    sys.argv = ["everlong", *arguments]
    try:
        main()
    finally:
        atexit._run_exitfuncs()  # multiprocessing does not run these in its forks


def everlong(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in a fork. Of the EVERLONG_* variables it gets only those in `variables`."""
    with tempfile.TemporaryDirectory() as folder:
        stdout, stderr = Path(folder) / "stdout", Path(folder) / "stderr"
        forked = Forked(list(arguments), _environment() | variables, stdout, stderr, daemon=False)
        try:
            status = forked.wait(2 * START_SECONDS)
        finally:
            forked.kill()
        return subprocess.CompletedProcess(arguments, status, stdout.read_text(), stderr.read_text())


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("EVERLONG_")}


class Server:
    """An everlong server with its data in `data`. `settings` become EVERLONG_* variables."""

    def __init__(self, model: Path | str, data: Path, **settings: object) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=60)
        self.data = data
        # A Unix socket's path is short; pytest's folders are not.
        self._short = tempfile.TemporaryDirectory(prefix="evl")
        link = Path(self._short.name) / "d"
        data.mkdir(parents=True, exist_ok=True)
        link.symlink_to(data)
        self._link = link
        self.environment = {
            **_environment(),
            "EVERLONG_MODEL": str(model),
            "EVERLONG_DATA_DIR": str(link),
            "EVERLONG_THREADS": "1",
            "EVERLONG_EMBEDDINGS": "off",  # most tests need no vectors, which take seconds
            **{f"EVERLONG_{name.upper()}": _text(value) for name, value in settings.items()},
        }
        self.settings = settings
        self.process: subprocess.Popen[bytes] | Forked | None = None
        self.log = data / "server.log"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def launch(self, *, imports: bool = False) -> None:
        """Start the process without waiting until it is ready. `imports`: a fresh process that imports everything itself."""
        arguments = ["serve", "--port", str(self.port)]
        self.log.touch()
        if not imports:
            self.process = Forked(arguments, self.environment, self.log, self.log, daemon=True)
            return
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "everlong_client", *arguments],
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def start(self) -> Self:
        """Start the process and wait until it is ready."""
        self.launch()
        self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Wait until /readyz returns 200."""

        def ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, f"the server ended: {self.log.read_text()[-3000:]}"
            try:
                return self.http.get("/readyz").status_code == 200
            except httpx.TransportError:
                return False

        wait_for(ready, START_SECONDS, f"for the server: {self.log.read_text()[-3000:]}")

    def kill9(self) -> None:
        """Kill the process with SIGKILL, and wait for its end."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)
        self.process = None

    def terminate(self, sig: int = signal.SIGTERM, seconds: float = 40) -> int:
        """End the process with a signal, and return its exit status."""
        assert self.process is not None
        self.process.send_signal(sig)
        status = self.process.wait(seconds)
        self.process = None
        return status

    def stop(self) -> None:
        """End the process if it is running, and clean up."""
        if self.process is not None:
            self.terminate()
        self.http.close()
        self._short.cleanup()

    @property
    def memory(self) -> psutil.Process:
        """The process, to measure its resident memory."""
        assert self.process is not None
        return psutil.Process(self.process.pid)

    @property
    def redis(self) -> redis.Redis:
        """A client of the embedded Redis."""
        return redis.Redis(unix_socket_path=str(self._link / "redis" / "redis.sock"))

    # Requests that many tests send

    def upload(self, text: str | bytes, **query: str) -> dict[str, Any]:
        """Upload a document, and return it."""
        body = text.encode() if isinstance(text, str) else text
        answer = self.http.post("/v1/documents", content=body, params=query, headers={"content-type": "text/plain"})
        assert answer.status_code == 202, answer.text
        return answer.json()

    def document(self, document_id: str) -> dict[str, Any]:
        """Fetch a document."""
        answer = self.http.get(f"/v1/documents/{document_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def wait_read(self, document_id: str, seconds: float = 120) -> dict[str, Any]:
        """Wait until the document is ready, and return it."""

        def done() -> dict[str, Any] | None:
            document = self.document(document_id)
            assert document["status"] != "failed", document["error"]
            return document if document["status"] == "ready" else None

        return wait_for(done, seconds, f"for document {document_id}")

    def read(self, text: str | bytes, **query: str) -> dict[str, Any]:
        """Upload a document, wait until it is ready, and return it."""
        return self.wait_read(self.upload(text, **query)["id"])

    def stored(self) -> set[str]:
        """Return the ids that files in the folder of documents begin with: texts, complete or not, and their sidecar files."""
        return {path.name.lstrip(".").split(".")[0] for path in (self.data / "documents").iterdir()}

    def session(self, *documents: str) -> dict[str, Any]:
        """Create a session, and return it."""
        answer = self.http.post("/v1/sessions", json={"documents": list(documents)})
        assert answer.status_code == 201, answer.text
        return answer.json()

    def get_session(self, session_id: str) -> dict[str, Any]:
        """Fetch a session."""
        answer = self.http.get(f"/v1/sessions/{session_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def say(self, session_id: str, content: str, **sampling: Any) -> dict[str, Any]:
        """Send a message, and return the answer."""
        answer = self.http.post(f"/v1/sessions/{session_id}/messages", json={"content": content, **sampling})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def error(self, answer: httpx.Response, status: int, code: str, param: str | None = None) -> dict[str, Any]:
        """Check that `answer` is an error in the documented form, and return its inner object."""
        assert answer.status_code == status, (answer.status_code, answer.text)
        body = answer.json()
        if answer.request.url.path.startswith("/api/"):  # Ollama's form has the message alone
            assert body.keys() == {"error"}
            return {"message": body["error"]}
        if answer.request.url.path.startswith("/v1/messages"):  # Anthropic's form
            assert (body.pop("type"), body.pop("request_id")) == ("error", answer.headers["x-request-id"])
        assert body.keys() == {"error"}
        assert body["error"].keys() == {"message", "type", "param", "code"}
        assert body["error"]["code"] == code, body
        if param is not None:
            assert body["error"]["param"] == param, body
        if status in (429, 503):
            assert int(answer.headers["retry-after"]) >= 1
        return body["error"]

    def check_keys(self, seconds: float = 10) -> None:
        """Check that every Redis key is documented, expires if it should, and belongs to an object that exists.

        Retries for `seconds`: an object that is being deleted at the moment looks like one that left keys behind.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self._check_keys()
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def _check_keys(self) -> None:
        client = self.redis
        found = {key.decode() for key in client.scan_iter("*")}
        for key in found:
            kinds = [kind for kind in keys.KEYS if kind.matches(key)]
            assert len(kinds) == 1, f"key {key!r} is documented {len(kinds)} times in keys.py"
            kind, ttl = client.type(key).decode(), client.pttl(key)
            if kind != "none" and ttl != -2:  # otherwise the key is gone since it was listed
                assert kind == kinds[0].type, key
                assert (ttl >= 0) == kinds[0].expires, f"key {key!r} has TTL {ttl}"
        documents, sessions = (
            {member.decode() for index in client.scan_iter(pattern) for member in client.zrange(index, 0, -1)}
            for pattern in (keys.documents("*"), keys.sessions("*"))
        )
        for key in found:
            if match := re.match(r"\{everlong\}:document:([^:]+)", key):
                assert match[1] in documents, f"{key} is left of a deleted document"
            if match := re.match(r"\{everlong\}:upload:([^:]+)", key):
                assert client.zscore(keys.UPLOADS, match[1]) is not None, f"{key} is left of an upload"
            match = re.match(r"\{everlong\}:session:([^:]+)", key)
            if match and not key.endswith(":deletion"):  # which marks a deleted session for a minute
                assert match[1] in sessions, f"{key} is left of a deleted session"
            if re.fullmatch(r"\{everlong\}:reading:[^:]+", key):
                ids = client.hget(key, "documents")
                assert ids is None or set(json.loads(ids)) <= documents, f"{key} is left of a deleted document"


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)
