"""When keys are required, and the first key: a server that other machines can reach does not start without one."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from everlong_server.services import NoKeys, require_keys
from everlong_server.settings import Settings
from tests.process import START_SECONDS, Server, wait_for
from tests.server.tenants import client, new_key


@pytest.mark.parametrize(
    ("settings", "asks"),
    [
        ({}, False),
        ({"host": "127.0.0.1"}, False),
        ({"host": "127.9.9.9"}, False),
        ({"host": "::1"}, False),
        ({"host": "localhost"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "::"}, True),
        ({"host": "192.168.1.7"}, True),
        ({"host": "localhost.example.org"}, True),
        ({"host": ""}, True),
        ({"host": "0.0.0.0", "auth": "off"}, False),
        ({"auth": "keys"}, True),
    ],
)
def test_keys_are_asked_for_unless_only_this_machine_listens(settings: dict[str, str], asks: bool) -> None:
    assert Settings(**settings).asks_for_keys is asks


@pytest.mark.parametrize(
    ("host", "good", "bad"),
    [
        ("127.0.0.1", ["localhost", "127.0.0.1", "::1", "books.example"], ["server", "10.0.0.1", "evil.example", "", "a.local"]),
        ("0.0.0.0", ["localhost", "10.0.0.1", "fe80::1", "server", "Server.", "server.default.svc.cluster.local",
                     "host.docker.internal", "books.example", "Books.Example."],
         ["evil.example", "books.example.evil.example", "xbooks.example", "a.local.evil.example", "1.2.3.4.evil.example"]),
    ],
)  # fmt: skip
def test_public_host_names_are_not_this_server(host: str, good: list[str], bad: list[str]) -> None:
    settings = Settings(host=host, auth="off", allowed_hosts=("books.example",))
    assert [name for name in (*good, *bad) if settings.accepts_host(name)] == good


@pytest.mark.parametrize(
    ("given", "sent"),
    [("Books.Example.org", "books.example.org"), ("books.example.", "books.example"), ("bücher.example", "xn--bcher-kva.example"),
     ("[2001:DB8::1]", "2001:db8::1"), ("2001:DB8::1", "2001:db8::1"), ("[2001:DB8:0:0::1]", "2001:db8::1")],
)  # fmt: skip
def test_an_allowed_host_may_be_written_in_any_way(given: str, sent: str) -> None:
    assert Settings(auth="off", allowed_hosts=(given,)).accepts_host(sent)


@pytest.mark.parametrize("given", ["books.example:8080", "https://books.example", "books.example/a", "", "."])
def test_an_allowed_host_that_is_none_is_refused_at_start(given: str) -> None:
    with pytest.raises(ValueError, match=r"allowed_hosts\n.*host"):
        Settings(allowed_hosts=(given,))


def test_dns_rebinding_is_refused_on_a_server_without_keys(
    new_server: Callable[..., Server],
) -> None:
    server = new_server(host="0.0.0.0", auth="off", allowed_hosts=["books.example"]).start()
    for name, known in (("books.example", True), (f"server:{server.port}", True), ("evil.example:80", False)):
        answer = server.http.get("/v1/documents", headers={"host": name})
        assert answer.status_code == (200 if known else 403), name
        if not known:
            message = server.error(answer, 403, "host_not_allowed")["message"]
            assert "'evil.example'" in message
            assert "EVERLONG_ALLOWED_HOSTS" in message
    assert server.http.get("/v1/documents").status_code == 200


def command(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`everlong keys …`."""
    program = "import sys; from everlong_server.cli.keys import keys; sys.argv[0] = 'everlong keys'; keys()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], env={"EVERLONG_DATA_DIR": str(data), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.long
def test_a_server_reachable_from_other_machines_needs_a_key_to_start(new_server: Callable[..., Server]) -> None:
    server = new_server(host="0.0.0.0")
    server.launch()
    assert server.process is not None
    assert server.process.wait(START_SECONDS) == 1
    server.process = None
    said = server.log.read_text()
    assert "everlong keys create" in said
    assert "EVERLONG_AUTH=off" in said

    # Its own Redis is not running: the command starts it for a moment.
    made = command(server._link, "create", "--tenant", "dora", "--expires", "30d", "--name", "for tests")
    assert made.returncode == 0, made.stderr
    secret = made.stdout.strip()
    assert '"event": "key.created"' in made.stderr
    assert secret not in made.stderr
    server.start()
    server.error(server.http.get("/v1/sessions"), 401, "missing_api_key")
    assert client(server, secret).get("/v1/sessions").json()["data"] == []

    # And while the server runs.
    listed = command(server._link, "list", "--tenant", "dora")
    key_id = secret.split("_")[1]
    assert key_id in listed.stdout
    assert secret not in listed.stdout + listed.stderr
    ended = command(server._link, "revoke", key_id)
    assert ended.returncode == 0, ended.stderr
    assert '"event": "key.revoked"' in ended.stderr
    server.error(client(server, secret).get("/v1/sessions"), 401, "api_key_revoked")
    assert "no key" in command(server._link, "revoke", "0" * 16).stderr
    assert "--expires" in command(server._link, "create", "--tenant", "dora", "--expires", "soon").stderr


@pytest.mark.parametrize(
    ("url", "words"),
    [
        # Nobody can make a folder there. So it is with a volume that belongs to root.
        ("file:///sys/everlong", ["error: /sys/everlong: ", f"as user {os.geteuid()}", "(EVERLONG_DATA_DIR)"]),
        ("nosuch://user:password@host", ["error: --blob-url (EVERLONG_BLOB_URL)", "'nosuch'", "Protocol not known"]),
    ],
)
def test_a_blob_store_that_cannot_be_opened_is_explained(
    new_server: Callable[..., Server], url: str, words: list[str]
) -> None:
    server = new_server(blob_url=url)
    server.launch()
    assert server.process is not None
    assert server.process.wait(START_SECONDS) == 1
    server.process = None
    said = server.log.read_text()
    for word in words:
        assert word in said
    assert "Traceback" not in said
    assert 'File "' not in said
    assert "user:password" not in said


def test_start_is_refused_without_a_key(locked: Server, new_server: Callable[..., Server]) -> None:
    url = f"unix://{locked._link}/redis/redis.sock"
    new_key(locked, "dora")
    asyncio.run(require_keys(Settings(host="0.0.0.0"), url))
    spare = url + "?db=1"
    with pytest.raises(NoKeys, match="everlong keys create"):
        asyncio.run(require_keys(Settings(host="0.0.0.0"), spare))
    with pytest.raises(NoKeys, match="`EVERLONG_DATA_DIR='/my books' everlong keys create --tenant NAME` creates one"):
        asyncio.run(require_keys(Settings(host="0.0.0.0", data_dir=Path("/my books")), spare))
    asyncio.run(require_keys(Settings(host="0.0.0.0", auth="keys"), spare))
    asyncio.run(require_keys(Settings(host="0.0.0.0", auth="off"), spare))
    asyncio.run(require_keys(Settings(), spare))


@pytest.mark.parametrize(
    ("host", "taken", "status", "says"),
    [
        ("0.0.0.0", False, 1, "there is none"),
        ("127.0.0.1", True, 1, "is in use by"),
        ("127.0.0.1", False, 0, "loading for ever"),
    ],
    ids=["for want of a key", "for want of a port", "told to"],
)
@pytest.mark.long
def test_a_server_exits_cleanly_while_its_model_is_loading(
    host: str, taken: bool, status: int, says: str, tmp_path: Path
) -> None:
    """The loading thread runs PyTorch code, which would abort if Python were torn down."""
    code = """
import sys, torch
from everlong_server.process import loading

def load(settings, progress):
    progress("loading for ever")
    while True:
        torch.randn(300, 300) @ torch.randn(300, 300)

loading.load = load
from everlong_server.cli.serve import serve
serve()
"""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1] if taken else 0
        serve = ["--host", host, "--port", str(port), "--data-dir", str(tmp_path)]
        with subprocess.Popen([sys.executable, "-c", code, *serve], stderr=subprocess.PIPE, text=True) as process:
            if not status:
                wait_for(lambda: psutil.Process(process.pid).net_connections(), START_SECONDS)
                process.terminate()
            said = process.communicate(timeout=START_SECONDS)[1]
    assert (process.returncode, says in said) == (status, True), said
    assert ("loading for ever" in said) == (not taken), "the port is checked first"
