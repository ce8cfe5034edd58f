"""What operators see: ids of requests, logs as JSON, the audit log, traces; and the administrator's first key."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect as open_socket

from everlong_server.observability import tracing
from everlong_server.settings import traces_wanted
from everlong_server.store.redis import connection, keys
from everlong_server.store.tenants.credentials import ApiKeyConflict, Credentials, is_secret, new_secret
from tests.process import START_SECONDS, Server, wait_for

trace_service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="needs everlong[tracing]"
)

MARKER = "xyzzy-plugh"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


class Receiver:
    """An OTLP collector on this machine."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services = set[str]()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                for resource in trace_service.ExportTraceServiceRequest.FromString(body).resource_spans:
                    receiver.services |= {
                        a.value.string_value for a in resource.resource.attributes if a.key == "service.name"
                    }
                    for scope in resource.scope_spans:
                        receiver.spans += scope.spans
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                """Nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def named(self, name: str, **attributes: Any) -> Any:
        """Return the span with that name and these attributes, once it has arrived."""

        def found() -> Any:
            return next(
                (s for s in list(self.spans) if s.name == name and attributes.items() <= facts(s).items()), None
            )

        return wait_for(found, 60, f"for {name} among {[span.name for span in self.spans]}")


def facts(span: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.http.shutdown()


@pytest.fixture(scope="module")
def secret() -> str:
    return new_secret()


@pytest.fixture(scope="module")
def observed(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, receiver: Receiver, secret: str
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("observed")
    (folder / "admin").write_text(f"{secret}\n")
    more = {"auth": "keys", "admin_key_file": folder / "admin", "log_format": "json", "log_level": "debug"}
    with Server(tiny_model, folder / "data", **more) as server:
        server.environment |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.http.server_port}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }
        server.http.headers["Authorization"] = f"Bearer {secret}"
        server.start()
        yield server
        server.check_keys()


def log(server: Server) -> list[dict[str, Any]]:
    """Return the records of the server's log, which must all be JSON."""
    return [json.loads(line) for line in server.log.read_text().splitlines()]


# Ids of requests, and logs


def test_start_and_shutdown_lines_are_json_too(observed: Server, new_server: Callable[..., Server]) -> None:
    said = [entry.get("message", "") for entry in log(observed)]
    assert "starting the embedded Redis" in said
    assert any(message.startswith("everlong serves tiny-rmt with memory rmt, ready after") for message in said)
    assert any(message.startswith("warning: the memory has no trained weights") for message in said)
    wrong = new_server(log_format="json", device="cuda:99")
    wrong.launch()
    assert wrong.process is not None
    assert wrong.process.wait(START_SECONDS) == 1
    wrong.process = None
    last = log(wrong)[-1]
    assert last["level"] == "error"
    assert "cuda" in last["message"]


def test_every_response_has_a_request_id(observed: Server) -> None:
    first, second = (observed.http.get("/v1/sessions").headers["x-request-id"] for _ in range(2))
    assert first != second
    assert first.startswith("req_")
    given = {"x-request-id": "from-the-proxy:1"}
    assert observed.http.get("/v1/sessions", headers=given).headers["x-request-id"] == "from-the-proxy:1"
    refused = httpx.get(f"{observed.url}/v1/sessions", headers=given, timeout=60)  # 401
    assert refused.headers["x-request-id"] == "from-the-proxy:1"
    for bad in ("a" * 65, "a b", 'a"b', ""):
        assert observed.http.get("/livez", headers={"x-request-id": bad}).headers["x-request-id"].startswith("req_")
    session = observed.session()["id"]
    address = f"ws://127.0.0.1:{observed.port}/v1/sessions/{session}/stream"
    headers = {"Authorization": observed.http.headers["authorization"]}
    with open_socket(address, additional_headers=headers) as socket:
        assert socket.response is not None
        assert socket.response.headers["x-request-id"].startswith("req_")


def test_a_log_of_json_names_the_request(observed: Server) -> None:
    document = observed.upload("what is going to be lost")["id"]
    observed.wait_read(document)
    (observed.data / "documents" / document).write_bytes(b"\xff\xff\xff")
    path = f"/v1/documents/{document}/text"
    failed = observed.http.get(path, headers={"x-request-id": "fails"})
    assert (failed.status_code, failed.headers["connection"]) == (500, "close")
    (entry,) = [entry for entry in log(observed) if entry["request_id"] == "fails"]
    assert entry["level"] == "error"
    assert entry["logger"].startswith("everlong_server")
    assert entry["at"] > 1e9
    assert "UnicodeDecodeError" in entry["error"]
    assert "its message is not logged" in entry["error"]


# The audit log


def test_what_administrators_do_is_in_the_audit_log(observed: Server, secret: str) -> None:
    made = observed.http.post("/v1/keys", json={"name": "a name"}, headers={"x-request-id": "makes"}).json()
    observed.http.delete(f"/v1/keys/{made['id']}", headers={"x-request-id": "ends"})
    observed.http.delete(f"/v1/keys/{made['id']}", headers={"x-request-id": "ends-again"})  # it was ended before
    entries = [entry for entry in log(observed) if entry["logger"] == "everlong_server.observability.audit"]
    first, *_ = entries
    own = secret.split("_")[1]
    assert (first["event"], first["by"], first["id"]) == ("key.created", "EVERLONG_ADMIN_KEY_FILE", own)
    mine = [entry for entry in entries if entry["id"] == made["id"]]
    assert [(entry["event"], entry["by"], entry["request_id"]) for entry in mine] == [
        ("key.created", f"key {own}", "makes"),
        ("key.revoked", f"key {own}", "ends"),
    ]
    assert all(entry["at"] > 1e9 for entry in mine)
    for word in (secret, made["key"], secret.split("_", 2)[2]):
        assert word not in observed.log.read_text()


def test_commands_are_in_the_audit_log(observed: Server) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "everlong_client", "keys", "create", "--tenant", "bob"],
        env=observed.environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (line,) = [line for line in done.stderr.splitlines() if "everlong_server.observability.audit" in line]
    entry = json.loads(line[line.index("{") :])
    assert (entry["event"], entry["tenant"]) == ("key.created", "bob")
    assert entry["by"].startswith("command line, user ")
    assert done.stdout.strip() not in done.stderr


# The administrator's key


def test_the_administrators_key_is_made_once_and_stored_as_a_digest(observed: Server, secret: str) -> None:
    stored = observed.redis.hgetall(keys.api_key(secret.split("_")[1]))
    assert secret.encode() not in b"".join(stored.values())
    assert stored[b"scopes"] == b"read write admin"
    listed = observed.http.get("/v1/keys").json()["data"]
    assert [key["name"] for key in listed].count("EVERLONG_ADMIN_KEY_FILE") == 1


async def test_a_key_of_a_file_stays_revoked_and_another_secret_is_refused(redis_url: str, secret: str) -> None:
    redis = connection.connect(redis_url)
    await redis.flushdb()
    credentials = Credentials(redis)
    key = await credentials.ensure(secret, by="a file")
    assert (await credentials.authenticate(secret)).scopes == {"read", "write", "admin"}
    await credentials.revoke(key.id)
    assert (await credentials.ensure(secret, by="a file")).revoked_at is not None
    assert len(await credentials.all()) == 1
    with pytest.raises(ApiKeyConflict):
        await credentials.ensure(f"evl_{key.id}_{new_secret().split('_', 2)[2]}", by="a file")
    await redis.aclose()


@pytest.mark.parametrize("content", ["", "hunter2", "evl_1234_abcd", None])
def test_a_file_without_a_key_in_it_is_an_error_at_the_start(
    tiny_model: Path, tmp_path: Path, content: str | None
) -> None:
    from everlong_server.services import NoKeys, read_api_key

    file = tmp_path / "admin"
    if content is not None:
        file.write_text(content)
    with pytest.raises(NoKeys, match="EVERLONG_ADMIN_KEY_FILE") as caught:
        read_api_key(file)
    assert not content or content not in str(caught.value).replace(str(file), "")


def test_keys_secret_prints_one_that_is_stored_nowhere() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "everlong_client", "keys", "secret"], capture_output=True, text=True, check=True
    )
    assert is_secret(done.stdout.strip())


# Traces


def test_a_documents_reading_is_a_part_of_its_uploads_trace(observed: Server, receiver: Receiver) -> None:
    answer = observed.http.post(
        "/v1/documents", content=f"The {MARKER} is a magic word. " * 30, params={"filename": f"{MARKER}.txt"},
        headers={"content-type": "text/plain", "traceparent": PARENT, "x-request-id": "traced"},
    )  # fmt: skip
    document = observed.wait_read(answer.json()["id"])
    upload = receiver.named("POST /v1/documents", **{"everlong.request_id": "traced"})
    assert upload.trace_id.hex() == TRACE
    assert upload.parent_span_id.hex() == PARENT.split("-")[2]
    assert facts(upload)["http.response.status_code"] == 202
    read = receiver.named("read", **{"everlong.document": document["id"]})
    assert read.trace_id == upload.trace_id
    assert read.parent_span_id == upload.span_id
    assert facts(read)["everlong.tokens.read"] == document["tokens"]
    assert receiver.services == {"everlong"}


def test_an_answer_is_a_part_of_its_requests_trace(observed: Server, receiver: Receiver) -> None:
    session = observed.session(observed.read(f"The {MARKER} is a magic word.")["id"])["id"]
    asked = {"content": f"What is {MARKER}?", "max_tokens": 3, "ignore_eos": True}
    path, traced = f"/v1/sessions/{session}/messages", {"traceparent": PARENT}
    usage = observed.http.post(path, json=asked, headers=traced | {"x-request-id": "whole"}).json()["usage"]
    request = receiver.named("POST /v1/sessions/{session_id}/messages", **{"everlong.request_id": "whole"})
    answer = receiver.named("answer", **{"gen_ai.request.model": "tiny-rmt"})
    assert answer.parent_span_id == request.span_id
    assert facts(answer)["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 3
    assert facts(answer)["everlong.finish_reason"] == "length"
    streamed = observed.http.post(path, json=asked | {"stream": True}, headers=traced | {"x-request-id": "streamed"})
    assert "response.completed" in streamed.text
    request = receiver.named("POST /v1/sessions/{session_id}/messages", **{"everlong.request_id": "streamed"})
    (answer,) = wait_for(lambda: [s for s in list(receiver.spans) if s.parent_span_id == request.span_id])
    assert answer.end_time_unix_nano <= request.end_time_unix_nano, "the request ended before what it streamed"


def test_a_background_response_is_a_part_of_its_requests_trace(observed: Server, receiver: Receiver) -> None:
    body = {"model": "tiny-rmt", "input": MARKER, "max_output_tokens": 16, "background": True}
    made = observed.http.post("/v1/responses", json=body, headers={"traceparent": PARENT, "x-request-id": "later"})
    request = receiver.named("POST /v1/responses", **{"everlong.request_id": "later"})
    respond = receiver.named("respond", **{"everlong.response": made.json()["id"]})
    assert (respond.trace_id, respond.parent_span_id) == (request.trace_id, request.span_id)
    wait_for(lambda: [s for s in list(receiver.spans) if s.name == "answer" and s.parent_span_id == respond.span_id])


def test_traces_hold_error_codes_and_no_users_words(observed: Server, receiver: Receiver) -> None:
    missing = {"x-request-id": "missing"}
    assert (
        observed.http.post(f"/v1/sessions/{MARKER}/messages", json={"content": MARKER}, headers=missing).status_code
        == 404
    )
    request = receiver.named("POST /v1/sessions/{session_id}/messages", **{"everlong.request_id": "missing"})
    assert request.trace_id.hex() != TRACE  # a trace of its own
    assert facts(request)["http.response.status_code"] == 404
    document = observed.upload("word " * 200_000)["id"]
    unread = observed.session(document)["id"]
    answer = observed.http.post(
        f"/v1/sessions/{unread}/messages", json={"content": "Hi", "recall": False}, headers={"x-request-id": "early"}
    )
    observed.error(answer, 409, "document_not_ready")
    observed.http.delete(f"/v1/documents/{document}")
    request = receiver.named("POST /v1/sessions/{session_id}/messages", **{"everlong.request_id": "early"})
    (span,) = wait_for(lambda: [s for s in list(receiver.spans) if s.parent_span_id == request.span_id])
    assert span.status.message == "document_not_ready"
    observed.http.get(f"/{MARKER}", headers={"x-request-id": "nowhere"})
    receiver.named("GET", **{"everlong.request_id": "nowhere"})
    assert MARKER not in str(receiver.spans)
    assert MARKER not in observed.log.read_text()


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_traces_are_made_if_the_standard_variables_ask_for_them(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], wanted: bool
) -> None:
    for name in ("ENDPOINT", "TRACES_ENDPOINT"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert traces_wanted() is wanted


def test_traces_without_their_package_are_an_error_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(tracing.TracingError, match=r"everlong\[tracing\]"):
        tracing.start_tracing(True)
    with tracing.start_tracing(False).span("nothing") as span:
        span.set(a=1)
        assert span.traceparent == ""


@pytest.mark.long
def test_a_server_that_cannot_trace_says_so_in_a_line(tiny_model: Path, tmp_path: Path) -> None:
    with Server(tiny_model, tmp_path / "data") as server:
        missing = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
        (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules[{missing!r}] = None")
        server.environment["OTEL_TRACES_EXPORTER"] = "otlp"
        server.environment["PYTHONPATH"] = f"{tmp_path}:{server.environment.get('PYTHONPATH', '')}"
        server.launch(imports=True)
        assert server.process is not None
        assert server.process.wait(START_SECONDS) == 1
        server.process = None
        assert "everlong[tracing]" in server.log.read_text()
        assert "Traceback" not in server.log.read_text()
