"""The `everlong` command: `ingest`, `chat` and `memory`, and the commands that other distributions add."""

from __future__ import annotations

import io
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from everlong_client.cli.chat import Chat
from everlong_client.cli.ingest import ingest_files
from everlong_client.cli.plugins import Commands
from everlong_client.cli.table import table
from everlong_client.cli.terminal import fail, print_note, require_stream, write
from everlong_client.client import Everlong
from everlong_client.transport.wire import DEFAULT_URL, VERSION
from everlong_client.types.message import Sampling

app = typer.Typer(name="everlong", cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)

Url = Annotated[str, typer.Option("--url", envvar="EVERLONG_URL", help="The server's address.")]
ApiKey = Annotated[str | None, typer.Option("--api-key", envvar="EVERLONG_API_KEY", help="The API key.")]


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


@app.callback()
def everlong(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the versions and exit.")
    ] = False,
) -> None:
    """Let a server read documents of any length, and ask questions about them."""


@app.command()
def ingest(
    files: Annotated[list[Path], typer.Argument(help="Files to upload; - is standard input.", metavar="FILE")],
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Whether to wait until the server has read them.")
    ] = True,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """Upload files, wait until the server has read them, and print their document ids."""
    require_stream(sys.stdout, "standard output")  # checked first: without it the ids would be lost
    failed = False
    with _client(url, api_key) as client:
        for document in ingest_files(client, files, wait=wait):
            failed |= document is None
            if document is not None:
                write(f"{document.id}\n")
    if failed:
        raise typer.Exit(1)


@app.command()
def chat(
    *,
    file: Annotated[Path | None, typer.Argument(help="A file to upload and read first.")] = None,
    documents: Annotated[
        list[str] | None, typer.Option("--document", help="The id of a document to ask about; may be repeated.")
    ] = None,
    session: Annotated[str | None, typer.Option(help="The id of a session to continue.", callback=_not_empty)] = None,
    model: Annotated[str | None, typer.Option(help="The model to use, one of those that the server offers.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="The maximum number of tokens of an answer.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="The sampling temperature; 0 always takes the likeliest token.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The sampling seed; the same seed gives the same answer.")] = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """Ask questions about documents, typed on the terminal or piped in, one a line."""
    require_stream(sys.stdin, "standard input")
    require_stream(sys.stdout, "standard output")
    if session is not None and (file or documents or model):
        fail("--session has its own documents and model: leave out FILE, --document and --model")
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature, seed=seed)
    with _client(url, api_key) as client:
        if session is not None:
            current = client.sessions.get(session)
        else:
            ids = list(documents or [])
            for document in list(ingest_files(client, [file] if file else [])):
                if document is None:
                    raise typer.Exit(1)
                ids.append(document.id)
            current = client.sessions.create(ids, model=model)
        conversation = Chat(client, current, sampling)
        try:
            conversation.run()
        finally:
            where = "" if url == DEFAULT_URL else f" --url {url}"
            print_note(f"to continue: everlong chat --session {conversation.session.id}{where}")


@app.command()
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
        with _client(url, api_key) as client:
            write(table(client.sessions.memory(session)))
        return
    try:
        from everlong_client.cli.picture import draw
    except ImportError as error:
        fail(f"--png needs matplotlib: pip install 'everlong-client[plot]' ({error})")
    with _client(url, api_key) as client:
        png.write_bytes(draw(client.sessions.memory(session)))
    print_note(f"wrote {png}")


def _client(url: str, api_key: str | None) -> Everlong:
    try:
        return Everlong(url, api_key=api_key)
    except ValueError as error:
        fail(str(error))
