"""Files of a data set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from everlong_models.errors import DataError


def find(folder: Path, path: str) -> Path:
    """The file or folder `path` below `folder`, at whatever depth the archive has it. Raises `DataError`."""
    found = next(_matches(folder, path), None)
    if found is None:
        raise DataError(f"{folder} holds no {path}")
    return found


def read_text(file: Path) -> str:
    """The UTF-8 text of `file`. Raises `DataError`."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}") from error


def _matches(folder: Path, path: str) -> Iterator[Path]:
    if (folder / path).exists():
        yield folder / path
    yield from sorted(folder.rglob(path))
