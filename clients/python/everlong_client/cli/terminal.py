"""What the commands say: results on standard output, everything else on standard error."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import cache
from types import TracebackType
from typing import NoReturn, Protocol, Self, TextIO

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from everlong_client.transport.upload import UploadProgress
from everlong_client.types.document import Document

__all__ = [
    "ProgressReport",
    "console",
    "fail",
    "print_error",
    "print_note",
    "progress_report",
    "require_stream",
    "write",
]

# A text that was read, or an answer about it, must not reach the terminal's control sequences.
_CONTROLS = dict.fromkeys(c for c in (*range(32), *range(127, 160)) if chr(c) not in "\n\t")


@cache
def console() -> Console:
    """Standard error. There is one, so that a line and a bar do not write over each other."""
    return Console(stderr=True)


def require_stream(stream: TextIO | None, name: str) -> TextIO:
    """The stream. Raises `OSError` for one that the shell has closed (`<&-`), which Python has as None."""
    if stream is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), name)
    return stream


def write(text: str) -> None:
    """Writes a result, or a piece of an answer, at once. Raises `OSError` if nobody takes it."""
    stdout = require_stream(sys.stdout, "standard output")
    stdout.write(text.translate(_CONTROLS))
    stdout.flush()


def print_note(text: str) -> None:
    """Writes a line about what is going on."""
    console().print(Text(_line(text), style="dim"), soft_wrap=True)


def print_error(text: str) -> None:
    """Writes an error as one line."""
    console().print(Text(f"error: {_line(text)}", style="red"), soft_wrap=True)


def fail(text: str) -> NoReturn:
    """Writes an error as one line and ends the command with exit code 1."""
    print_error(text)
    raise typer.Exit(1)


def _line(text: str) -> str:
    return " ".join(text.split()).translate(_CONTROLS)


class ProgressReport(Protocol):
    """Tells how uploads and their reading go; use it with `with`."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def upload(self, name: str) -> UploadProgress:
        """The callback for the upload of what is called `name`."""

    def reading(self, name: str) -> Callable[[Document], object]:
        """The callback for the reading of it."""


def progress_report() -> ProgressReport:
    """A report with bars where standard error is a terminal, in plain lines elsewhere."""
    return ProgressBars() if console().is_terminal else ProgressLines()


class ProgressBars(Progress):
    """One bar for each document: it fills with the upload, and again with the reading."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[detail]}"))
        # A result is written above the bars where both are on a terminal; elsewhere it must reach standard output.
        redirect = sys.stdout.isatty()
        super().__init__(*columns, TimeRemainingColumn(), console=console(), redirect_stdout=redirect)
        self._bars: dict[str, TaskID] = {}

    def upload(self, name: str) -> UploadProgress:
        bar = self._bars[name] = self.add_task(f"uploading {escape(name)}", detail="")

        def show(sent: int, total: int | None) -> None:
            self.update(bar, completed=sent, total=total, detail=decimal(sent))

        return show

    def reading(self, name: str) -> Callable[[Document], object]:
        bar = self._bars[name]
        self.reset(bar, description=f"reading {escape(name)}", total=None, detail="")

        def show(document: Document) -> None:
            done = 1.0 if document.status == "ready" else document.progress
            self.update(bar, completed=done or 0, total=done if done is None else 1, detail=_reading_detail(document))

        return show


class ProgressLines:
    """A line for what was uploaded, and for each tenth that was read."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def upload(self, name: str) -> UploadProgress:
        print_note(f"uploading {name}")
        return lambda sent, total: None

    def reading(self, name: str) -> Callable[[Document], object]:
        last_tenth = 0

        def show(document: Document) -> None:
            nonlocal last_tenth
            tenths = 10 if document.status == "ready" else int(10 * (document.progress or 0))
            if tenths > last_tenth:
                last_tenth = tenths
                print_note(f"reading {name}: {10 * tenths} %, {_reading_detail(document)}")

        return show


def _reading_detail(document: Document) -> str:
    speed = f", {document.tokens_per_second:,.0f} tokens/s" if document.tokens_per_second else ""
    return f"{document.tokens:,} tokens{speed}"
