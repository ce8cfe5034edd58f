"""Read files of data sets. Errors name file and line."""

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
    """Return the files below `folder` that match `pattern`, sorted. Raises `DataError` if there are none."""
    found = sorted(folder.rglob(pattern))
    if not found:
        raise DataError(f"{folder} has no {pattern}")
    return found


def json_lines(folder: Path, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a JSON lines file, each with its location for error messages.

    The file is `folder`/`name`, or else the first one of that name below `folder`. Raises `DataError`.
    """
    file = folder / name if (folder / name).is_file() else files(folder, name)[0]
    # str.splitlines would also split at separators that JSON strings may contain.
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
    """Return the content of a JSON file. Raises `DataError`, also if it is not a `kind`."""
    try:
        stored = json.loads(text.read(file))
    except json.JSONDecodeError as error:
        raise DataError(f"{file}, line {error.lineno}: {error.msg}") from error
    if not isinstance(stored, kind):
        wanted = {dict: "an object", list: "an array"}[kind]
        raise DataError(f"{file}: must be {wanted}, found {type(stored).__name__}")
    return stored


def csv_rows(file: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of a CSV file, each with its location for error messages. Raises `DataError` if one of `columns` is
    missing or empty."""
    reader = csv.DictReader(io.StringIO(text.read(file), newline=""))
    if missing := [column for column in columns if column not in (reader.fieldnames or ())]:
        raise DataError(f"{file}, line 1: column {missing[0]!r} is missing")
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
            raise DataError(f"{where}: column {empty[0]!r} is empty")
        yield where, row


@contextmanager
def checked(where: str) -> Iterator[None]:
    """Turn errors about missing values or values of the wrong type into `DataError` with their location."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        message = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{where}: {message}") from error
