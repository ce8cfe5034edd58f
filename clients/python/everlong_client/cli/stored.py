"""`everlong documents` and `everlong sessions`: list what a server stores, and delete it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated, TypeVar

import typer
from rich.filesize import decimal

from everlong_client.cli.options import ApiKey, AsJson, Url, connect
from everlong_client.cli.table import aligned, shortened
from everlong_client.cli.terminal import fail, print_error, print_note, write
from everlong_client.errors import NotFoundError
from everlong_client.transport.wire import DEFAULT_URL
from everlong_client.types.document import Document
from everlong_client.types.session import Session

T = TypeVar("T", Document, Session)

documents = typer.Typer(invoke_without_command=True)
sessions = typer.Typer(invoke_without_command=True)


def _require_ids(ids: list[str]) -> list[str]:
    if "" in ids:  # most likely an unset variable of a script
        fail("an id must not be empty")
    return ids


Ids = Annotated[list[str], typer.Argument(help="The ids to delete.", metavar="ID", callback=_require_ids)]


@documents.callback()
def list_documents(
    context: typer.Context, as_json: AsJson = False, url: Url = DEFAULT_URL, api_key: ApiKey = None
) -> None:
    """List the documents on a server, newest first, or delete some."""
    if _lists(context):
        with connect(url, api_key) as client:
            found = client.documents.list()
        # Names come last, so that wide characters in them do not shift other columns.
        head = ("id", "size", "status", "created", "name")
        _show("documents", found, head, _document_row, as_json=as_json)


@documents.command("delete")
def delete_documents(ids: Ids, url: Url = DEFAULT_URL, api_key: ApiKey = None) -> None:
    """Delete documents. Sessions about them keep their memory."""
    with connect(url, api_key) as client:
        _delete(ids, client.documents.delete)


@sessions.callback()
def list_sessions(
    context: typer.Context, as_json: AsJson = False, url: Url = DEFAULT_URL, api_key: ApiKey = None
) -> None:
    """List the sessions on a server, newest first, or delete some."""
    if _lists(context):
        with connect(url, api_key) as client:
            found = client.sessions.list()
        head = ("id", "documents", "messages", "size", "status", "created", "title")
        _show("sessions", found, head, _session_row, as_json=as_json)


@sessions.command("delete")
def delete_sessions(ids: Ids, url: Url = DEFAULT_URL, api_key: ApiKey = None) -> None:
    """Delete sessions with their messages and memory. Their documents stay."""
    with connect(url, api_key) as client:
        _delete(ids, client.sessions.delete)


def _lists(context: typer.Context) -> bool:
    """Return whether to list. Ends the command if options come before `delete`, which would not see them."""
    if context.invoked_subcommand is None:
        return True
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            fail(f"write the options after `{context.invoked_subcommand}`")
    return False


def _show(
    name: str, found: Sequence[T], head: Sequence[str], row: Callable[[T], Sequence[str]], *, as_json: bool
) -> None:
    """Write what was found, as a table or as JSON. `name`: what it is, in the plural."""
    if as_json:
        write(json.dumps([asdict(each) for each in found], ensure_ascii=False) + "\n")
    elif found:
        lines = aligned(head, [row(each) for each in found], left=("status", "created", head[-1]))
        write("".join(f"{line.rstrip()}\n" for line in lines))
    else:
        print_note(f"the server has no {name}")


def _document_row(document: Document) -> tuple[str, ...]:
    status = document.status
    if status == "reading" and document.progress is not None:
        status += f", {document.progress:.0%}"
    return document.id, decimal(document.bytes), status, _date(document.created_at), shortened(document.filename or "")


def _session_row(session: Session) -> tuple[str, ...]:
    return (
        session.id,
        f"{len(session.documents):,}",
        f"{session.messages:,}",
        decimal(session.state_bytes),
        session.status,
        _date(session.created_at),
        shortened(session.title or ""),
    )


def _date(seconds: float) -> str:
    """Return a time in the local time zone; nothing for 0, which stands for an unknown time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else ""


def _delete(ids: Sequence[str], delete: Callable[[str], None]) -> None:
    """Delete one after the other. Unknown ids get an error each, and exit code 1 at the end."""
    unknown = False
    for id in ids:
        try:
            delete(id)
        except NotFoundError as error:
            unknown = True
            print_error(str(error))
        else:
            print_note(f"deleted {id}")
    if unknown:
        raise typer.Exit(1)
