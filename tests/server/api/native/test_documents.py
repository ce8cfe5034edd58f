"""Documents over HTTP: uploaded files are read, and unreadable ones are refused with the reason."""

from __future__ import annotations

import json
import socket
import threading

import httpx
import pytest

from everlong_client import Everlong
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import connect
from everlong_server.store.redis.index import page
from tests.files import pdf
from tests.process import Server, wait_for
from tests.tinymodel import STORY, make_tokenizer

TEXT = STORY.read_text()[:20_000]


def test_a_document_is_acknowledged_then_read(server: Server) -> None:
    document = server.upload(TEXT, filename="story.md")
    assert document["object"] == "document"
    assert document["status"] in ("queued", "reading")
    assert document["filename"] == "story.md"
    assert document["bytes"] == len(TEXT.encode())
    read = server.wait_read(document["id"])
    assert read["progress"] == 1.0
    assert read["tokens"] == len(make_tokenizer().encode(TEXT, add_special_tokens=False))
    assert read["segments"] == (read["tokens"] + 4) // 64  # the chat format's head comes first
    assert read["tokens_per_second"] > 0
    assert read["error"] is None
    assert len(read["state_digest"]) == 64


def test_however_it_is_sent_the_state_is_the_same(server: Server) -> None:
    data = TEXT.encode()
    whole = server.read(data)
    form = server.http.post("/v1/documents", files={"file": ("ä.txt", data, "text/plain")})
    assert form.status_code == 202, form.text
    assert form.json()["filename"] == "ä.txt"
    chunked = server.http.post("/v1/documents", content=(data[i : i + 7] for i in range(0, len(data), 7)))
    assert chunked.status_code == 202, chunked.text
    marked = server.upload(b"\xef\xbb\xbf" + data)
    assert marked["bytes"] == len(data)
    for document in (form.json(), chunked.json(), marked):
        assert server.wait_read(document["id"])["state_digest"] == whole["state_digest"]
        assert server.document(document["id"])["tokens"] == whole["tokens"]


def test_curls_default_content_type_is_taken(server: Server) -> None:
    answer = server.http.post(
        "/v1/documents", content=b"some text", headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert answer.status_code == 202


def test_documents_are_listed_newest_first_in_pages(server: Server) -> None:
    ids = [server.upload(f"text {n}")["id"] for n in range(5)]
    first = server.http.get("/v1/documents", params={"limit": 3}).json()
    assert [d["id"] for d in first["data"]] == ids[:1:-1]
    assert first["has_more"] is True
    rest = server.http.get("/v1/documents", params={"limit": 2, "after": first["data"][-1]["id"]}).json()
    assert [d["id"] for d in rest["data"]] == ids[1::-1]
    server.error(server.http.get("/v1/documents", params={"limit": 0}), 422, "invalid_value", "limit")
    server.error(server.http.get("/v1/documents", params={"after": "doc_x"}), 404, "not_found", "after")


@pytest.mark.parametrize("path", ["/v1/documents", "/v1/sessions"])
def test_a_list_continues_after_a_deleted_item(server: Server, path: str) -> None:
    made = [server.upload(f"text {n}")["id"] if path == "/v1/documents" else server.session()["id"] for n in range(5)]
    listed: list[str] = []
    while len(listed) < 5:
        after = {"after": listed[-1]} if listed else {}
        for each in server.http.get(path, params={"limit": 2, **after}).json()["data"]:
            server.http.delete(f"{path}/{each['id']}")
            listed.append(each["id"])
    assert listed[:5] == made[::-1]


async def test_items_created_at_one_moment_are_all_listed_after_a_deletion(redis_url: str) -> None:
    redis, index = connect(redis_url), keys.documents("default")
    await redis.flushdb()
    places = {"a": 1.5, "b": 2.1, "c": 2.1, "d": 2.1, "e": 3.0}
    await redis.zadd(index, places)
    everything, _ = await page(redis, index, 5, None)
    assert everything == ["e", "d", "c", "b", "a"]
    for id, place in places.items():
        await redis.zrem(index, id)
        await redis.set(keys.deleted(index, id), repr(place))
        assert await page(redis, index, 5, id) == (everything[everything.index(id) + 1 :], False)
        await redis.zadd(index, {id: place})
    await redis.flushdb()
    await redis.aclose()


def test_progress_is_streamed_as_events(server: Server) -> None:
    document = server.upload(TEXT)
    events = []
    with server.http.stream("GET", f"/v1/documents/{document['id']}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line[6:]))
    assert events[-1]["type"] == "document.ready"
    assert events[-1]["document"]["progress"] == 1.0
    assert {event["type"] for event in events[:-1]} <= {"document.progress"}


@pytest.mark.long
def test_delete_cancels_reading_and_leaves_nothing(server: Server) -> None:
    document = server.upload(STORY.read_text() * 20)
    wait_for(lambda: server.document(document["id"])["status"] == "reading")
    answer = server.http.delete(f"/v1/documents/{document['id']}")
    assert answer.json() == {"id": document["id"], "object": "document.deleted", "deleted": True}
    server.error(server.http.get(f"/v1/documents/{document['id']}"), 404, "document_not_found")
    server.error(server.http.delete(f"/v1/documents/{document['id']}"), 404, "document_not_found")
    jobs = next(iter(server.redis.scan_iter("{everlong}:jobs:*")))
    wait_for(lambda: server.redis.xlen(jobs) == 0, what="for the job to be dropped")
    assert not list((server.data / "documents").glob(f"*{document['id']}*"))
    # The reader is free again.
    server.read("something else")


def test_deleting_an_unknown_document_scans_nothing(server: Server) -> None:
    """Otherwise anybody could make Redis scan all its keys."""

    def calls() -> dict[str, int]:
        return {name: facts["calls"] for name, facts in server.redis.info("commandstats").items() if "scan" in name}

    before = calls()
    for _ in range(3):
        server.error(server.http.delete(f"/v1/documents/doc_{'0' * 32}"), 404, "document_not_found")
    assert calls() == before


@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        (b"", 422, "empty_document", "empty"),
        (b"\xef\xbb\xbf", 422, "empty_document", "empty"),
        (b"%PDF-1.7 ...", 422, "unreadable_document", "PDF"),
        (b"PK\x03\x04....", 422, "unreadable_document", "ZIP"),
        (b"\xff\xfe\n\x00", 422, "unreadable_document", "no text"),
        (b"7z\xbc\xaf\x27\x1c\x00", 415, "unsupported_media_type", "7z"),
        (b"text with \x00 inside", 415, "unsupported_media_type", "NUL"),
        (b"\x7fELF\x02\x01\x01\x00", 415, "unsupported_media_type", "a program"),
        (b"\xff\xfe\x00\x00h\x00\x00\x00\x00\x00\x00\x00", 422, "unreadable_document", "NUL"),
    ],
)
def test_files_that_are_not_text_are_refused(server: Server, body: bytes, status: int, code: str, words: str) -> None:
    before = server.stored()
    chunks = (body[i : i + 8191] for i in range(0, len(body), 8191))
    for content in (body, chunks):
        error = server.error(server.http.post("/v1/documents", content=content), status, code)
        assert words in error["message"]
    assert server.stored() <= before, "a refused upload left a file"


@pytest.mark.parametrize(
    ("kind", "words"),
    [("video/mp4", "video/mp4"), ("image/webp", "image/webp"), ("text/plain; charset=latin-x", "latin-x")],
)
def test_content_types_other_than_text_are_refused(server: Server, kind: str, words: str) -> None:
    answer = server.http.post("/v1/documents", content=b"text", headers={"content-type": kind})
    assert words in server.error(answer, 415, "unsupported_media_type")["message"]


def test_a_body_that_is_declared_as_json_must_be_json(server: Server) -> None:
    before, kind = server.stored(), {"content-type": "application/json"}
    error = server.error(server.http.post("/v1/documents", content=b"{bad", headers=kind), 422, "invalid_json", "file")
    assert "the content type is application/json, but the body is not JSON (" in error["message"]
    assert server.stored() <= before, "a refused upload left a file"
    for content, query in ((b'{"a": 1}', {}), (b"{bad", {"filename": "bad.txt"})):
        assert server.http.post("/v1/documents", content=content, params=query, headers=kind).status_code == 202


DECLARED = [
    ("text/csv", "windows-1252", "cp1252", "Größe;€ 5\n"),
    ("text/plain", "ISO-8859-1", "cp1252", "a – b"),  # as browsers understand the name
    ("application/json", "utf-16", "utf-16", '{"größe": 1}'),
    ("text/plain", "utf-16le", "utf-16", "Größe"),
    ("text/plain", "ANSI_X3.4-1968", "utf-8", "Größe"),  # what programs without a locale say
    ("text/plain", "shift_jis", "cp932", "猫は①" * 40_000),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "charset", "encoding", "text"), DECLARED)
def test_a_declared_encoding_is_used(server: Server, kind: str, charset: str, encoding: str, text: str) -> None:
    data, declared = text.encode(encoding), f'{kind}; charset="{charset}"'
    chunks = (data[i : i + 8191] for i in range(0, len(data), 8191))
    plain = server.http.post("/v1/documents", content=chunks, headers={"content-type": declared})
    form = server.http.post("/v1/documents", files={"file": ("a.txt", data, declared)})
    for answer in (plain, form):
        assert (answer.status_code, answer.json()["notes"]) == (202, [])
        assert server.http.get(f"/v1/files/{answer.json()['id']}/content").text.removeprefix("\ufeff") == text


@pytest.mark.parametrize(
    ("charset", "words"),
    [
        ("windows-1252", "such as 0x81"),
        ("idna", "is not supported"),
        ("utf-7", "is not supported"),
        ("hex", "is not supported"),
        ("utf-16", "byte order mark"),
    ],
)
def test_a_declared_encoding_that_cannot_be_used(server: Server, charset: str, words: str) -> None:
    declared = f"text/plain; charset={charset}"
    plain = server.http.post("/v1/documents", content=b"a\x81bc", headers={"content-type": declared})
    form = server.http.post("/v1/documents", files={"file": ("a.txt", b"a\x81bc", declared)})
    for answer in (plain, form):
        message = server.error(answer, 415, "unsupported_media_type", "content-type")["message"]
        assert message.startswith(f"charset '{charset}'")
        assert words in message


@pytest.mark.parametrize("kind", ["text/html", "application/pdf"])
def test_the_encoding_of_a_format_is_its_own(server: Server, kind: str) -> None:
    page = "<!doctype html><meta charset=utf-8><p>Größe</p>".encode()
    answer = server.http.post("/v1/documents", content=page, headers={"content-type": f"{kind}; charset=koi8-r"})
    assert server.http.get(f"/v1/files/{answer.json()['id']}/content").text == "Größe"


BOOK = """<?xml version="1.0" encoding="windows-1251"?><FictionBook xmlns="http://www.gribuser.ru/xml/fictionbook/2.0">
<body><section><p>Привет</p></section></body></FictionBook>"""


@pytest.mark.parametrize(
    ("data", "declared", "text"),
    [
        (BOOK.encode("cp1251"), "text/xml; charset=windows-1251", "Привет"),
        (pdf(["The first page."]), "text/plain; charset=iso-8859-1", "The first page."),
        (pdf(["The first page."]), "text/plain; charset=unknown", "The first page."),
        ("Größe".encode(), "application/octet-stream; charset=binary", "Größe"),
    ],
)
def test_a_declared_encoding_spoils_no_file_that_is_no_text(
    server: Server, data: bytes, declared: str, text: str
) -> None:
    form = server.http.post("/v1/documents", files={"file": ("a", data, declared)})
    assert text in server.http.get(f"/v1/files/{form.json()['id']}/content").text


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "cp1251", "koi8-r"])
def test_a_text_in_another_encoding_is_decoded(server: Server, encoding: str) -> None:
    text = "Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива по-своему.\n" * 100
    document = server.upload(text.encode(encoding))
    assert document["format"] is None
    assert "UTF-8" in document["notes"][0]["text"]
    assert server.http.get(f"/v1/files/{document['id']}/content").text == text


def test_malformed_forms_are_refused(server: Server) -> None:
    post = server.http.post
    server.error(post("/v1/documents", files={"document": b"x"}), 422, "unknown_parameter", "document")
    server.error(post("/v1/documents", files=[("file", b"x"), ("file", b"y")]), 422, "invalid_value", "file")
    no_boundary = {"content-type": "multipart/form-data"}
    server.error(post("/v1/documents", content=b"x", headers=no_boundary), 422, "invalid_multipart")
    cut = {"content-type": "multipart/form-data; boundary=b"}
    for body in (b"--b\r\nContent-Disposition: form-data; name=file\r\n\r\nhalf a", b"--b--\r\n", b"garbage"):
        answer = post("/v1/documents", content=body, headers=cut)
        assert answer.status_code == 422, answer.text
        assert answer.json()["error"]["code"] in ("invalid_multipart", "missing_parameter")


def test_a_body_that_is_cut_off_leaves_no_document(server: Server) -> None:
    before = server.http.get("/v1/documents", params={"limit": 1}).json()["data"]
    stored = server.stored()
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        peer.sendall(
            b"POST /v1/documents HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 100000\r\n\r\n"
            + b"half " * 100
        )
        wait_for(lambda: server.stored() - stored, what="for the upload to begin")
    wait_for(lambda: server.stored() <= stored, what="for the rest to be removed")
    assert server.http.get("/v1/documents", params={"limit": 1}).json()["data"] == before


@pytest.mark.long
def test_short_documents_overtake_a_long_one_without_changing_its_state(new_server) -> None:
    """With one reader, which yields to waiting documents at every checkpoint."""
    server = new_server(max_readers=1, turn_seconds=0, checkpoint_seconds=0).start()
    long = server.upload(STORY.read_text()[:100_000])
    wait_for(lambda: server.document(long["id"])["status"] == "reading", what="for the long one to begin")
    short = [server.upload(TEXT[n * 500 : 3000 + n * 500]) for n in range(3)]
    for document in short:
        server.wait_read(document["id"])
    assert server.document(long["id"])["status"] == "reading"
    ended = server.wait_read(long["id"], 200)
    assert server.read(STORY.read_text()[:100_000])["state_digest"] == ended["state_digest"], "undisturbed"
    server.check_keys()


def test_the_limit_on_documents(new_server) -> None:
    server = new_server(max_document_bytes=1000).start()
    assert server.upload(b"x" * 1000)["bytes"] == 1000
    for content in (b"x" * 1001, iter([b"x" * 600, b"x" * 600])):
        error = server.error(server.http.post("/v1/documents", content=content), 413, "too_large")
        assert "1000" in error["message"]
    form = server.http.post("/v1/documents", files={"file": b"x" * 1001})
    server.error(form, 413, "too_large")
    server.check_keys()


@pytest.mark.long
def test_a_gigabyte_streams_through_in_little_memory(new_server) -> None:
    server = new_server().start()
    server.read(b"warm up")
    block = (b"All in the golden afternoon full leisurely we glide. " * 20_000)[: 1 << 20]
    peak, stop = [0], threading.Event()
    base = server.memory.memory_info().rss

    def watch() -> None:
        while not stop.wait(0.01):
            peak[0] = max(peak[0], server.memory.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with httpx.Client(base_url=server.url, timeout=200) as client:
            answer = client.post("/v1/documents", content=(block for _ in range(1024)))
    finally:
        stop.set()
        watcher.join()
    assert answer.status_code == 202, answer.text
    assert answer.json()["bytes"] == 1 << 30
    assert (peak[0] - base) / (1 << 20) < 64, f"{(peak[0] - base) / (1 << 20):.0f} MB"
    assert server.http.delete(f"/v1/documents/{answer.json()['id']}").status_code == 200


def test_the_client_lists_the_formats(server: Server) -> None:
    answer = server.http.get("/v1/formats").json()
    with Everlong(server.url) as client:
        formats = client.documents.formats()
    assert formats.max_bytes == answer["max_bytes"]
    for known, listed in zip(formats.data, answer["data"], strict=True):
        assert (known.id, known.name) == (listed["id"], listed["name"])
        assert (list(known.extensions), list(known.media_types)) == (listed["extensions"], listed["media_types"])
    assert {"pdf", "docx"} <= {known.id for known in formats.data}
