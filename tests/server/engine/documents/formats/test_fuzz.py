"""Damaged files end a conversion in an orderly way: with text, or with a reason, and within its limits.

`python -m tests.server.engine.documents.formats.test_fuzz 100000 [SEED [FOLDER]]` tries that many files and reports those that did
not. With a folder, it keeps them and its progress there, and continues when it is started again.
"""

from __future__ import annotations

import collections
import io
import json
import lzma
import math
import os
import random
import resource
import select
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from everlong_server.engine.documents.formats import catalogue, conversion, worker
from tests import files

ROOT = Path(__file__).parents[5]
FOLDER = ROOT / "tests" / "data" / "formats"
CRASH = "crash"
BATCH = 50
"""Number of files that one process converts. A new process for each file would take three times as long."""
WALL = 600
"""Seconds on a clock after which a conversion hangs; its CPU time ends much earlier."""


DRAWN = "ghostscript-outlines.pdf"
"""Has no text without recognition, which is off here."""


def samples() -> dict[str, bytes]:
    """Return whole files by their names."""
    made = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.name != "expected.jsonl"}
    made = {
        name.removesuffix(".xz"): lzma.decompress(data) if name.endswith(".xz") else data for name, data in made.items()
    }
    return made | {
        "made.pdf": files.pdf(["One.", files.PICTURE, "Three."]), "made.epub": files.epub(["<h1>One</h1><p>Two</p>"] * 3),
        "made.html": b"<!doctype html><form><input value=a><select><option>b</select></form><table><tr><td>c</table>",
        "made.msg": files.outlook("A subject", "A body."), "made.zip": files.zipped({"a.txt": "A", "b.html": "<html>b"}),
        "made.tnef": files.tnef("A", {(0x1009, 0x102): b"\x1c\0\0\0\x10\0\0\0MELA\0\0\0\0{\\rtf1 A body.\\par}"}, {"a.txt": b"Attached"}),
        "made.rtf": rb"{\rtf1{\fonttbl{\f1\fcharset204 A;}}\f1 \'cf\u8364?{\footnote B}{\*\annotation C}\trowd\intbl D\cell\row\par}",
        "made.eml": b"From: a@b\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=B\r\n\r\n--B\r\n\r\nText\r\n--B--\r\n",
    }  # fmt: skip


def flipped(data: bytes, chance: random.Random) -> bytes:
    """Return the data with some bytes changed."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 3, 10, 100))):
        changed[chance.randrange(len(changed))] = chance.choice((0, 0xFF, 0x3C, 0x26, chance.randrange(256)))
    return bytes(changed)


def cut(data: bytes, chance: random.Random) -> bytes:
    """Return the data without a part."""
    start, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    return data[:start] + data[end:]


def repeated(data: bytes, chance: random.Random) -> bytes:
    """Return the data with a part of it repeated."""
    start = chance.randrange(len(data))
    part = data[start : start + chance.choice((1, 16, 256))]
    return data[:start] + part * chance.choice((2, 50, 2000)) + data[start:]


MUTATIONS = (flipped, cut, repeated)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return a damaged file. Of a ZIP file, often an entry is damaged and packed again, so that readers get to see it."""
    change: Callable[[bytes, random.Random], bytes] = chance.choice(MUTATIONS)
    if not data.startswith(b"PK") or chance.random() < 0.3:
        return change(data, chance)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as packed, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        names = [name for name in packed.namelist() if packed.getinfo(name).file_size]
        chosen = chance.choice([name for name in names if name.endswith((".xml", ".rels", ".opf", ".xhtml"))] or names)
        for name in packed.namelist():
            content = packed.read(name)
            made.writestr(name, change(content, chance) if name == chosen else content)
    return out.getvalue()


def outcomes(damaged: list[tuple[str, bytes]], folder: Path) -> list[str]:
    """Convert files, and return how each conversion ended.

    A process forked from this one, which has imported the readers' libraries, converts one file after the other. If it ends
    early, the file that it was at has crashed, and another process converts the rest.
    """
    ended: list[str] = []
    while len(ended) < len(damaged):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            with os.fdopen(writer, "w") as results:
                for name, data in damaged[len(ended) :]:
                    results.write(converted(name, data, folder) + "\n")
                    results.flush()
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb", buffering=0) as results:
            lines = Lines(results)
            while len(ended) < len(damaged) and (line := lines.next(WALL)) is not None:
                ended.append(line)
        if not lines.is_closed:
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if len(ended) < len(damaged):
            errors = (folder / "errors").read_text(errors="replace")
            last = (errors.strip().splitlines() or [""])[-1]
            if code == -signal.SIGABRT and "memory allocation of" in errors:
                ended.append("out_of_memory")  # how a library in Rust ends at the limit
            else:
                why = f"exit code {code}, {last[:160]}" if lines.is_closed else f"no end within {WALL} seconds"
                ended.append(f"{CRASH}: {why}")
    return ended


class Lines:
    """The lines that a process writes to a pipe."""

    def __init__(self, stream: io.RawIOBase) -> None:
        self._stream = stream
        self._data = b""
        self.is_closed = False

    def next(self, seconds: float) -> str | None:
        """Return the next line; None if the process has ended, or has not written one in so many seconds."""
        while b"\n" not in self._data:
            if not select.select([self._stream], [], [], seconds)[0]:
                return None
            data = self._stream.read(1 << 16)
            if not data:
                self.is_closed = True
                return None
            self._data += data
        line, _, self._data = self._data.partition(b"\n")
        return line.decode()


def converted(name: str, data: bytes, folder: Path) -> str:
    """Convert a file in this process, under the limits of a conversion. Return how it ended."""
    kind = catalogue.detect(data[: catalogue.HEAD], name)
    if kind is None:
        return "text"
    written = folder / "text"
    written.unlink(missing_ok=True)
    (folder / "file").write_bytes(data)
    limits = conversion.Limits.of(len(data), 1 << 30)
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = math.ceil(used.ru_utime + used.ru_stime) + limits.seconds
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    resource.setrlimit(resource.RLIMIT_AS, (conversion.MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with (folder / "out").open("w") as sys.stdout, (folder / "errors").open("w") as sys.stderr:
            os.dup2(sys.stderr.fileno(), 2)
            code = worker.convert(kind, folder / "file", written, limits.text, None)
    except BaseException as error:
        return f"{CRASH}: {type(error).__name__}: {error}".replace("\n", " ")[:200]
    if code == 0 and written.stat().st_size > limits.text + (1 << 20):
        return f"{CRASH}: {written.stat().st_size} bytes of text"
    return conversion.ExitCode(code).name.lower() if code else "converted"


def fuzz(count: int, seed: int, keep: Path) -> collections.Counter[str]:
    """Return how the conversions of `count` damaged files ended. `keep`: a folder for those that crashed and for the progress."""
    keep.mkdir(parents=True, exist_ok=True)
    whole, progress = samples(), keep / f"progress-{seed}.json"
    done, known = json.loads(progress.read_text()) if progress.exists() else (0, {})
    counted = collections.Counter[str](known)
    with tempfile.TemporaryDirectory() as folder:
        ended = outcomes(list(whole.items()), Path(folder))  # imports nothing here: each child does
        assert [name for name, how in zip(whole, ended, strict=True) if how != "converted"] == [DRAWN]
        for first in range(done, count, BATCH):
            numbers = range(first, min(first + BATCH, count))
            damaged = []
            for number in numbers:
                chance = random.Random(f"{seed}:{number}")
                name = chance.choice(list(whole))
                damaged.append((name, mutated(whole[name], chance)))
            for number, (name, data), ended in zip(numbers, damaged, outcomes(damaged, Path(folder)), strict=True):
                counted[ended if not ended.startswith(CRASH) else f"{Path(name).suffix} {ended}"] += 1
                if ended.startswith(CRASH):
                    (keep / f"{seed}-{number}-{name}").write_bytes(data)
            progress.write_text(json.dumps([numbers.stop, counted]))
    return counted


@pytest.mark.long
def test_damaged_files_end_a_conversion_in_an_orderly_way() -> None:
    # In a process without threads, as it forks.
    command = [sys.executable, "-m", "tests.server.engine.documents.formats.test_fuzz", "60", "1"]
    tried = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=250, check=True)
    assert "converted" in tried.stdout
    assert CRASH not in tried.stdout.partition("files that")[0]


if __name__ == "__main__":
    for reader in sorted({format.reader for format in catalogue.FORMATS.values()} - {"legacy"}):
        __import__(f"everlong_server.engine.documents.formats.readers.{reader}")
    wanted, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    kept = Path(sys.argv[3] if len(sys.argv) > 3 else tempfile.mkdtemp(prefix="fuzz-"))
    for ended, number in fuzz(wanted, seed, kept).most_common():
        print(f"{number:7} {ended}")
    print(f"files that crashed are in {kept}")
