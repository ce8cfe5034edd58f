"""`convert`: converts a file to text in a process of its own.

An uploaded file may be hostile. The process has limits on CPU time, memory and the size of the text. They grow with the
file, so that a small one cannot occupy the server. It never fetches anything that the file refers to.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from everlong_server.engine.documents.formats.catalogue import ARCHIVES, FORMATS
from everlong_server.engine.documents.formats.languages import ANY_LANGUAGE, Language
from everlong_server.engine.documents.formats.recognition import is_installed
from everlong_server.errors import InvalidRequest, TooLarge, UnsupportedMedia
from everlong_server.store.texts.notes import Note
from everlong_server.store.texts.outline import OutlineEntry

log = logging.getLogger(__name__)

SECONDS = 300
"""CPU seconds that any conversion may take."""
_PROGRESS_SECONDS = 0.5
"""Seconds between two looks at the page that a conversion is at."""
MEMORY = 2 << 30
"""Bytes of address space that a conversion may take."""
_BASE_SECONDS, _SECONDS_PER_MB = 15, 5
_BASE_TEXT, _TEXT_PER_BYTE = 32 << 20, 100
"""Bytes of text that any file may have, and further ones for each byte of the file. Text compresses to a third or a tenth, and
tables of equal numbers to a fiftieth."""
_RECOGNITION_SECONDS, _BASE_RECOGNITION, _RECOGNITION_PER_MB = 240, 30, 100
"""CPU seconds for recognising text in pictures, which takes 5 to 10 seconds a page: at most, for any file, and for each megabyte.
A scanned page has 0.05 to 0.5 MB."""


class ExitCode(IntEnum):
    """Exit code of the conversion process. Its output is a line with the format, then a result in JSON or the reason of the failure."""

    TOO_LARGE = 3
    UNREADABLE = 4
    UNKNOWN_CONTAINER = 5
    OUT_OF_MEMORY = 6
    DISK_FULL = 7


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one conversion: bytes of text, CPU seconds, the largest text that any file may have, and further CPU seconds for
    recognising text in pictures."""

    text: int
    seconds: int
    max_text: int
    recognition: int

    @staticmethod
    def of(size: int, max_text: int) -> Limits:
        """Return the limits for a file of `size` bytes."""
        seconds = min(SECONDS, _BASE_SECONDS + _SECONDS_PER_MB * size // 1_000_000)
        recognition = min(_RECOGNITION_SECONDS, _BASE_RECOGNITION + _RECOGNITION_PER_MB * size // 1_000_000)
        return Limits(
            min(max_text, _BASE_TEXT + _TEXT_PER_BYTE * size), seconds, max_text, recognition if is_installed() else 0
        )

    @property
    def wall(self) -> int:
        """Seconds on a clock that the conversion may take."""
        return 2 * self.seconds + 10 * self.recognition


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result: the format (of `FORMATS`), where pages and sections begin, what is not in the text."""

    format: str
    outline: list[OutlineEntry]
    notes: list[Note]


@dataclass(frozen=True, slots=True)
class ConvertedFile:
    """A file of an archive. `name`: "" for a compressed file, whose name is not stored. `text`: the local file with its text.
    `original`: that with its content, for a PDF; else None."""

    name: str
    text: Path
    original: Path | None
    made: Conversion


def command(file: Path, kind: str, text: Path, limits: Limits) -> list[str]:
    """Return the command line of the process that converts `file`."""
    numbers = limits.text, limits.seconds, MEMORY, limits.recognition
    module = "everlong_server.engine.documents.formats.worker"
    return [sys.executable, "-m", module, kind, str(file), str(text), *map(str, numbers)]


def convert(
    file: Path,
    kind: str,
    text: Path,
    max_text: int,
    language: Language = ANY_LANGUAGE,
    on_page: Callable[[int, int], object] = lambda page, pages: None,
    scratch: Path | None = None,
) -> Conversion:
    """Write the text of `file` to `text` as UTF-8, at most `max_text` bytes. Blocks.

    `kind`: as returned by `detect`. `language`: of the text in pictures. `on_page`: called about twice a second with the page that
    is being read, counted from 1, and the number of pages. `scratch`: folder for working files, such as the files inside `file`; None:
    the system's temporary folder. Raises `UnsupportedMedia` for a format that this server cannot convert,
    `InvalidRequest` for a file that is damaged, encrypted or has no text, `TooLarge`, and `OSError` if the disk is full.
    """
    kind, made = _run(file, kind, text, max_text, language, on_page, scratch)
    return _conversion(kind, made)


def convert_each(
    file: Path,
    kind: str,
    folder: Path,
    max_bytes: int,
    language: Language = ANY_LANGUAGE,
    on_page: Callable[[int, int], object] = lambda page, pages: None,
) -> tuple[list[ConvertedFile], list[Note]]:
    """Convert each file of an archive to a text of its own in `folder`, which has the working files, too. Returns the files, and notes
    on what was left out. Blocks.

    `max_bytes`: of the texts, and the PDF files that are kept, together. The other parameters, the limits of the process, and what
    is raised: as for `convert`. Files that cannot be read become notes; if that is all of them, raises `InvalidRequest`.
    """
    _, made = _run(file, kind, folder, max_bytes, language, on_page, folder)
    files = []
    for each in made["files"]:
        text, original = folder / f"{each['number']}.text", folder / f"{each['number']}.original"
        kept = original if each["format"] == "pdf" else None
        files.append(ConvertedFile(each["name"], text, kept, _conversion(each["format"], each)))
    return files, [Note(*note) for note in made["notes"]]


def _conversion(format_id: str, made: dict[str, Any]) -> Conversion:
    return Conversion(
        format_id, [OutlineEntry(*entry) for entry in made["outline"]], [Note(*note) for note in made["notes"]]
    )


def _run(
    file: Path, kind: str, text: Path, max_text: int, language: Language, on_page: Callable[[int, int], object],
    scratch: Path | None,
) -> tuple[str, dict[str, Any]]:  # fmt: skip
    """Run the process that converts `file`, and return the format and the process's result. `text`: see `worker.convert`."""
    limits = Limits.of(file.stat().st_size, max_text)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:  # deletes what a killed process leaves
        progress = Path(folder, "progress")
        process = subprocess.Popen(
            ["env", f"TMPDIR={folder}", "OMP_NUM_THREADS=1", *command(file, kind, text, limits), *language.arguments, str(progress)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        with process:
            try:
                output, errors = _outputs(process, limits.wall, progress, on_page)
            except BaseException as error:
                process.kill()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                raise _unreadable(
                    f"the conversion of {_name(kind)} takes too long, more than {limits.wall} seconds"
                ) from None
    format_id, _, result = output.decode(errors="replace").partition("\n")
    kind = format_id or kind
    if kind in FORMATS and not FORMATS[kind].readable:
        raise UnsupportedMedia(
            f"the document is {_name(kind)}; to read this format, the server's operator must run "
            f"pip install 'everlong[{FORMATS[kind].extra}]'",
            param="file",
        )
    if text.is_dir() and kind in FORMATS and kind not in ARCHIVES:
        raise not_an_archive(_name(kind))
    if process.returncode == ExitCode.DISK_FULL:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if process.returncode != 0:
        if errors:  # a fault of a reader, or of the library that it uses
            log.warning("a conversion of %s failed: %s", kind, errors.decode(errors="replace")[-2000:])
        raise _error(process.returncode, kind, result, limits)
    return kind, json.loads(result)


def _outputs(
    process: subprocess.Popen[bytes], seconds: int, progress: Path, on_page: Callable[[int, int], object]
) -> tuple[bytes, bytes]:
    """Wait for the process, and return what it wrote to the standard output and the standard error.

    Raises `subprocess.TimeoutExpired` if it takes more than this many `seconds`.
    """
    deadline = time.monotonic() + seconds
    last = ""
    while True:
        try:
            return process.communicate(timeout=min(_PROGRESS_SECONDS, max(0.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                raise
        written = progress.read_text() if progress.exists() else ""
        if written.endswith("\n") and written != last:
            last = written
            page, pages = map(int, written.split())
            on_page(page, pages)


def _error(code: int, kind: str, reason: str, limits: Limits) -> InvalidRequest | TooLarge | UnsupportedMedia:
    """Return the error for a conversion process that failed."""
    match code:
        case ExitCode.TOO_LARGE if limits.text < limits.max_text:
            return TooLarge(
                f"the document's text has more than {limits.text} bytes, {_TEXT_PER_BYTE} times the size of the file and "
                f"{_BASE_TEXT >> 20} MiB: upload it as text",
                param="file",
            )
        case ExitCode.TOO_LARGE:
            return TooLarge(
                f"the document's text has more than {limits.text} bytes, the limit (EVERLONG_MAX_DOCUMENT_BYTES)",
                param="file",
            )
        case ExitCode.UNKNOWN_CONTAINER:
            return UnsupportedMedia(
                "the document is an old Office file of an unknown kind: upload UTF-8 text or a supported format",
                param="file",
            )
        case ExitCode.UNREADABLE:
            return _unreadable(reason)
        case ExitCode.OUT_OF_MEMORY:
            return _unreadable(
                f"the document is {_name(kind)} that takes more than {MEMORY >> 20} MiB of memory to read"
            )
        case _ if code in (-signal.SIGXCPU, -signal.SIGKILL):
            return _unreadable(f"the document is {_name(kind)} that takes more than {limits.seconds} seconds to read")
    return _unreadable(f"the document is {_name(kind)} that is damaged, or takes too much memory to read")


def not_an_archive(what: str) -> UnsupportedMedia:
    """Return the error for a file that is `what`, where an archive is expected."""
    return UnsupportedMedia(f"the file is {what}, not an archive: upload it to /v1/documents", param="file")


def _name(kind: str) -> str:
    containers = {"zip": "a ZIP file", "ole": "an old Office file"}
    return FORMATS[kind].name if kind in FORMATS else containers.get(kind, kind)


def _unreadable(why: str) -> InvalidRequest:
    said = why if why.startswith("the ") else f"the document: {why}"
    return InvalidRequest(said, param="file", code="unreadable_document")
