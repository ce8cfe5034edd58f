"""Files of data sets, read with complaints that name file and line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from everlong_lab.corpora import text
from everlong_models.errors import DataError


def files(folder: Path, pattern: str) -> list[Path]:
    """Those below `folder`, in order. Raises `DataError` if there is none."""
    found = sorted(folder.rglob(pattern))
    if not found:
        raise DataError(f"{folder} holds no {pattern}")
    return found


def json_lines(folder: Path, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines, each an object, of the file of that name in `folder` or else below it, each with its place for complaints. Raises
    `DataError`."""
    file = folder / name if (folder / name).is_file() else files(folder, name)[0]
    # Only at line ends: JSON may hold other separators of lines as they are.
    for number, line in enumerate(text.read(file).split("\n"), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"{file}, line {number}: {error.msg}") from error
            if not isinstance(row, dict):
                raise DataError(f"{file}, line {number}: must be an object, found {type(row).__name__}")
            yield f"{file}, line {number}", row


def json_file(file: Path, kind: type[dict[str, Any]] | type[list[Any]] = dict) -> Any:
    """What the file holds. Raises `DataError`, also if it is no `kind`."""
    try:
        stored = json.loads(text.read(file))
    except json.JSONDecodeError as error:
        raise DataError(f"{file}, line {error.lineno}: {error.msg}") from error
    if not isinstance(stored, kind):
        wanted = {dict: "an object", list: "an array"}[kind]
        raise DataError(f"{file}: must be {wanted}, found {type(stored).__name__}")
    return stored


def csv_rows(file: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str]]]:
    """Rows of a CSV file, each with its place for complaints. Raises `DataError` if one of the `columns` is missing or empty."""
    reader = csv.DictReader(io.StringIO(text.read(file), newline=""))
    if missing := [column for column in columns if column not in (reader.fieldnames or ())]:
        raise DataError(f"{file}, line 1: no column {missing[0]!r}")
    rows = iter(reader)
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise DataError(f"{file}, line {reader.line_num}: {error}") from error
        if row is None:
            return
        where = f"{file}, line {reader.line_num}"
        if empty := [column for column in columns if not (row[column] or "").strip()]:
            raise DataError(f"{where}: nothing in column {empty[0]!r}")
        yield where, row


@contextmanager
def checked(where: str) -> Iterator[None]:
    """Says where a value is missing or of the wrong kind."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        said = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{where}: {said}") from error
