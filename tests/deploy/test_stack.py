"""The stack without an engine: nginx's and Redis' real configuration in front of and behind three real servers."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from websockets.sync.client import connect

from everlong_lab.harness.ports import free_port
from tests.deploy.files import ROOT, program, run
from tests.deploy.stack import COMPOSE, SERVERS, Redis, Stack
from tests.process import wait_for

pytestmark = pytest.mark.long

ELSEWHERE = "127.0.0.5"
LONG = {"max_tokens": 100_000, "ignore_eos": True, "stream": True}
"""An answer that does not end by itself while a test runs."""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    program("nginx")  # or skip
    with tempfile.TemporaryDirectory(prefix="everlong-stack") as folder:
        stack = Stack(Path(folder))
        try:
            stack.start()
            yield stack
        finally:
            stack.stop()


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])


def test_redis_has_a_password_and_keeps_it(tmp_path: Path) -> None:
    first = Redis(tmp_path)
    url = first.url
    redis.Redis.from_url(url).set("kept", "1")
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(port=first.port).ping()
    first.stop()
    again = Redis(tmp_path)
    assert again.url.split("@")[0] == url.split("@")[0]
    assert redis.Redis.from_url(again.url).get("kept") == b"1"
    again.stop()
    chosen = Redis(tmp_path, REDIS_PASSWORD="of-our-own")
    assert redis.Redis(port=chosen.port, password="of-our-own").get("kept") == b"1"
    chosen.stop()
    refused = Redis(tmp_path, REDIS_PASSWORD="not@a:url's")
    assert "REDIS_PASSWORD may have" in "".join(refused.said)
    assert refused.process.wait(10) == 1


def test_servers_need_no_more_than_a_read_only_root(stack: Stack) -> None:
    """All tests of this file run on such servers; that they are such is seen from outside."""
    if not stack.fleet.read_only:
        pytest.skip("needs root and the right to mount")
    for pid in stack.fleet.pids:
        mounts = [line.split() for line in Path(f"/proc/{pid}/mounts").read_text().splitlines()]
        options = {place: options.split(",") for _, place, _, options, *_ in mounts}
        assert "ro" in options["/"]
        assert "rw" in options[str(stack.data)]
    assert COMPOSE["services"]["server"]["read_only"] is True


def test_every_server_gets_requests(stack: Stack) -> None:
    def served() -> bool:
        assert stack.http.get("/v1/models").status_code == 200
        return all(
            'route="/v1/models"' in httpx.get(f"{stack.at(server)}/metrics", timeout=60).text for server in SERVERS
        )

    wait_for(served)


def test_a_session_is_visible_on_every_server(stack: Stack) -> None:
    session = stack.session()
    for server in SERVERS:
        assert httpx.get(f"{stack.at(server)}/v1/sessions/{session}", timeout=60).json()["id"] == session


def test_events_arrive_before_the_rest_is_made(stack: Stack) -> None:
    """Each server generates one answer at a time, so a second one waits after its first event."""
    url = f"/v1/sessions/{stack.session()}/messages"
    sessions = [stack.session() for _ in SERVERS]
    clients = [httpx.Client(base_url=stack.at(server), timeout=60) for server in SERVERS]
    held = []
    for client, session in zip(clients, sessions, strict=True):
        request = client.build_request("POST", f"/v1/sessions/{session}/messages", json={"content": "Go on.", **LONG})
        held.append(events(client.send(request, stream=True)))
        assert any(event["type"] == "response.output_text.delta" for event in held[-1])
    short = {"content": "Hello.", "max_tokens": 4, "ignore_eos": True, "stream": True}
    with stack.http.stream("POST", url, json=short) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        arriving = events(response)
        assert next(arriving)["type"] == "response.created"
        for client, answer in zip(clients, held, strict=True):  # now it may go on
            assert next(answer)["type"] == "response.output_text.delta"
            client.close()
        *_, last = arriving
    assert last["type"] == "response.completed"
    assert last["message"]["usage"]["completion_tokens"] == 4


def test_a_disconnected_caller_is_noticed(stack: Stack) -> None:
    def answering() -> float:
        pages = [httpx.get(f"{stack.at(server)}/metrics", timeout=60).text for server in SERVERS]
        return sum(float(re.findall(r"^everlong_answering (\S+)", page, re.MULTILINE)[0]) for page in pages)

    wait_for(lambda: answering() == 0)  # those of the test before have been left
    message = {"content": "Go on.", **LONG}
    with stack.http.stream("POST", f"/v1/sessions/{stack.session()}/messages", json=message) as response:
        arriving = events(response)
        assert any(event["type"] == "response.output_text.delta" for event in arriving)
        assert answering() == 1
        assert next(arriving)["type"] == "response.output_text.delta"
    wait_for(lambda: answering() == 0)


def test_a_websocket(stack: Stack) -> None:
    url = stack.url.replace("http", "ws")
    with connect(f"{url}/v1/sessions/{stack.session()}/stream") as socket:
        for _ in range(2):
            socket.send(json.dumps({"type": "message.create", "content": "Hello.", "max_tokens": 4}))
            kinds = [json.loads(socket.recv(60))["type"]]
            while kinds[-1] not in ("response.completed", "error"):
                kinds.append(json.loads(socket.recv(60))["type"])
            assert kinds[-1] == "response.completed"


@pytest.mark.parametrize("mib", [32, pytest.param(1024, marks=pytest.mark.slow)])
def test_an_upload_goes_through_as_it_comes(stack: Stack, mib: int) -> None:
    """The second half is sent only when the first has arrived in the server's spool, and nginx keeps none of it."""
    piece = ("The dust of the road lay on everything that evening. " * 20_000).encode()[: 1 << 20]
    spooled: list[Path] = []

    def arrived() -> bool:
        return any(path.stat().st_size >= (mib // 2 - 1) << 20 for path in (stack.data / "documents").glob(".*.part"))

    def body() -> Iterator[bytes]:
        for n in range(mib):
            if n == mib // 2:
                wait_for(arrived, 60, "for half of the upload to reach the server")
                spooled.extend(stack.spooled())
            yield piece

    answer = stack.http.post("/v1/documents", content=body(), headers={"content-type": "text/plain"})
    assert answer.status_code == 202, answer.text
    assert answer.json()["bytes"] == mib << 20
    assert spooled == []
    assert stack.http.delete(f"/v1/documents/{answer.json()['id']}").status_code < 300


class _Echo(BaseHTTPRequestHandler):
    """Says what it was sent; `/slow`: in two parts, of which the second comes when `seen` is set."""

    seen = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/slow":  # of unknown length and unchunked, which nginx collects unless it is told not to
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"data: first\n\n")
            if self.seen.wait(60):
                self.wfile.write(b"data: second\n\n")
            return
        body = json.dumps({name.lower(): value for name, value in self.headers.items()}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def resolving(stack: Stack) -> Iterator[Callable[..., None]]:
    """Change the addresses of the proxy's upstream name for the test."""

    def means(*addresses: str) -> None:
        stack.names.addresses = list(addresses)

    yield means
    stack.names.addresses = SERVERS
    wait_for(lambda: stack.http.get("/v1/models").status_code == 200)


@pytest.fixture
def echo(stack: Stack, resolving: Callable[..., None]) -> Iterator[None]:
    """A server that was just started, and is the only one."""
    with ThreadingHTTPServer((ELSEWHERE, stack.server_port), _Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            resolving(ELSEWHERE)
            wait_for(lambda: "x-forwarded-for" in stack.http.get("/echo").text)
            yield
        finally:
            _Echo.seen.set()
            server.shutdown()
            thread.join()


def test_what_a_server_sends_is_passed_on_at_once(stack: Stack, echo: None) -> None:
    """Whatever it says about buffering, and however it frames it; the real server's is seen above."""
    with stack.http.stream("GET", "/slow", timeout=20) as response:
        parts = response.iter_bytes()
        assert next(parts) == b"data: first\n\n"
        _Echo.seen.set()
        assert b"".join(parts) == b"data: second\n\n"


def test_headers_reach_the_server(stack: Stack, echo: None) -> None:
    sent = {"Authorization": "Bearer evl_key", "Idempotency-Key": "7", "X-Forwarded-For": "6.6.6.6"}
    got = stack.http.get("/echo", headers=sent).json()
    assert (got["authorization"], got["idempotency-key"]) == ("Bearer evl_key", "7")
    assert got["host"] == f"127.0.0.1:{stack.port}"
    assert got["x-forwarded-for"] == "127.0.0.1"  # what callers say of themselves is not believed
    assert "connection" not in got
    assert "upgrade" not in got


def test_without_servers_the_proxy_says_so_as_they_would(stack: Stack, resolving: Callable[..., None]) -> None:
    for addresses in ([ELSEWHERE], []):
        resolving(*addresses)
        answer = wait_for(lambda: (got := stack.http.get("/v1/models")).status_code != 200 and got)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["error"].keys() == {"message", "type", "param", "code"}


def test_tls(stack: Stack) -> None:
    trusted = ssl.create_default_context(cafile=str(stack.certificate))
    with httpx.Client(base_url=f"https://127.0.0.1:{stack.tls_port}", verify=trusted, timeout=60) as client:
        answer = client.get("/v1/models")
        assert (answer.status_code, answer.headers["strict-transport-security"]) == (200, "max-age=31536000")
    url = f"wss://127.0.0.1:{stack.tls_port}/v1/sessions/{stack.session()}/stream"
    with connect(url, ssl=trusted) as socket:
        socket.send(json.dumps({"type": "message.create", "content": "Hello.", "max_tokens": 1}))
        assert json.loads(socket.recv(60))["type"] == "response.created"


def test_metrics_are_not_for_callers(stack: Stack) -> None:
    answer = stack.http.get("/metrics")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "path_not_found")


def test_prometheus_knows_every_series_of_the_dashboard(stack: Stack, tmp_path: Path) -> None:
    """Its real program scrapes the real servers; every query of the dashboard finds something there."""
    config = (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text()
    found = "dns_sd_configs:"  # it asks the system's DNS, which is not ours to change
    assert config.count(found) == 1
    targets = [f"{server}:{stack.server_port}" for server in SERVERS]
    config = config[: config.index(found)] + f"static_configs: [{{targets: {json.dumps(targets)}}}]\n"
    (tmp_path / "prometheus.yml").write_text(config.replace("_interval: 15s", "_interval: 1s"))
    shutil.copy(ROOT / "deploy" / "prometheus" / "alerts.yml", tmp_path)
    port = free_port()
    command = [program("prometheus"), f"--config.file={tmp_path / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}"]

    document = stack.http.post("/v1/documents", content="A cat sat. " * 400, headers={"content-type": "text/plain"})
    read = f"/v1/documents/{document.json()['id']}"
    wait_for(lambda: stack.http.get(read).json()["status"] == "ready")
    session = stack.http.post("/v1/sessions", json={"documents": [document.json()["id"]]}).json()["id"]
    for _ in range(2):
        said = stack.http.post(f"/v1/sessions/{session}/messages", json={"content": "Hi.", "max_tokens": 4})
        assert said.status_code == 200
    assert stack.http.get("/v1/sessions/ses_none").status_code == 404

    with subprocess.Popen(command, stderr=(tmp_path / "log").open("wb")) as process:
        try:
            prometheus = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=30)

            def ask(query: str) -> list[Any]:
                try:
                    answer = prometheus.post("/query", data={"query": query})
                except httpx.TransportError:
                    return []  # it is starting
                if answer.status_code == 503:
                    return []
                assert answer.json()["status"] == "success", (query, answer.text)
                return answer.json()["data"]["result"]

            wait_for(lambda: ask('min(sum_over_time(up{job="everlong"}[1m])) >= 2 and count(up == 1) == 3'))
            for title, query in dashboard_queries():
                result = ask(query)
                assert result or title in {"Errors, by route", "Alerts that are pending or fire"}, (title, query)
            groups = prometheus.get("/rules").json()["data"]["groups"]
            assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
        finally:
            process.terminate()


def dashboard_queries() -> list[tuple[str, str]]:
    """Title and PromQL of each, with Grafana's variables filled in."""
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / "everlong.json").read_text())
    variables = {"$instance": ".*", "$__rate_interval": "1m", "$__range": "1h"}
    assert {f"${variable['name']}" for variable in dashboard["templating"]["list"]} <= variables.keys()
    queries = [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) > 20
    return [(title, re.sub(r"\$\w+", lambda match: variables[match[0]], query)) for title, query in queries]


def test_the_proxy_skips_a_killed_server(stack: Stack) -> None:
    """Runs last: one of three servers is killed while its address is still known."""
    stack.fleet.kill9(0)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{stack.at(SERVERS[0])}/livez")
    for _ in range(12):
        assert stack.http.get("/v1/models").status_code == 200
        stack.session()  # a POST, which is not sent twice: nobody had taken it


def test_nginx_finds_no_fault(tmp_path: Path) -> None:
    """As it stands, with only what this machine may not have replaced."""
    text = (ROOT / "deploy" / "nginx" / "nginx.conf").read_text().replace("/tmp/", f"{tmp_path}/")
    (tmp_path / "nginx.conf").write_text(text)
    # Under the limit of files that Docker gives a container on hosts with a recent systemd.
    check = 'ulimit -Sn 1024 && exec "$0" -t -c "$1"'
    result = run("sh", "-c", check, program("nginx"), str(tmp_path / "nginx.conf"))
    assert result.returncode == 0, result.stderr
    assert "warn" not in result.stderr
