"""The folder of data sets: archives `NAME.tar.xz`, unpacked to a cache when they are wanted, or folders `NAME`."""

from __future__ import annotations

import lzma
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path


class DataError(Exception):
    """A data set that cannot be used: names the file, and the line if one is broken."""


def default_cache() -> Path:
    """Where archives are unpacked to."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "everlong" / "data"


def data_set(data: Path, name: str, cache: Path) -> Path:
    """The folder of the data set `name`: `data/NAME` if it is one, else `data/NAME.tar.xz` unpacked into `cache`.

    Raises `DataError`.
    """
    folder, archive = data / name, data / f"{name}.tar.xz"
    if folder.is_dir():
        return folder
    if not archive.is_file():
        raise DataError(f"no data set {name}: neither the folder {folder} nor the file {archive} exists")
    stat = archive.stat()
    target = cache / f"{name}-{stat.st_size}-{stat.st_mtime_ns}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    # Unpacked beside its place and renamed, so that what was cut off is never taken for a data set.
    scratch = Path(tempfile.mkdtemp(dir=cache, prefix=f".{name}-"))
    try:
        with tarfile.open(archive, "r:xz") as tar:
            tar.extractall(scratch, filter="data")
        scratch.rename(target)
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}") from error
    except OSError as error:
        if not target.is_dir():  # else another process was quicker
            raise DataError(f"{archive} cannot be unpacked into {cache}: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


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
