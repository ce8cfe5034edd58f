"""`/v1/batches` through OpenAI's SDK."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types import Batch

from everlong_server.store.redis import keys
from tests.pages import run_by
from tests.process import Server, wait_for
from tests.server.api.openai.talk import of, sdk

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
ENDED = ("completed", "failed", "expired", "cancelled")


def body_of(client: OpenAI, endpoint: str, n: int = 0, **fields: Any) -> dict[str, Any]:
    """Return the body of a request with a short answer."""
    model = client.models.list().data[0].id
    if endpoint == CHAT:
        return {
            "model": model,
            "messages": [{"role": "user", "content": f"Tell {n}"}],
            "max_tokens": 3,
            "seed": n,
        } | fields
    if endpoint == RESPONSES:
        return {"model": model, "input": f"Tell {n}", "max_output_tokens": 16} | fields
    return {"model": model, "prompt": f"Tell {n}", "max_tokens": 3, "seed": n} | fields


def line(custom_id: str, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": body}


def send(client: OpenAI, endpoint: str, *lines: dict[str, Any] | bytes, **fields: Any) -> Batch:
    """Upload lines as a file and create a batch of it."""
    content = b"".join(each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in lines)
    file = client.files.create(file=("requests.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=file.id,
        endpoint=endpoint,
        completion_window="24h",
        **fields,  # type: ignore[arg-type]
    )


def over(client: OpenAI, batch: Batch, seconds: float = 120) -> Batch:
    """Wait until the batch has ended."""

    def ended() -> Batch | None:
        found = client.batches.retrieve(batch.id)
        return found if found.status in ENDED else None

    return wait_for(ended, seconds, f"for batch {batch.id}: {client.batches.retrieve(batch.id)}")  # type: ignore[no-any-return]


def results(client: OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """Return the lines of an output file."""
    assert file_id is not None
    return [json.loads(each) for each in client.files.content(file_id).text.splitlines()]


@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES, "/v1/completions"])
def test_each_request_has_one_result_in_the_order_of_the_input(client: OpenAI, server: Server, endpoint: str) -> None:
    lines = [line(f"r{n}", endpoint, body_of(client, endpoint, n)) for n in range(5)]
    wrong = line("wrong", endpoint, body_of(client, endpoint, temperature=9))
    batch = send(client, endpoint, *lines[:3], wrong, *lines[3:], metadata={"of": "tests"})
    assert (batch.object, batch.endpoint, batch.completion_window) == ("batch", endpoint, "24h")
    assert batch.status in ("validating", "in_progress")
    done = over(client, batch)
    assert (done.status, done.errors, done.metadata) == ("completed", None, {"of": "tests"})
    assert done.request_counts is not None
    counts = done.request_counts
    assert (counts.total, counts.completed, counts.failed) == (6, 5, 1)
    assert done.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at  # type: ignore[operator]
    assert done.expires_at == done.created_at + 24 * 3600
    answered = results(client, done.output_file_id)
    assert [each["custom_id"] for each in answered] == [f"r{n}" for n in range(5)]
    for sent, each in zip(lines, answered, strict=True):
        assert each.keys() == {"id", "custom_id", "response", "error"}
        assert (each["error"], each["response"]["status_code"]) == (None, 200)
        assert each["response"]["request_id"].startswith("req_")
        if endpoint != RESPONSES:  # whose ids differ
            alone = client.post(endpoint.removeprefix("/v1"), body=sent["body"], cast_to=object)
            assert each["response"]["body"]["choices"] == alone["choices"]  # type: ignore[index]
    (failed,) = results(client, done.error_file_id)
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("wrong", 422)
    assert failed["response"]["body"]["error"]["param"] == "temperature"
    assert len({each["id"] for each in [*answered, failed]}) == 6
    assert not [name for name in server.stored() if name.startswith("batch_")], "the parts are deleted"


def test_a_batch_file_is_no_document(client: OpenAI, server: Server) -> None:
    documents = server.http.get("/v1/documents").json()
    content = json.dumps(line("a", CHAT, body_of(client, CHAT))).encode()
    file = client.files.create(file=("r.jsonl", content), purpose="batch")
    assert (file.purpose, file.filename, file.bytes, file.status) == ("batch", "r.jsonl", len(content), "processed")
    assert file.expires_at == file.created_at + 30 * 86400
    assert server.http.get("/v1/documents").json() == documents
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).content == content
    for refused in (
        {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": file.id}}]}]},
        {"messages": [{"role": "user", "content": "Hi"}], "documents": [file.id]},
    ):
        answer = server.http.post(CHAT, json=body_of(client, CHAT) | refused)
        assert answer.status_code in (404, 422), answer.text
    assert file.id in server.stored()
    assert client.files.delete(file.id).deleted
    assert file.id not in server.stored()
    for ask in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError) as error:
            ask(file.id)
        assert of(error) == ("file_not_found", "file_id")


@pytest.mark.parametrize("purpose", ["batch", "user_data"])
def test_the_purpose_may_come_after_the_file(server: Server, purpose: str) -> None:
    """As the SDK for Node sends it."""
    content = b"So it goes.\n" * 200_000
    body = (
        b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.txt"\r\n\r\n' + content
        + b'\r\n--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\n' + purpose.encode() + b"\r\n--x--\r\n"
    )  # fmt: skip
    headers = {"content-type": "multipart/form-data; boundary=x"}
    made = server.http.post("/v1/files", content=body, headers=headers)
    assert made.status_code == 200, made.text
    file = made.json()
    assert (file["purpose"], file["filename"], file["bytes"]) == (purpose, "a.txt", len(content))
    assert server.http.get(f"/v1/files/{file['id']}/content").content == content
    assert not [path for path in (server.data / "documents").iterdir() if path.name.endswith(".upload")]
    assert server.http.delete(f"/v1/files/{file['id']}").status_code == 200


def test_files_of_all_purposes_are_listed_together(client: OpenAI) -> None:
    ids = [client.files.create(file=(f"{n}.txt", b"Once."), purpose=["batch", "user_data"][n % 2]).id for n in range(4)]  # type: ignore[arg-type]
    newest = [file.id for file in client.files.list(limit=1)]
    assert newest[:4] == ids[::-1]
    assert len(newest) == len(set(newest))
    assert [file.id for file in client.files.list(limit=3, purpose="batch")][:2] == [ids[2], ids[0]]
    assert ids[0] not in [file.id for file in client.files.list(purpose="user_data")]
    assert ids[0] not in [file.id for file in client.files.list(purpose="batch_output")]
    client.files.delete(ids[2])
    assert client.files.list(limit=1, after=ids[2]).data[0].id == ids[1]
    with pytest.raises(openai.NotFoundError):
        client.files.list(after="file_none")
    for id in (ids[0], ids[1], ids[3]):
        client.files.delete(id)


def test_what_is_wrong_with_a_file_is_said_line_by_line(client: OpenAI) -> None:
    good = line("a", CHAT, body_of(client, CHAT))
    lines: list[tuple[Any, str, str | None]] = [
        (good, "", None),
        (b"{\n", "invalid_json_line", None),
        (b"\xff\n", "invalid_json_line", None),
        (b"[]\n", "invalid_request", None),
        (b" \r\n", "invalid_json_line", None),
        (b"\xef\xbb\xbf\n", "invalid_json_line", None),
        ({name: good[name] for name in ("custom_id", "method", "url")}, "missing_required_parameter", "body"),
        (good | {"priority": 1}, "unknown_parameter", "priority"),
        (good, "duplicate_custom_id", "custom_id"),
        (good | {"custom_id": 7}, "invalid_custom_id", "custom_id"),
        (good | {"custom_id": "b", "method": "GET"}, "invalid_method", "method"),
        (good | {"custom_id": "c", "url": "/v1/embeddings"}, "invalid_url", "url"),
        (good | {"custom_id": "d", "body": []}, "invalid_body", "body"),
        (good | {"custom_id": "e", "body": {}}, "invalid_model", "body.model"),
        (line("f", CHAT, body_of(client, CHAT, model="gpt-4o")), "mismatched_model", "body.model"),
        (line("g", CHAT, body_of(client, CHAT, stream=True)), "stream_not_supported", "body.stream"),
    ]
    failed = over(client, send(client, CHAT, *(each for each, _, _ in lines)))
    assert (failed.status, failed.output_file_id, failed.error_file_id) == ("failed", None, None)
    assert failed.failed_at is not None
    assert failed.errors is not None
    found = [(each.line, each.code, each.param) for each in failed.errors.data or []]
    assert found == [(n, code, param) for n, (_, code, param) in enumerate(lines, 1) if code]
    messages = {each.line: each.message for each in failed.errors.data or []}
    assert messages[2] == "the line is not valid JSON in UTF-8: EOF while parsing an object at column 1"
    assert messages[5] == messages[6] == "the line is empty: remove it"
    assert "got 'gpt-4o'" not in str(failed.errors)
    assert "'gpt-4o'" in str(failed.errors), "the error shows the value"


def test_too_many_errors_end_the_check(client: OpenAI) -> None:
    failed = over(client, send(client, CHAT, *[b"?\n"] * 150))
    assert failed.errors is not None
    assert len(failed.errors.data or []) == 100


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"endpoint": "/v1/moderations"}, 422, "invalid_value", "endpoint"),
        ({"completion_window": "1h"}, 422, "invalid_value", "completion_window"),
        ({"input_file_id": "file_0"}, 404, "file_not_found", "input_file_id"),
        ({"input_file_id": "doc_" + "0" * 32}, 422, "invalid_purpose", "input_file_id"),
        ({"metadata": {"a": 1}}, 422, "invalid_value", "metadata.a"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, 422, "invalid_value", "output_expires_after.seconds"),
        ({"priority": "high"}, 422, "unknown_parameter", "priority"),
    ],
)  # fmt: skip
def test_bad_requests(client: OpenAI, server: Server, fields: Any, status: int, code: str, param: str) -> None:
    file = client.files.create(file=("r.jsonl", b"{}"), purpose="batch")
    asked = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
    server.error(server.http.post("/v1/batches", json=asked | fields), status, code, param)


def test_the_list_is_paged_newest_first(client: OpenAI) -> None:
    batches = [send(client, CHAT, b"?\n") for _ in range(3)]
    found = [batch.id for batch in client.batches.list(limit=2)]
    assert found[:3] == [batch.id for batch in reversed(batches)]
    assert len(found) == len(set(found))
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("batch_none")
    for batch in batches:
        over(client, batch)


def test_a_cancelled_batch_keeps_its_results(client: OpenAI) -> None:
    long = {"max_tokens": 400, "ignore_eos": True}
    lines = [line(f"r{n}", CHAT, body_of(client, CHAT, n, **(long if n else {}))) for n in range(200)]
    batch = send(client, CHAT, *lines)
    wait_for(lambda: client.batches.retrieve(batch.id).request_counts.completed, 60, "for a result")  # type: ignore[union-attr]
    assert client.batches.cancel(batch.id).status == "cancelling"
    done = over(client, batch)
    assert done.status == "cancelled"
    assert done.request_counts is not None
    answered, failed = results(client, done.output_file_id), results(client, done.error_file_id)
    assert (len(answered), len(failed)) == (done.request_counts.completed, done.request_counts.failed)
    assert sorted(each["custom_id"] for each in answered + failed) == sorted(each["custom_id"] for each in lines)
    assert {each["error"]["code"] for each in failed} == {"batch_cancelled"}
    assert client.batches.cancel(batch.id).status == "cancelled"


def test_a_completed_batch_cannot_be_cancelled(client: OpenAI) -> None:
    done = over(client, send(client, CHAT, line("a", CHAT, body_of(client, CHAT))))
    with pytest.raises(openai.ConflictError) as error:
        client.batches.cancel(done.id)
    assert of(error) == ("batch_completed", "batch_id")
    file = client.files.retrieve(done.output_file_id or "")
    assert (file.purpose, file.filename) == ("batch_output", f"{done.id}_output.jsonl")
    assert file.id in [each.id for each in client.files.list(purpose="batch_output")]
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    assert of(refused) == ("invalid_purpose", "input_file_id")


def test_an_expired_batch_keeps_its_results(client: OpenAI, server: Server) -> None:
    """Its window of 24 hours is moved to the past while it runs."""
    long = {"max_tokens": 400, "ignore_eos": True}
    lines = [line(f"r{n}", CHAT, body_of(client, CHAT, n, **(long if n else {}))) for n in range(200)]
    batch = send(client, CHAT, *lines, output_expires_after={"anchor": "created_at", "seconds": 3600})
    wait_for(lambda: client.batches.retrieve(batch.id).request_counts.completed, 60, "for a result")  # type: ignore[union-attr]
    key = keys.batch(batch.id)
    facts = json.loads(server.redis.hget(key, "batch") or "")  # type: ignore[arg-type]
    server.redis.hset(key, "batch", json.dumps(facts | {"expires_at": facts["created_at"]}))
    server.redis.hset(key, "fence", 0)  # its worker finds that another has claimed it, and claims it again
    done = over(client, batch)
    assert done.status == "expired"
    answered, failed = results(client, done.output_file_id), results(client, done.error_file_id)
    assert sorted(each["custom_id"] for each in answered + failed) == sorted(each["custom_id"] for each in lines)
    assert {each["error"]["code"] for each in failed} == {"batch_expired"}
    output = client.files.retrieve(done.output_file_id or "")
    assert output.expires_at == output.created_at + 3600


def test_a_batch_whose_input_is_deleted_fails_and_keeps_its_results(client: OpenAI, server: Server) -> None:
    """A worker that has opened the file goes on with it, so the batch is claimed again after the file was deleted."""
    long = {"max_tokens": 400, "ignore_eos": True}
    lines = [line(f"r{n}", CHAT, body_of(client, CHAT, n, **(long if n else {}))) for n in range(200)]
    batch = send(client, CHAT, *lines)
    wait_for(lambda: client.batches.retrieve(batch.id).request_counts.completed, 60, "for a result")  # type: ignore[union-attr]
    client.files.delete(batch.input_file_id)
    server.redis.hset(keys.batch(batch.id), "fence", 0)
    done = over(client, batch)
    assert done.status == "failed"
    assert done.errors is not None
    assert [error.code for error in done.errors.data or []] == ["file_not_found"]
    assert done.request_counts is not None
    answered = results(client, done.output_file_id)
    assert 0 < len(answered) == done.request_counts.completed < 200
    assert done.error_file_id is None


def test_a_batch_whose_input_is_deleted_before_it_is_checked_fails(client: OpenAI) -> None:
    """Four batches, which are all that a server works on at once, hold it up."""
    endless = line("r", CHAT, body_of(client, CHAT, max_tokens=1_000_000, ignore_eos=True, temperature=2))
    others = [send(client, CHAT, endless) for _ in range(4)]
    for other in others:
        wait_for(lambda id=other.id: client.batches.retrieve(id).status == "in_progress", 60, "for the others")
    batch = send(client, CHAT, line("r", CHAT, body_of(client, CHAT)))
    client.files.delete(batch.input_file_id)
    for other in others:
        client.batches.cancel(other.id)
    done = over(client, batch)
    assert done.status == "failed"
    assert done.errors is not None
    assert [error.code for error in done.errors.data or []] == ["file_not_found"]
    assert (done.output_file_id, done.error_file_id) == (None, None)
    for other in others:
        assert over(client, other).status == "cancelled"


@pytest.mark.long
def test_the_example_of_the_page(server: Server) -> None:
    (block,) = run_by("tests/server/api/openai/test_batches.py")
    code = block.code.replace("http://127.0.0.1:8080", server.url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if line.startswith("question-")] == [
        "question-0",
        "question-1",
    ]


@pytest.mark.long
def test_killed_at_any_moment_each_line_is_answered_once(new_server: Any) -> None:
    server = new_server(recall_passages=0, max_streams=4, lease_seconds=2).start()
    with sdk(server) as client:
        batches = []
        for endpoint in (CHAT, RESPONSES):
            fields = {"max_tokens" if endpoint == CHAT else "max_output_tokens": 40, "ignore_eos": True}
            lines = [line(f"r{n}", endpoint, body_of(client, endpoint, n, **fields)) for n in range(30)]
            batches.append(send(client, endpoint, *lines))

        def answered() -> int:
            return sum(client.batches.retrieve(batch.id).request_counts.completed for batch in batches)  # type: ignore[union-attr]

        for _ in range(3):
            before = answered()
            wait_for(lambda before=before: answered() > before, 60, "for progress")
            server.kill9()
            server.start()
        for batch in batches:
            done = over(client, batch)
            assert done.status == "completed"
            found = [each["custom_id"] for each in results(client, done.output_file_id)]
            assert found == [f"r{n}" for n in range(30)]
            assert done.request_counts is not None
            assert (done.request_counts.completed, done.error_file_id) == (30, None)
        stored = list(server.redis.scan_iter("{everlong}:response:*"))
        assert len(stored) == 30, "no response is stored twice"
        server.check_keys()
        assert not [name for name in server.stored() if name.startswith("batch_")]


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    settings = {
        "max_batch_lines": 2, "max_batch_bytes": 5000, "max_body_bytes": 2000, "tenant_bytes": 11_000, "tenant_streams": 1,
    }  # fmt: skip
    with Server(tiny_model, tmp_path_factory.mktemp("limited"), recall_passages=0, **settings) as server:
        server.start()
        yield server


@pytest.mark.long
def test_limits(limited: Server) -> None:
    with sdk(limited) as client:
        with pytest.raises(openai.APIStatusError) as too_large:
            client.files.create(file=("r.jsonl", b"x" * 5001), purpose="batch")
        assert (too_large.value.status_code, of(too_large)) == (413, ("too_large", "file"))
        short = [line(f"r{n}", CHAT, body_of(client, CHAT, n)) for n in range(3)]
        failed = over(client, send(client, CHAT, *short))
        assert failed.errors is not None
        (error,) = failed.errors.data or []
        assert (error.code, error.line) == ("too_many_lines", 3)
        assert "limit" in (error.message or "")
        failed = over(client, send(client, CHAT, short[0], line("long", CHAT, body_of(client, CHAT, user="x" * 2000))))
        assert failed.errors is not None
        (error,) = failed.errors.data or []
        assert (error.code, error.line) == ("line_too_long", 2)
        with pytest.raises(openai.APIStatusError) as no_room:
            client.files.create(file=("r.jsonl", b"x" * 4990), purpose="batch")
        assert (no_room.value.status_code, no_room.value.code) == (429, "bytes_limit")
        for file in client.files.list():
            client.files.delete(file.id)
        done = over(client, send(client, CHAT, *short[:2]))
        assert done.status == "completed", "one place for answers is enough"
        two = line("two", CHAT, body_of(client, CHAT) | {"n": 2})
        (failed,) = results(client, over(client, send(client, CHAT, two)).error_file_id)
        assert failed["response"]["status_code"] == 429, "there is never a place for two answers at once"
    metrics = limited.http.get("/metrics").text
    assert 'everlong_batch_requests_total{result="completed"} 2.0' in metrics
    assert 'everlong_queued{queue="batches"}' in metrics
    limited.check_keys()
