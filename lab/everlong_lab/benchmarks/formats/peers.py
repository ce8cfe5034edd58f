"""Readers to compare: the server's own, and libraries, which may be installed for another Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from everlong_server.engine.documents.formats import conversion
from everlong_server.engine.documents.text_checker import Declared, TextChecker
from everlong_server.errors import ServerError

OURS = "everlong"
_LIBRARIES = {
    "kreuzberg": """
import kreuzberg
config = kreuzberg.ExtractionConfig(use_cache=False, concurrency=kreuzberg.ConcurrencyConfig(max_threads=1))
text = kreuzberg.extract_file_sync(file, config=config).content
""",
    "markitdown": """
import markitdown
text = markitdown.MarkItDown().convert(file).text_content
""",
    "pandoc": """
import pypandoc
text = pypandoc.convert_file(file, "plain", extra_args=["--wrap=none"])
""",
    "docling": """
from docling.document_converter import DocumentConverter
text = DocumentConverter().convert(file).document.export_to_markdown()
""",
}
"""Programs that convert `file` to `text` with the defaults of a library."""
READERS = (OURS, *_LIBRARIES)
_PROGRAM = """
import pathlib, sys
file = sys.argv[1]
{}
pathlib.Path(sys.argv[2]).write_bytes(text.encode("utf-8", "replace"))
"""
_WAIT = """
import os, sys
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(child, 0)
print()
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""Runs a command from a small process: the largest resident size of a process includes that of its parent, before `exec`."""
_STORED = 'text = open(file, encoding="utf-8-sig").read()'
_SECONDS = 600
"""Time on a clock after which a conversion counts as failed."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A conversion in a process of its own: CPU seconds, largest resident size in MB, and the text; None if there is none."""

    seconds: float
    memory: float
    text: str | None


def convert(file: Path, reader: str, python: str = sys.executable) -> Conversion:
    """Convert a file with one of `READERS`. `python`: the interpreter that has the library."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text")
        if reader == OURS:
            try:
                kind = _kind(file)
            except ServerError:  # the server refuses it
                return Conversion(0, 0, None)
            if kind is None:  # the server stores it as it is
                return _measured([sys.executable, "-c", _PROGRAM.format(_STORED), str(file), str(text)], text)
            limits = conversion.Limits.of(file.stat().st_size, 1 << 30)
            return _measured(conversion.command(file, kind, text, limits), text)
        return _measured([python, "-c", _PROGRAM.format(_LIBRARIES[reader]), str(file), str(text)], text)


def has(reader: str, python: str = sys.executable) -> bool:
    """Whether a reader is installed."""
    modules = {"pandoc": "pypandoc"}
    find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({modules.get(reader, reader)!r}) is None)"
    return reader == OURS or subprocess.run([python, "-c", find], check=False).returncode == 0


def _kind(file: Path) -> str | None:
    """Return the kind of a file, as the server decides it when the file is uploaded; None for text in UTF-8.

    Raises `ServerError` for a file that the server refuses.
    """
    checker = TextChecker(file.stat().st_size, Declared(file.name))
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            checker.feed(block)
    checker.finish()
    return checker.foreign


def _measured(command: Sequence[str], text: Path) -> Conversion:
    with tempfile.TemporaryFile("w+") as out:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with subprocess.Popen(
            [sys.executable, "-S", "-c", _WAIT, *command], stdout=out, stderr=subprocess.DEVNULL, env=environment,
            start_new_session=True,
        ) as ran:  # fmt: skip
            try:
                ran.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                return Conversion(_SECONDS, 0, None)
            finally:
                if ran.poll() is None:
                    os.killpg(ran.pid, signal.SIGKILL)  # also the conversion
        out.seek(0)
        seconds, memory = map(float, out.read().splitlines()[-1].split())
    is_read = ran.returncode == 0 and text.exists()
    found = text.read_text(encoding="utf-8", errors="replace") if is_read else ""
    return Conversion(seconds, memory / 1000, found if found.strip() else None)
