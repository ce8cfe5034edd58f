"""Valid and invalid requests by the OpenAPI document: never a 500, and only documented responses."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from everlong_server.openapi import openapi
from tests.process import Server
from tests.server.tenants import credentials

schemathesis = pytest.importorskip("schemathesis")

CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n")
"""Fields that make an answer long, kept small."""

EMBEDDING, EMBEDS = "all-MiniLM-L6-v2", ("/v1/embeddings", "/v1/rerank", "/v2/rerank")
"""The embedding model, and the operations that take it."""

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    SCHEMA = schemathesis.openapi.from_dict(openapi())
OPERATIONS = [result.ok() for result in SCHEMA.get_all_operations()]


def checks() -> list[Any]:
    return [schemathesis.checks.CHECKS.get_one(name) for name in CHECKS]


@pytest.fixture(scope="module")
def fuzzed(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that requires keys."""
    with Server(
        tiny_model, tmp_path_factory.mktemp("data"), auth="keys", response_seconds=3600, embeddings="auto"
    ) as server:
        server.start()
        yield server
        assert server.process is not None
        assert server.process.poll() is None
        log = server.log.read_text()
        assert "Traceback" not in log, log[-3000:]
        server.check_keys()
        assert COUNTED["cases"] > 0, "no answer was looked at"


@pytest.fixture(scope="module")
def client(fuzzed: Server) -> Iterator[httpx.Client]:
    key = credentials(fuzzed, lambda c: c.create("ann", scopes=("read", "write", "admin")))[1]
    with httpx.Client(base_url=fuzzed.url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as http:
        yield http


@pytest.fixture(scope="module")
def real(client: httpx.Client) -> dict[str, str]:
    """Ids of existing objects."""
    plain = {"headers": {"content-type": "text/plain"}}
    document = client.post("/v1/documents", content=b"Some words. " * 50, **plain).json()["id"]
    session = client.post("/v1/sessions", json={"documents": []}).json()["id"]
    response = client.post("/v1/responses", json={"model": "tiny-rmt", "input": "Hi", "max_output_tokens": 16}).json()[
        "id"
    ]
    facts = {"bytes": 10, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"}
    upload = client.post("/v1/uploads", json=facts).json()["id"]
    store = client.post("/v1/vector_stores", json={"file_ids": [document]}).json()["id"]
    batch = client.post(f"/v1/vector_stores/{store}/file_batches", json={"file_ids": [document]}).json()["id"]
    requests = client.post("/v1/files", files={"file": b"{}"}, data={"purpose": "batch"}).json()["id"]
    asked = {"input_file_id": requests, "endpoint": "/v1/completions", "completion_window": "24h"}
    requested = client.post("/v1/batches", json=asked).json()["id"]
    return {"vector_store_id": store, "file_batch_id": batch, "batch_id": requested, "document_id": document, "file_id": document, "session_id": session, "response_id": response,
            "upload_id": upload, "model_id": "tiny-rmt"}  # fmt: skip


def fuzz(operation: Any, client: httpx.Client, real: dict[str, str], examples: int) -> None:
    """Send `examples` valid and `examples` invalid requests of an operation, with existing and unknown ids."""
    session, headers = requests.Session(), {"Authorization": client.headers["authorization"]}
    for mode in ("POSITIVE", "NEGATIVE"):
        try:
            cases = operation.as_strategy(generation_mode=schemathesis.GenerationMode[mode])
        except Exception as error:
            assert mode == "NEGATIVE", error  # noqa: PT017 - of what takes everything nothing is invalid
            continue

        @settings(
            max_examples=examples, deadline=None, database=None, derandomize=examples < 100, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=cases, there=st.booleans())
        def run(case: Any, there: bool) -> None:
            if there and operation.method.upper() != "DELETE":
                for name in case.path_parameters or {}:
                    case.path_parameters[name] = real.get(name, case.path_parameters[name])
            if isinstance(case.body, dict):
                for name in LENGTHS:
                    if isinstance(case.body.get(name), int) and case.body[name] > 16:
                        case.body[name] = 16
                if isinstance(case.body.get("n"), int):
                    case.body["n"] = min(case.body["n"], 2)
                if case.body.get("model") is not None and there:
                    case.body["model"] = EMBEDDING if operation.path in EMBEDS else "tiny-rmt"
            try:
                answer = case.call(str(client.base_url).rstrip("/"), session, headers=headers, timeout=60)
            except (requests.exceptions.InvalidHeader, UnicodeError):
                return  # nothing that can be sent
            if answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_http":
                return  # a header that no request can have: the API never saw it
            case.validate_response(answer, checks=checks())
            COUNTED["cases"] += 1

        try:
            run()
        except Unsatisfiable:
            assert mode == "NEGATIVE"  # of what takes nothing, nothing is invalid


COUNTED = {"cases": 0}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.label)
def test_every_operation(client: httpx.Client, real: dict[str, str], operation: Any) -> None:
    fuzz(operation, client, real, 2)


@pytest.mark.slow
@pytest.mark.timeout(14400)
def test_ten_thousand_requests(client: httpx.Client, real: dict[str, str]) -> None:
    COUNTED["cases"], wrong = 0, dict[str, BaseException]()
    while COUNTED["cases"] < 10_000:
        for operation in OPERATIONS:
            try:
                fuzz(operation, client, real, 120)
            except (Exception, schemathesis.core.failures.FailureGroup) as error:  # a run takes long: all are told
                wrong[operation.label] = error
                print(f"{operation.label}: {error}")
        assert not wrong, list(wrong)
    print(f"{COUNTED['cases']} cases of {len(OPERATIONS)} operations")
