"""The index of words of a document: one SQLite file, in which FTS5 keeps the terms of each passage and of its headings."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everlong_server.errors import Damaged
from everlong_server.store.records import Document
from everlong_server.store.search.rows import Tables
from everlong_server.store.search.splitting import VERSION, Headings, split
from everlong_server.store.search.terms import language_of, terms_of
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.sidecar import BuildCancelled

_MAPPED = 1 << 30
"""Bytes of an index that are memory-mapped, so that they are read from the page cache without a copy."""
_WORDS = "USING fts5(text, headings, content='', columnsize=0, tokenize='ascii')"
"""Holds terms, separated by spaces. The tokenizer `ascii` takes every character outside ASCII as part of a term."""
_LAYOUT = 100 * VERSION + 4
"""Version of the index, which contains that of the cuts. An index with another one counts as damaged and is built again."""
HEADING = "¶"
"""Term in front of each heading's terms, so that a phrase can begin with a heading."""
_ROWS_AT_ONCE = 512
_HEADINGS = 64
"""Headings whose terms are remembered: those that a passage is below are mostly those of the passage before."""
_SAMPLE = 1 << 16
"""Bytes of a text that its language is recognised by."""


class SearchMissing(Exception):
    """This Python's SQLite was built without full-text search."""


def require_search() -> str:
    """Return the version of SQLite. Raises `SearchMissing` if it cannot index passages."""
    with contextlib.closing(sqlite3.connect(":memory:")) as scratch:
        try:
            scratch.execute(f"CREATE VIRTUAL TABLE words {_WORDS}")
        except sqlite3.DatabaseError as error:
            raise SearchMissing(
                f"the SQLite {sqlite3.sqlite_version} of {sys.executable} cannot index passages ({error}): use a Python whose "
                "SQLite has FTS5, such as those of python.org, Debian, conda and uv"
            ) from error
    return sqlite3.sqlite_version


def build(blobs: Blobs, document: Document, path: Path, stop: threading.Event) -> None:
    """Build the document's index in a new file. `stop`: set to end with `BuildCancelled`. Raises `OSError` if it cannot be written."""
    try:
        _index(blobs, document, path, stop)
    except sqlite3.OperationalError as error:  # the index cannot be written; the text is not at fault
        full = error.sqlite_errorcode in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)
        number = errno.ENOSPC if full else errno.EIO
        raise OSError(number, f"the index of document {document.id} cannot be written: {error}") from error


def _index(blobs: Blobs, document: Document, path: Path, stop: threading.Event) -> None:
    with (
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as index,
        blobs.open(document.id, document.text_offset) as file,
    ):
        # The file is used only when it is complete, so it needs no journal.
        index.execute("PRAGMA journal_mode = OFF")
        index.execute("PRAGMA synchronous = OFF")
        index.execute("PRAGMA temp_store = MEMORY")  # no text in temporary files, which nothing encrypts or deletes
        index.execute("BEGIN")
        index.execute("CREATE TABLE passages (id INTEGER PRIMARY KEY, start, end, start_byte, end_byte)")
        index.execute("CREATE TABLE tables (start INTEGER PRIMARY KEY, header_end, start_byte, header_end_byte, end)")
        index.execute("CREATE TABLE document (language)")
        index.execute(f"CREATE VIRTUAL TABLE words {_WORDS}")
        index.execute("CREATE VIRTUAL TABLE places USING fts5vocab(words, 'instance')")
        language = language_of(file.read(_SAMPLE).decode(errors="ignore"))
        index.execute("INSERT INTO document VALUES (?)", (language,))
        file.seek(document.text_offset)
        headings, tables, terms = Headings(), Tables(), terms_of(language)
        title = terms.with_figures(PurePath(document.filename or "").stem)
        of_heading = lru_cache(_HEADINGS)(terms.with_figures)
        pieces = enumerate(split(file))
        while batch := list(islice(pieces, _ROWS_AT_ONCE)):
            if stop.is_set():
                raise BuildCancelled
            rows = ((n, p.start, p.end, p.start_byte, p.end_byte) for n, p in batch)
            index.executemany("INSERT INTO passages VALUES (?, ?, ?, ?, ?)", rows)
            found = (table for _, p in batch for table in tables.of(p))
            index.executemany("INSERT INTO tables VALUES (?, ?, ?, ?, ?)", found)
            texts = (
                (
                    n,
                    " ".join(terms.with_figures(p.text)),
                    " ".join([*title, *_heading_terms(headings.of(p.text), of_heading)]),
                )
                for n, p in batch
            )
            index.executemany("INSERT INTO words(rowid, text, headings) VALUES (?, ?, ?)", texts)
        index.executemany("INSERT INTO tables VALUES (?, ?, ?, ?, ?)", tables.finish())
        index.execute(f"PRAGMA user_version = {_LAYOUT}")
        index.execute("COMMIT")


def place_of(index: Any, number: int) -> tuple[int, int, int, int]:
    """Return start and end of a passage, in characters and in bytes."""
    place: tuple[int, int, int, int] = index.execute(
        "SELECT start, end, start_byte, end_byte FROM passages WHERE id = ?", (number,)
    ).fetchone()
    return place


def header_at(index: Any, start: int) -> tuple[int, int, int, int] | None:
    """Return start and end of the first row of the table that has the character `start` below this row; None if there is none."""
    nearest = "SELECT * FROM tables WHERE start < ? AND header_end <= ? ORDER BY start DESC LIMIT 1"
    found = index.execute(nearest, (start, start)).fetchone()
    return tuple(found[:4]) if found is not None and start < found[4] else None


def _heading_terms(headings: Sequence[str], of_heading: Callable[[str], Sequence[str]]) -> Iterator[str]:
    for heading in headings:
        yield HEADING
        yield from of_heading(heading)


def opened(path: Path) -> contextlib.closing[sqlite3.Connection]:
    """Open a complete index for searching. It is never changed, so it needs no locks."""
    index = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    index.execute(f"PRAGMA mmap_size = {_MAPPED}")
    return contextlib.closing(index)


def stretches(index: Any, numbers: NDArray[np.int64] | None) -> Iterator[tuple[int, int]]:
    """Yield where each stretch of consecutive passages begins, and its size, in bytes. `numbers`: of the passages, sorted; None: all."""
    if numbers is None:
        numbers = np.arange(index.execute("SELECT count(*) FROM passages").fetchone()[0])
    for stretch in np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1) if len(numbers) else ():
        ends = "SELECT (SELECT start_byte FROM passages WHERE id = ?), (SELECT end_byte FROM passages WHERE id = ?)"
        start, end = index.execute(ends, (int(stretch[0]), int(stretch[-1]))).fetchone()
        yield start, end - start


def check_layout(index: Any) -> None:
    """Raise `Damaged` for an index of another version."""
    if index.execute("PRAGMA user_version").fetchone()[0] != _LAYOUT:
        raise Damaged("the index has the layout of another version")


def is_intact(path: Path) -> bool:
    """Return whether a file is a complete index of this version."""
    try:
        with opened(path) as index:
            check_layout(index)
            index.execute(
                "SELECT count(*) FROM passages"
            )  # fails for an empty file, which SQLite takes for an intact database
            index.execute("SELECT count(*) FROM places")
            return bool(index.execute("PRAGMA quick_check").fetchone()[0] == "ok")
    except (sqlite3.DatabaseError, Damaged):
        return False
