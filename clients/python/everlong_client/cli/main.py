"""The `everlong` command: the client's own commands, and those of other distributions."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from everlong_client.cli import stored
from everlong_client.cli.ask import Asking
from everlong_client.cli.chat import Chat
from everlong_client.cli.ingest import ingest_files
from everlong_client.cli.options import (
    ASK,
    ApiKey,
    AsJson,
    DocumentIds,
    MaxTokens,
    ModelName,
    Seed,
    Temperature,
    Url,
    connect,
    require_model,
)
from everlong_client.cli.originals import STDIN, STDIN_NAME
from everlong_client.cli.plugins import Commands
from everlong_client.cli.search import Searching
from everlong_client.cli.status import status_of
from everlong_client.cli.table import table
from everlong_client.cli.terminal import fail, print_note, require_stream, write
from everlong_client.cli.uploads import exit_on_sigterm
from everlong_client.client import Everlong
from everlong_client.transport.wire import DEFAULT_URL, VERSION
from everlong_client.types.document import Document
from everlong_client.types.message import Sampling

app = typer.Typer(name="everlong", cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(stored.documents, name="documents", rich_help_panel=ASK)
app.add_typer(stored.sessions, name="sessions", rich_help_panel=ASK)


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # the terminal's encoding may lack characters of an answer
    app()


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        server = version("everlong")
    except PackageNotFoundError:
        server = "not installed"
    typer.echo(f"everlong-client {VERSION}, server {server}")
    raise typer.Exit


def _not_empty(session: str | None) -> str | None:
    if session == "":  # most likely an unset variable of a script
        fail("the session id must not be empty")
    return session


def _require_names(names: Sequence[str]) -> None:
    if "" in names:  # most likely an unset variable of a script
        fail("the name of a file must not be empty")


@app.callback()
def everlong(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the versions and exit.")
    ] = False,
) -> None:
    """Let a server read documents of any length, and ask questions about them."""


@app.command(rich_help_panel=ASK)
def ingest(
    files: Annotated[list[Path], typer.Argument(help="Files to upload; - is standard input.", metavar="FILE")],
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Whether to wait until the server has read them.")
    ] = True,
    ocr_language: Annotated[
        str | None,
        typer.Option("--ocr-language", help="The language of text in scanned pages and pictures, such as latin."),
    ] = None,
    unpack: Annotated[
        bool, typer.Option("--unpack", help="Make a document of each file in the given archives (zip, tar).")
    ] = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """Upload files, wait until the server has read them, and print their document ids."""
    require_stream(sys.stdout, "standard output")  # checked first: without it the ids would be lost
    failed, several = False, unpack or len(files) > 1
    names: dict[str, str] = {}

    def name(document: Document, file: Path) -> None:
        shown = STDIN_NAME if file == STDIN else str(file)
        names[document.id] = f"{shown}: {document.filename}" if unpack else shown

    with connect(url, api_key) as client:
        for document in ingest_files(
            client, files, wait=wait, ocr_language=ocr_language, unpack=unpack, on_upload=name
        ):
            failed |= document is None
            if document is not None:
                write(f"{document.id}\n")
                if several:
                    print_note(f"{names[document.id]}: {document.id}")
    if failed:
        raise typer.Exit(1)


@app.command(rich_help_panel=ASK)
def ask(
    *,
    words: Annotated[
        list[str],
        typer.Argument(
            help="Files to ask about (- is standard input), then the question.", metavar="[FILE]... QUESTION"
        ),
    ],
    documents: DocumentIds = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the uploaded documents and the session on the server afterwards.")
    ] = False,
    as_json: AsJson = False,
    model: ModelName = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """Ask one question about files, print the answer, and exit."""
    require_stream(sys.stdout, "standard output")
    *names, question = words
    if not names and not documents:
        fail('name the files, or documents with --document, then the question: everlong ask FILE "QUESTION"')
    _require_names(names)
    if not question.strip():
        fail("the question is empty")
    if os.path.isfile(question):  # `Path.is_file` raises an error for a question that is too long for a file's name
        fail(f"the question is missing: {question} is a file, and the last argument must be the question")
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature, seed=seed)
    with connect(url, api_key) as client:
        require_model(client, model)
        asking = Asking(client, url, as_json=as_json, keep=keep)
        if not asking.run([*map(Path, names)], documents or [], question, model, sampling):
            raise typer.Exit(1)


@app.command(rich_help_panel=ASK)
def chat(
    *,
    files: Annotated[list[Path] | None, typer.Argument(help="Files to upload and read first.", metavar="FILE")] = None,
    documents: DocumentIds = None,
    session: Annotated[str | None, typer.Option(help="The id of a session to continue.", callback=_not_empty)] = None,
    model: ModelName = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """Ask questions about documents, typed on the terminal or piped in, one a line."""
    require_stream(sys.stdin, "standard input")
    require_stream(sys.stdout, "standard output")
    if session is not None and (files or documents or model):
        fail("--session has its own documents and model: leave out FILE, --document and --model")
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature, seed=seed)
    piped = None if files or documents or session else _piped_questions()
    with connect(url, api_key) as client, exit_on_sigterm():
        require_model(client, model)
        conversation = Chat(client, url, sampling, piped)
        try:
            if session is not None:
                conversation.resume(session)
            elif not conversation.start(files or [], documents or [], model):
                raise typer.Exit(1)
            conversation.run()
        finally:
            conversation.end()


def _piped_questions() -> Iterable[str] | None:
    """Return the lines of standard input from the first question on; None on a terminal.

    Ends the command if there is no question, so that nothing is created on the server.
    """
    if sys.stdin.isatty():
        return None
    try:
        first = next((line for line in sys.stdin if line.strip()), None)
    except UnicodeDecodeError as error:
        fail(f"a question is not valid {error.encoding.upper()}: {error.reason}")
    if first is None:
        fail("there is nothing to ask: name a file, pipe questions in, or run `everlong chat` on a terminal")
    return chain([first], sys.stdin)


@app.command(rich_help_panel=ASK)
def search(
    *,
    words: Annotated[
        list[str],
        typer.Argument(
            help="Files (- is standard input) and ids of documents to search, then the query.",
            metavar="FILE|ID... QUERY",
        ),
    ],
    limit: Annotated[int | None, typer.Option("--limit", help="The maximum number of passages.")] = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """Print the passages that fit a query best, without an answer."""
    require_stream(sys.stdout, "standard output")
    *names, query = words
    if not names:
        fail('name the files or documents, then the query: everlong search FILE "QUERY"')
    _require_names(names)
    if not query.strip():
        fail("the query is empty")
    with connect(url, api_key) as client:
        if not Searching(client, url, as_json=as_json).run(names, query, limit):
            raise typer.Exit(1)


@app.command(rich_help_panel=ASK)
def status(as_json: AsJson = False, url: Url = DEFAULT_URL, api_key: ApiKey = None) -> None:
    """Show whether a server is ready, what it serves, and how many documents and sessions it has."""
    try:
        # A server that is starting refuses requests; the command reports that instead of waiting.
        client = Everlong(url, api_key=api_key, retries=0)
    except ValueError as error:
        fail(str(error))
    with client:
        found = status_of(client, url)
    write(f"{json.dumps(found.as_dict())}\n" if as_json else "".join(f"{line}\n" for line in found.lines()))
    if not found.ready:
        raise typer.Exit(1)


@app.command(rich_help_panel=ASK)
def memory(
    session: Annotated[str, typer.Argument(help="The session's id.", metavar="SESSION", callback=_not_empty)],
    png: Annotated[
        Path | None, typer.Option(help="Draw the memory into this PNG file instead.", metavar="FILE")
    ] = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """Show what a session's memory holds, how full it is, and where its attention and space go."""
    if png is None:
        with connect(url, api_key) as client:
            write(table(client.sessions.memory(session)))
        return
    try:
        from everlong_client.cli.picture import draw
    except ImportError as error:
        fail(f"--png needs matplotlib: pip install 'everlong-client[plot]' ({error})")
    with connect(url, api_key) as client:
        png.write_bytes(draw(client.sessions.memory(session)))
    print_note(f"wrote {png}")


@app.command(rich_help_panel=ASK)
def mcp(
    *,
    folders: Annotated[
        list[Path] | None,
        typer.Option(
            "--folder", help="A folder whose files may be uploaded; may be repeated.", exists=True, file_okay=False
        ),
    ] = None,
    http: Annotated[bool, typer.Option("--http", help="Serve HTTP instead of standard input and output.")] = False,
    host: Annotated[str, typer.Option(help="With --http: the address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="With --http: the port to listen on.", min=1, max=65535)] = 8081,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            help="With --http: a host name that clients use, in place of this machine's names; may be repeated.",
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """Offer a server's documents and answers to assistants, as an MCP server (Model Context Protocol)."""
    try:
        from everlong_client.mcp.run import is_loopback, run_http
        from everlong_client.mcp.server import DocumentServer
    except ImportError as error:
        fail(f"`everlong mcp` needs the MCP SDK: pip install 'everlong-client[mcp]' ({error})")
    connect(url, api_key).close()  # checks the address and the key
    server = DocumentServer(url, api_key=api_key, folders=folders or ())
    if not http:
        server.run("stdio")
        return
    if not is_loopback(host):
        if api_key:
            fail(
                f"everyone who reaches {host} would use this API key: leave out --api-key and EVERLONG_API_KEY; clients send "
                "their own as `Authorization: Bearer evl_…`"
            )
        if not names:
            fail(f"--host {host} needs --allowed-host: the host names by which clients call this server")
    print_note(f"MCP server at http://{host}:{port}/mcp")
    run_http(server, host, port, names or ())
