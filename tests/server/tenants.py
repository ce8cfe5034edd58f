"""Tenants of a server that requires keys, and helpers that create them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

import httpx

from everlong_server.store.redis import connection
from everlong_server.store.tenants.credentials import SCOPES, Credentials
from tests.process import Server

MODEL = "tiny-rmt"
KINDS = {
    "document": "doc",
    "file": "doc",
    "session": "ses",
    "response": "resp",
    "upload": "upload",
    "part": "part",
    "file_batch": "vsfb",
    "batch": "batch",
    "input_file": "file",
    "vector_store": "vs",
}
UNKNOWN = {f"{kind}_id": f"{prefix}_{'0' * 32}" for kind, prefix in KINDS.items()} | {"key_id": "0" * 16}
"""Unknown ids of each kind."""

T = TypeVar("T")

TEXT = "Alice has a secret: the combination of the safe is four, eight, fifteen. " * 30


class Tenant(NamedTuple):
    """A tenant's client, and the ids of its objects."""

    name: str
    key: str
    http: httpx.Client
    ids: dict[str, str]


def credentials(server: Server, work: Callable[[Credentials], Awaitable[T]]) -> T:
    """Return the result of `work` on the server's credentials."""

    async def run() -> T:
        redis = connection.connect(f"unix://{server._link}/redis/redis.sock")
        try:
            return await work(Credentials(redis))
        finally:
            await redis.aclose()

    return asyncio.run(run())


def new_key(server: Server, tenant: str, *scopes: str) -> str:
    return credentials(server, lambda c: c.create(tenant, scopes=scopes or SCOPES))[1]


def client(server: Server, key: str | None) -> httpx.Client:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=60)


def tenant(server: Server, name: str) -> Tenant:
    key = new_key(server, name)
    http = client(server, key)
    document = http.post("/v1/documents", content=TEXT.encode(), headers={"content-type": "text/plain"}).json()["id"]
    while http.get(f"/v1/documents/{document}").json()["status"] != "ready":
        time.sleep(0.02)
    session = http.post("/v1/sessions", json={"documents": [document]}).json()["id"]
    said = http.post(f"/v1/sessions/{session}/messages", json={"content": "Which secret?", "max_tokens": 3})
    assert said.status_code == 200, said.text
    response = http.post(
        "/v1/responses", json={"model": MODEL, "input": "Which secret?", "max_output_tokens": 16}
    ).json()
    facts = {"bytes": 10, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"}
    upload = http.post("/v1/uploads", json=facts).json()["id"]
    part = http.post(f"/v1/uploads/{upload}/parts", files={"data": b"half a te"}).json()["id"]
    store = http.post("/v1/vector_stores", json={"file_ids": [document]}).json()["id"]
    batch = http.post(f"/v1/vector_stores/{store}/file_batches", json={"file_ids": [document]}).json()["id"]
    requests = http.post("/v1/files", files={"file": b"{}"}, data={"purpose": "batch"}).json()["id"]
    asked = {"input_file_id": requests, "endpoint": "/v1/completions", "completion_window": "24h"}
    requested = http.post("/v1/batches", json=asked).json()["id"]
    ids = {"vector_store_id": store, "file_batch_id": batch, "batch_id": requested, "input_file_id": requests, "document_id": document, "file_id": document, "session_id": session, "response_id": response["id"],
           "upload_id": upload, "part_id": part, "key_id": new_key(server, name).split("_")[1]}  # fmt: skip
    return Tenant(name, key, http, ids)
