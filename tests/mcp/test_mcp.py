"""`everlong mcp`, with the MCP SDK's own client: over standard input and output, and over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from everlong_client.mcp.results import answer
from everlong_client.mcp.server import DocumentServer
from everlong_client.types.message import Citation, Evidence, Message
from everlong_lab.harness.ports import free_port
from mcp import Client, MCPError, StdioServerParameters
from tests.pages import run_by
from tests.process import Server, everlong, wait_for
from tests.server.tenants import new_key
from tests.tinymodel import STORY, make_model

BOOK = STORY.read_text()[:8_000]
PAGE = run_by("tests/mcp/test_mcp.py")
TOOLS = ("list_documents", "read_document", "search_documents", "add_document", "ask")


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = make_model(tmp_path_factory.mktemp("model"), segment_length=128)
    with Server(model, tmp_path_factory.mktemp("data"), recall_tokens=100) as server:
        server.start()
        yield server


@pytest.fixture(scope="module")
def book(own_server: Server) -> str:
    return str(own_server.read(BOOK, filename="alice.txt")["id"])


def test_a_cited_sentence_names_the_page_and_section_of_its_source() -> None:
    passage = Evidence(document="doc_1", start=0, end=5, start_byte=0, end_byte=5, text="A. B.", section="1. Parties")
    span = {"start": 0, "end": 2, "evidence": 0, "document": "doc_1", "document_start": 3, "document_end": 5}
    message = Message(
        id="m", content="B.", evidence=(passage,), citations=(Citation(**span, page=2, section="2. Term"),)
    )
    (cited,) = answer(message, "ses_1").citations
    assert cited.model_dump() == {"sentence": "B.", "source": 0, "page": 2, "section": "2. Term"}


def test_an_answer_says_how_its_question_was_understood_and_whether_others_agree() -> None:
    message = Message(id="m", content="Ahab.", standalone_question="Who is the captain of the Pequod?", agreement=0.25)
    shown = answer(message, "ses_1")
    assert (shown.standalone_question, shown.agreement) == ("Who is the captain of the Pequod?", 0.25)


def command(url: str, *options: str, **variables: str) -> StdioServerParameters:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVERLONG_")}
    arguments = ["-m", "everlong_client", "mcp", *options]
    return StdioServerParameters(
        command=sys.executable, args=arguments, env=environment | {"EVERLONG_URL": url} | variables
    )


@contextmanager
def over_http(url: str, log: Path) -> Iterator[str]:
    """Run an MCP server over HTTP in front of the server at `url`, and yield its address."""
    port = free_port()
    parameters = command(url, "--http", "--port", str(port))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [parameters.command, *parameters.args], env=parameters.env, stdout=output, stderr=output
        )
        try:
            wait_for(lambda: _accepts(port, process, log))
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()
            process.wait(20)


@pytest.fixture(scope="module")
def http_server(own_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an MCP server over HTTP."""
    with over_http(own_server.url, tmp_path_factory.mktemp("mcp") / "log") as url:
        yield url


def _accepts(port: int, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@pytest.fixture(params=["stdio", "http"])
def connect(request: pytest.FixtureRequest, server: Server) -> Callable[[], Any]:
    """Makes a client of each transport."""
    if request.param == "stdio":
        return lambda: Client(command(server.url))
    url = request.getfixturevalue("http_server")
    return lambda: Client(url)


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """Return the structured result of a tool, which must be that of its text, too."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result.structured_content
    return str(result.content[0].text)


async def test_a_conversation(connect: Callable[[], Any], server: Server, book: str) -> None:
    progress: list[float] = []

    async def report(done: float, total: float | None, message: str | None) -> None:
        progress.append(done)

    async with connect() as client:
        assert client.server_info.name == "everlong"
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == [*TOOLS]
        assert [tool.annotations.read_only_hint for tool in tools] == [True, True, True, False, False]
        assert all(tool.description and tool.output_schema for tool in tools)

        added = await call(client, "add_document", text="The Queen has eleven roses.", filename="roses.txt")
        listed = await call(client, "list_documents", limit=1)
        assert listed["documents"][0]["id"] == added["id"] == listed["next"]
        assert (await call(client, "list_documents", limit=1, after=listed["next"]))["documents"]

        first = await call(client, "ask", question="What did Alice say to the kitten?", documents=[book], max_tokens=8)
        assert first["sources"]
        for source in first["sources"]:
            assert BOOK.encode()[source["start_byte"] : source["end_byte"]].decode() == source["text"]
        again = {"question": "And the Red Queen?", "session": first["session"], "max_tokens": 4}
        result = await client.call_tool("ask", again, progress_callback=report)
        assert result.structured_content["session"] == first["session"]
        messages = server.http.get(f"/v1/sessions/{first['session']}/messages").json()["data"]
        assert [message["content"] for message in messages if message["role"] == "user"] == [
            "What did Alice say to the kitten?", "And the Red Queen?",
        ]  # fmt: skip
        assert messages[1]["content"] == first["answer"]
        server.http.delete(f"/v1/sessions/{first['session']}")
        server.http.delete(f"/v1/documents/{added['id']}")


async def test_a_text_part_by_part(http_server: str, book: str) -> None:
    async with Client(http_server) as client:
        text, start, parts = "", 0, 0
        while start is not None:
            part = await call(client, "read_document", document=book, start_byte=start, max_bytes=6000)
            text, start, parts = text + part["text"], part["next_start_byte"], parts + 1
        assert (text, parts) == (BOOK, 2)


async def test_a_search(http_server: str, book: str) -> None:
    async with Client(http_server) as client:
        found = (await call(client, "search_documents", query="Humpty Dumpty kitten", documents=[book], limit=3))[
            "passages"
        ]
        assert 0 < len(found) <= 3
        assert [each["score"] for each in found] == sorted((each["score"] for each in found), reverse=True)
        for each in found:
            assert BOOK.encode()[each["start_byte"] : each["end_byte"]].decode() == each["text"]
            assert each["filename"] == "alice.txt"
        nowhere = {"query": "kitten", "documents": [book], "section": "no such heading"}
        assert (await call(client, "search_documents", **nowhere))["passages"] == []
        assert (await call(client, "search_documents", query="kitten", documents=[book], first_page=2))[
            "passages"
        ] == []
        assert "no document" in await refusal(client, "search_documents", query="kitten", documents=["doc_none"])


async def test_resources(server: Server, book: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlong_client.mcp.server._RESOURCES", 2)
    others = [server.upload(f"text {number}")["id"] for number in range(3)]
    async with Client(DocumentServer(server.url)) as client:
        found, cursor = [], None
        while not found or cursor is not None:
            page = await client.list_resources(cursor=cursor)
            assert len(page.resources) <= 2
            found, cursor = found + page.resources, page.next_cursor
        assert {f"everlong://documents/{id}" for id in (book, *others)} <= {each.uri for each in found}
        named = {each.uri: each for each in found}[f"everlong://documents/{book}"]
        assert (named.name, named.mime_type, named.size) == ("alice.txt", "text/plain", len(BOOK.encode()))
        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "everlong://documents/{document}"
        monkeypatch.setattr("everlong_client.mcp.server.MAX_PART", 3000)
        assert (await client.read_resource(named.uri)).contents[0].text == BOOK
        monkeypatch.setattr("everlong_client.mcp.server.MAX_RESOURCE", 100)
        with pytest.raises(MCPError, match="bytes, the limit of a resource is 100"):
            await client.read_resource(named.uri, cache_mode="reload")
        with pytest.raises(MCPError, match="doc_none"):
            await client.read_resource("everlong://documents/doc_none")
    for id in others:
        server.http.delete(f"/v1/documents/{id}")


async def test_refusals_say_what_is_wrong(http_server: str, book: str) -> None:
    async with Client(http_server) as client:
        assert "no document" in await refusal(client, "read_document", document="doc_none")
        assert "beyond the end" in await refusal(client, "read_document", document=book, start_byte=10**9)
        assert "either `documents`" in await refusal(client, "ask", question="Why?")
        assert "either `documents`" in await refusal(client, "ask", question="Why?", documents=[book], session="ses_1")
        assert "doc_none" in await refusal(client, "ask", question="Why?", documents=["doc_none"])
        assert "no session" in await refusal(client, "ask", question="Why?", session="ses_none")
        assert "either `text` or `path`" in await refusal(client, "add_document")
        assert "limit" in await refusal(client, "list_documents", limit=1000)


async def test_files_of_allowed_folders_alone(server: Server, tmp_path: Path) -> None:
    allowed, secret = tmp_path / "allowed", tmp_path / "secret.txt"
    allowed.mkdir()
    (allowed / "notes.txt").write_text("The notes are here.")
    secret.write_text("secret")
    (allowed / "link.txt").symlink_to(secret)
    async with Client(DocumentServer(server.url, folders=[allowed])) as client:
        added = await call(client, "add_document", path=str(allowed / "notes.txt"))
        assert added["filename"] == "notes.txt"
        for path in (secret, allowed / "link.txt", allowed / ".." / "secret.txt"):
            assert f"is in no folder that the user allowed ({allowed})" in await refusal(
                client, "add_document", path=str(path)
            )
        assert "cannot read" in await refusal(client, "add_document", path=str(allowed / "none.txt"))
    async with Client(DocumentServer(server.url)) as client:
        assert "(none)" in await refusal(client, "add_document", path=str(allowed / "notes.txt"))
    server.http.delete(f"/v1/documents/{added['id']}")


async def test_paths_that_name_no_file(tmp_path: Path) -> None:
    """A pipe without a writer would block the tool for ever."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    async with Client(DocumentServer("http://127.0.0.1:1", folders=[tmp_path])) as client:
        for path in (f"{tmp_path}/pipe", f"{tmp_path}/loop", f"{tmp_path}/a\0b", "~nobody-has-this-name/x"):
            assert f"path: cannot read {path!r}: " in await refusal(client, "add_document", path=path)


async def test_http_refuses_pages_of_other_sites(http_server: str) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"accept": "application/json, text/event-stream"}
    for name, value, status in (("origin", "http://evil.test", 403), ("host", "evil.test", 421)):
        answer = httpx.post(http_server, json=request, headers=headers | {name: value})
        assert answer.status_code == status, answer.text


@pytest.mark.long
def test_a_server_for_others_uses_their_keys() -> None:
    for options, expected in (
        ((), "needs --allowed-host"),
        (("--allowed-host", "docs.test", "--api-key", "evl_x"), "would use this API key"),
    ):
        done = everlong("mcp", "--http", "--host", "0.0.0.0", *options)
        assert done.returncode == 1
        assert expected in done.stderr


def test_a_wrong_address_is_refused_at_once() -> None:
    done = everlong("mcp", "--url", "ftp://here")
    assert done.returncode == 1
    assert "must start with http" in done.stderr


@pytest.mark.long
async def test_no_server(closed: str) -> None:
    async with Client(DocumentServer(closed)) as client:
        assert closed in await refusal(client, "list_documents")
        with pytest.raises(MCPError, match="no response from"):
            await client.list_resources()


@pytest.fixture
def closed() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture
def locked(new_server: Callable[..., Server]) -> Server:
    return new_server(auth="keys").start()


@pytest.fixture
def tenant_keys(locked: Server) -> list[str]:
    return [new_key(locked, name) for name in ("alice", "bob")]


@pytest.mark.long
async def test_each_caller_uses_its_own_key(locked: Server, tenant_keys: list[str], tmp_path: Path) -> None:
    alice, bob = tenant_keys

    @asynccontextmanager
    async def connected(url: str, authorization: str | None) -> AsyncIterator[Client]:
        headers = {} if authorization is None else {"Authorization": authorization}
        async with (
            create_mcp_http_client(headers=headers) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            yield client

    with over_http(locked.url, tmp_path / "log") as url:
        async with connected(url, f"Bearer {alice}") as client:
            document = (await call(client, "add_document", text="Alice's secret."))["id"]
            assert [each.uri for each in (await client.list_resources()).resources] == [
                f"everlong://documents/{document}"
            ]
        async with connected(url, f"Bearer {bob}") as client:
            assert (await call(client, "list_documents"))["documents"] == []
            assert (await client.list_resources()).resources == []
            assert "no document" in await refusal(client, "read_document", document=document)
            with pytest.raises(MCPError, match="no document"):
                await client.read_resource(f"everlong://documents/{document}")
        async with connected(url, None) as client:
            assert "API key" in await refusal(client, "list_documents")
        async with connected(url, f"Basic {alice}") as client:
            assert "Authorization: Bearer" in await refusal(client, "list_documents")
    async with Client(DocumentServer(locked.url, api_key=alice)) as client:
        assert [each["id"] for each in (await call(client, "list_documents"))["documents"]] == [document]


@pytest.mark.long
async def test_the_configuration_of_the_page(server: Server, tmp_path: Path) -> None:
    (configuration,) = [block.code for block in PAGE if block.language == "json"]
    entry = json.loads(configuration)["mcpServers"]["everlong"]
    assert entry["command"] == "everlong"
    parameters = command(server.url)
    arguments = [str(tmp_path) if each == "/path/to/documents" else each for each in entry["args"]]
    parameters.args = ["-m", "everlong_client", *arguments]
    assert dict.fromkeys(entry["env"], server.url).items() <= parameters.env.items()
    (tmp_path / "notes.txt").write_text("Notes.")
    async with Client(parameters) as client:
        added = await call(client, "add_document", path=str(tmp_path / "notes.txt"))
    server.http.delete(f"/v1/documents/{added['id']}")


@pytest.mark.long
def test_the_program_of_the_page(http_server: str, server: Server) -> None:
    (program,) = [block.code for block in PAGE if block.language == "python"]
    done = subprocess.run(
        [sys.executable, "-c", program.replace("http://127.0.0.1:8081/mcp", http_server)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
