"""Output of the commands: results go to standard output, everything else to standard error."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import NoReturn, Self, TextIO, TypeAlias

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from everlong_client.transport.conversion import ConversionProgress
from everlong_client.transport.upload import UploadProgress
from everlong_client.transport.wire import DEFAULT_URL
from everlong_client.types.document import Document

# Removed from all output, so that a document or an answer cannot send control sequences to the terminal.
_CONTROLS = dict.fromkeys(c for c in (*range(32), *range(127, 160)) if chr(c) not in "\n\t")


@cache
def console() -> Console:
    """Return the console on standard error. There is only one, so that lines and progress bars do not overlap."""
    return Console(stderr=True)


def require_stream(stream: TextIO | None, name: str) -> TextIO:
    """Return the stream. Raises `OSError` if the shell has closed it (`<&-`), in which case Python sets it to None."""
    if stream is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), name)
    return stream


def write(text: str) -> None:
    """Write a result, or a piece of an answer, and flush it. Raises `OSError` if standard output is closed."""
    stdout = require_stream(sys.stdout, "standard output")
    stdout.write(text.translate(_CONTROLS))
    stdout.flush()


def print_note(text: str) -> None:
    """Write a line about the progress of the command."""
    console().print(Text(_line(text), style="dim"), soft_wrap=True)


def note_what_is_left(url: str, session: str | None, sessions: Iterable[str], documents: Iterable[Document]) -> None:
    """Write the commands that continue `session`, and that delete what the command has left on the server at `url`.

    `sessions` and `documents`: those that the command created.
    """
    where = "" if url == DEFAULT_URL else f" --url {url}"
    if session is not None:
        print_note(f"to continue: everlong chat --session {session}{where}")
    left = {"sessions": [*sessions], "documents": [document.id for document in documents]}
    for kind, ids in left.items():
        if ids:
            print_note(f"to delete the {kind} that stay on the server: everlong {kind} delete {' '.join(ids)}{where}")


def print_error(text: str) -> None:
    """Write an error as one line."""
    console().print(Text(f"error: {_line(text)}", style="red"), soft_wrap=True)


def fail(text: str) -> NoReturn:
    """Write an error as one line and end the command with exit code 1."""
    print_error(text)
    raise typer.Exit(1)


def _line(text: str) -> str:
    return " ".join(text.split()).translate(_CONTROLS)


class ProgressBars(Progress):
    """One progress bar for each document: it fills during the upload, and again during the reading. Use it with `with`."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[detail]}"))
        # On a terminal, results are written above the bars. Redirected results must go to standard output unchanged.
        redirect = sys.stdout.isatty()
        super().__init__(*columns, TimeRemainingColumn(), console=console(), redirect_stdout=redirect)
        self._bars: dict[str, TaskID] = {}

    def upload(self, name: str) -> UploadProgress:
        """Return the callback for the upload of the file `name`."""
        bar = self._bars[name] = self.add_task(f"uploading {escape(name)}", detail="")

        def show(sent: int, total: int | None) -> None:
            self.update(bar, completed=sent, total=total, detail=decimal(sent))

        return show

    def conversion(self, name: str) -> ConversionProgress:
        """Return the callback for the conversion of the file `name`."""

        def show(page: int, pages: int) -> None:
            description = f"converting {escape(name)}"
            self.update(
                self._bars[name], description=description, completed=page - 1, total=pages, detail=_page(page, pages)
            )

        return show

    def reading(self, name: str) -> Callable[[Document], object]:
        """Return the callback for the reading of the file `name`. A file of an archive gets a bar of its own."""
        bar = self._bars[name] if name in self._bars else self.add_task("", detail="")
        self.reset(bar, description=f"reading {escape(name)}", total=None, detail="")

        def show(document: Document) -> None:
            done = 1.0 if document.status == "ready" else document.progress
            self.update(bar, completed=done or 0, total=done if done is None else 1, detail=_reading_detail(document))

        return show


class ProgressLines:
    """One line for each upload, and one for each 10 % that is read. Has the methods of `ProgressBars`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def upload(self, name: str) -> UploadProgress:
        print_note(f"uploading {name}")
        return lambda sent, total: None

    def conversion(self, name: str) -> ConversionProgress:
        return lambda page, pages: print_note(f"converting {name}: {_page(page, pages)}")

    def reading(self, name: str) -> Callable[[Document], object]:
        last_tenth = 0

        def show(document: Document) -> None:
            nonlocal last_tenth
            tenths = 10 if document.status == "ready" else int(10 * (document.progress or 0))
            if tenths > last_tenth:
                last_tenth = tenths
                print_note(f"reading {name}: {10 * tenths} %, {_reading_detail(document)}")

        return show


ProgressReport: TypeAlias = ProgressBars | ProgressLines


def progress_report() -> ProgressReport:
    """Return progress bars if standard error is a terminal, else plain lines."""
    return ProgressBars() if console().is_terminal else ProgressLines()


def _page(page: int, pages: int) -> str:
    return f"page {page:,} of {pages:,}"


def _reading_detail(document: Document) -> str:
    speed = f", {document.tokens_per_second:,.0f} tokens/s" if document.tokens_per_second else ""
    return f"{document.tokens:,} tokens{speed}"
