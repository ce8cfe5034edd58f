"""The process that converts one file. `conversion.py` starts it."""

from __future__ import annotations

import errno
import importlib
import json
import os
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import IO

from everlong_server.engine.documents.formats import faults
from everlong_server.engine.documents.formats.blocks import Block, Notes, Unreadable, printable
from everlong_server.engine.documents.formats.catalogue import ARCHIVES, FORMATS, HEAD, binary_kind, detect, format_of
from everlong_server.engine.documents.formats.charset import pieces
from everlong_server.engine.documents.formats.conversion import ExitCode
from everlong_server.engine.documents.formats.languages import Language
from everlong_server.engine.documents.formats.recognition import Recogniser
from everlong_server.store.texts.outline import OutlineEntry

MAX_CALLS = 20_000
"""Python's limit on calls inside each other: XML may be 2,048 elements deep, of which each takes a few calls of a reader."""


def read(file: Path, format_id: str, notes: Notes) -> Iterator[Block]:
    """Yield the blocks of a file in one of `FORMATS`. Raises `Unreadable`, and `OSError` if the disk is full."""
    name = FORMATS[format_id].reader
    reader = importlib.import_module(f"everlong_server.engine.documents.formats.readers.{name}")
    try:
        blocks = reader.read(file, notes, format_id) if name == "legacy" else reader.read(file, notes)
        if format_id == "text":
            yield from blocks
        else:  # a soft hyphen may be inside any word, which a search would not find
            yield from (replace(block, text=block.text.replace("\u00ad", "")) for block in blocks)
    except (Unreadable, MemoryError):
        raise
    except RecursionError:
        raise Unreadable("the file cannot be read: its elements are nested too deeply") from None
    except Exception as error:  # readers and their libraries raise many kinds of errors for damaged files
        if _is_disk_full(error):
            raise
        faults.report(error)
        raise Unreadable(f"the file is damaged ({type(error).__name__})") from error


def _is_disk_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def read_nested(file: Path, name: str, notes: Notes) -> Iterator[Block] | None:
    """Yield the blocks of a file inside another; None if its format is not supported."""
    format_id = _nested_format(file, name)
    if format_id is None:
        return None
    return _text(file, notes, name) if format_id == "text" else read(file, format_id, notes)


def _nested_format(file: Path, name: str) -> str | None:
    """Return the format of a file inside another; None if this server cannot read it."""
    with file.open("rb") as stream:
        head = stream.read(HEAD)
    kind = detect(head, name)
    if kind is None:
        return "text" if binary_kind(head) is None else None
    format_id = format_of(file, kind)
    return format_id if format_id in FORMATS and FORMATS[format_id].readable else None


def _text(file: Path, notes: Notes, name: str) -> Iterator[Block]:
    yield Block("".join(pieces(file, notes, part=name)).strip())


_MAX_OUTLINE = 50_000
"""Maximum number of pages and sections in an outline. Every search that finds a passage of the document loads the outline."""


def _write(blocks: Iterator[Block], notes: Notes, text: IO[str], limit: int) -> list[OutlineEntry]:
    """Write the blocks with a blank line between them, and return where pages and sections begin.

    Raises `OverflowError` after more than `limit` bytes.
    """
    outline: list[OutlineEntry] = []
    position = size = 0  # characters and bytes written
    blank = True
    for block in blocks:
        if not block.text:
            continue
        # A lone surrogate cannot be encoded, and texts must not contain NUL.
        separator = "\n\n" if position and not block.joined else ""
        clean = separator + block.text.encode("utf-8", "replace").decode().replace("\0", "")
        if (block.page is not None or block.section is not None) and len(outline) == _MAX_OUTLINE:
            notes.add(f"only the first {_MAX_OUTLINE} pages and sections can be named in evidence")
        elif block.page is not None or block.section is not None:
            section = block.section[:200] if block.section else None
            outline.append(OutlineEntry(position + len(separator), block.page, section))
        blank = blank and clean.isspace()
        text.write(clean)
        position, size = position + len(clean), size + len(clean.encode())
        if size > limit:
            raise OverflowError
    if blank:
        why = next((f" ({note.text})" for note in notes.all()), "")
        raise Unreadable(f"there is no text in it{why}")
    return outline


def _convert_whole(
    file: Path, format_id: str, text: Path, limit: int, new_notes: Callable[[], Notes]
) -> dict[str, object]:
    """Convert a file to one text. Returns the result for the parent process."""
    notes = new_notes()
    with text.open("w", encoding="utf-8", newline="") as stream:
        outline = _write(read(file, format_id, notes), notes, stream, limit)
    return _result(outline, notes)


def _convert_each(
    file: Path, format_id: str, folder: Path, limit: int, new_notes: Callable[[], Notes]
) -> dict[str, object]:
    """Convert each file of an archive to a text of its own in `folder`: the n-th to `n.text`. Keeps PDF files as `n.original`.

    What cannot be read becomes a note on the archive. Raises `OverflowError` if the texts and PDF files have more than `limit` bytes.
    """
    if format_id not in ARCHIVES:
        raise Unreadable("it is no archive")  # the parent process says what it is
    archive = importlib.import_module(f"everlong_server.engine.documents.formats.readers.{FORMATS[format_id].reader}")
    notes, made = new_notes(), list[dict[str, object]]()
    for number, (given, data) in enumerate(archive.files(file, notes)):
        name, original, text = printable(given), folder / f"{number}.original", folder / f"{number}.text"
        original.write_bytes(data)
        try:
            kind = _nested_format(original, name)
            if kind is None:
                raise Unreadable("its format is not supported")
            one = _convert_whole(original, kind, text, limit, new_notes)
        except Unreadable as error:
            notes.add(f"it was left out: {error}", part=name or None)
            kind = None
        else:
            made.append({"number": number, "name": name, "format": kind, **one})
            limit -= text.stat().st_size + (len(data) if kind == "pdf" else 0)
        if kind != "pdf":
            original.unlink()
        if limit < 0:
            raise OverflowError
    if not made:
        why = next((f" ({note.part}: {note.text})" if note.part else f" ({note.text})" for note in notes.all()), "")
        raise Unreadable(f"no file in it can be read{why}")
    return {"files": made, **_result([], notes)}


def _result(outline: list[OutlineEntry], notes: Notes) -> dict[str, object]:
    return {"outline": [astuple(entry) for entry in outline], "notes": [astuple(note) for note in notes.all()]}


def main(
    kind: str,
    file: str,
    text: str,
    limit: str,
    seconds: str,
    memory: str,
    recognition: str = "0",
    language: str = "any",
    models: str = "",
    progress: str = os.devnull,
) -> int:
    """Convert a file under limits. Writes the result to the standard output; returns the exit code.

    `recognition`: CPU seconds for recognising text; 0: none is recognised. `language`, `models`: see `Language`. `progress`: a
    file in which this process writes the page that it is at, and the number of pages. The others: see `convert`.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 2 * int(recognition) + 5))
    resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    spoken = Language(language, Path(models) if models else None)
    recogniser = Recogniser(int(recognition), spoken) if int(recognition) else None
    with Path(progress).open("wb", buffering=0) as page_file:

        def on_page(page: int, pages: int) -> None:
            page_file.seek(0)
            page_file.write(b"%10d %10d\n" % (page, pages))

        return convert(kind, Path(file), Path(text), int(limit), recogniser, on_page)


def convert(
    kind: str,
    file: Path,
    text: Path,
    limit: int,
    recogniser: Recogniser | None = None,
    on_page: Callable[[int, int], object] = lambda page, pages: None,
) -> int:
    """Convert a file. Writes the result to the standard output; returns the exit code. `on_page`: see `Notes`.

    `text`: the path of the text, or an existing folder, in which each file of an archive becomes a text of its own.
    """
    sys.setrecursionlimit(MAX_CALLS)

    def new_notes() -> Notes:
        return Notes(read_nested, recogniser, on_page)

    try:
        format_id = format_of(file, kind)
        if format_id is None:
            return ExitCode.UNKNOWN_CONTAINER
        sys.stdout.write(format_id)
        sys.stdout.flush()  # the parent learns the format even if this process crashes later
        result = (_convert_each if text.is_dir() else _convert_whole)(file, format_id, text, limit, new_notes)
    except OverflowError:
        return ExitCode.TOO_LARGE
    except MemoryError:
        return ExitCode.OUT_OF_MEMORY
    except Unreadable as error:
        sys.stdout.write(f"\n{error}")
        return ExitCode.UNREADABLE
    except OSError as error:
        if _is_disk_full(error):
            return ExitCode.DISK_FULL
        raise
    sys.stdout.write("\n")
    json.dump(result, sys.stdout)
    return 0


if __name__ == "__main__":
    faults.keep_private()
    sys.exit(main(*sys.argv[1:]))
