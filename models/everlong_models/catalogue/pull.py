"""`pull`: downloads a model of the catalogue, from the first source that has it. Only the official SHA-256 is trusted."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
from fnmatch import fnmatch
from pathlib import Path

from filelock import FileLock, Timeout

from everlong_models.catalogue.bar import Bar, Progress
from everlong_models.catalogue.entry import Entry, HubSource, WheelSource
from everlong_models.catalogue.hub import fetch_from_hub
from everlong_models.catalogue.wheels import fetch_from_wheels
from everlong_models.errors import PullError


def locate(entry: Entry, models_dir: Path) -> Path | None:
    """Return the entry's file if it was pulled into `models_dir`, or comes with an installed wheel; else None.

    `pull` has checked its hash; here only its size is checked.
    """
    places = [models_dir / entry.file, *_installed(entry)]
    return next((file for file in places if file.is_file() and file.stat().st_size == entry.bytes), None)


def pull(entry: Entry, models_dir: Path, progress: Progress = lambda message: None) -> Path:
    """Return the entry's file, which is downloaded into `models_dir` if it is not here.

    An interrupted download continues where it ended, even after SIGKILL: the file gets its name only when it is whole and its
    hash right. Of several processes one downloads, and the others wait. Raises `PullError`, which names every source tried.
    """
    if (found := locate(entry, models_dir)) is not None:
        return found
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        lock = FileLock(models_dir / f".{entry.name}.lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            progress(f"waiting for another process that downloads {entry.name}")
            lock.acquire()
        try:
            return locate(entry, models_dir) or _pull(entry, models_dir, progress)
        finally:
            lock.release()
    except OSError as error:
        raise PullError(f"cannot store {entry.name} in {models_dir}: {error}") from error


def _pull(entry: Entry, models_dir: Path, progress: Progress) -> Path:
    scratch = models_dir / f".pulling-{entry.name}"
    partial, target = scratch / f"{entry.file}.partial", models_dir / entry.file
    scratch.mkdir(exist_ok=True)
    _require_disk(entry, partial)
    reasons = []
    progress(f"downloading {entry.name} ({entry.bytes / 1e6:,.0f} MB, {entry.licence}) into {models_dir}")
    for source in entry.sources:
        try:
            with Bar(entry.name, entry.bytes, progress) as bar:
                if isinstance(source, HubSource):
                    fetch_from_hub(entry, source, partial, scratch, bar)
                else:
                    fetch_from_wheels(entry, source, partial, scratch, bar, progress)
            _require_hash(entry, partial)
        except PullError as error:
            reasons.append(str(error))
            if source is not entry.sources[-1]:
                progress(f"{error}; trying the next source")
            continue
        os.replace(partial, target)
        _sync_folder(models_dir)
        shutil.rmtree(scratch)
        progress(f"{entry.name} is in {target}")
        return target
    raise PullError(f"cannot download {entry.name}: {'; '.join(reasons)}")


def _require_hash(entry: Entry, file: Path) -> None:
    """Raise `PullError` and delete the file unless it has the official SHA-256. Its bytes are on disk afterwards."""
    with file.open("r+b") as stream:
        os.fsync(stream.fileno())
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != entry.sha256:
        file.unlink()
        raise PullError(
            f"the SHA-256 of {entry.file} is {found}, not the official {entry.sha256}: the file was deleted"
        )


def _require_disk(entry: Entry, partial: Path) -> None:
    """Raise `PullError` if the disk has too little space for the rest of the file and the temporary files of its download."""
    # pip holds a wheel twice for a moment.
    beside = max((2 * source.part_bytes for source in entry.sources if isinstance(source, WheelSource)), default=0)
    needed = entry.bytes + beside - (partial.stat().st_size if partial.exists() else 0)
    free = shutil.disk_usage(partial.parent).free
    if needed > free:
        raise PullError(
            f"the disk is too small for {entry.name}: downloading it needs {needed / 1e6:,.0f} MB in "
            f"{partial.parent.parent}, and {free / 1e6:,.0f} MB are free. Free some, or set EVERLONG_MODELS_DIR to another folder"
        )


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _installed(entry: Entry) -> list[Path]:
    """Return the entry's file in an installed wheel, if a single wheel carries it. Does not import the wheel."""
    found = []
    for source in entry.sources:
        if isinstance(source, WheelSource) and len(source.sha256) == 1:
            try:
                files = importlib.metadata.files(source.wheels.partition("==")[0]) or []
            except importlib.metadata.PackageNotFoundError:
                continue
            found += [Path(str(file.locate())) for file in files if fnmatch(str(file), source.part)]
    return found
