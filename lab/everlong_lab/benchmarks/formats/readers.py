"""`everlong bench readers`: which words of files the server's readers and libraries find."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everlong_lab.benchmarks.formats import peers
from everlong_lab.harness.report import Report

_SIGNS = re.compile(r"[\W_]+")
EXPECTED = "expected.jsonl"
"""For each file: its name ("file"), words that its text has ("holds") and must not have ("lacks"), and "expect": "ready" or "error"."""


def run(
    folder: Path, *, readers: Sequence[str], python: str = sys.executable, progress: Callable[[str], None]
) -> Report:
    """Convert the files that the folder's `EXPECTED` lists with each reader. `python`: the interpreter that has the libraries."""
    cases = [json.loads(line) for line in (folder / EXPECTED).read_text(encoding="utf-8").splitlines()]
    counts, rows = Counter[str](), []
    for case in cases:
        row: dict[str, Any] = {"file": case["file"]}
        for reader in readers:
            row[reader] = verdict(case, peers.convert(folder / case["file"], reader, python).text)
            counts[reader] += row[reader] == "yes"
        rows.append(row)
        progress(f"{case['file']}: {row}")
    rows.append({"file": f"as expected, of {len(cases)}"} | {reader: counts[reader] for reader in readers})
    notes = [
        "yes: all expected words are in the text and none of those that must not be; n/m: n of m expected words",
        "words are compared without signs between them, as libraries write tables and headings differently",
    ]
    return Report("readers", rows, [], notes)


def verdict(case: Mapping[str, Any], text: str | None) -> str:
    """Return "yes" if a text is as expected, else what is wrong with it. `text`: None if the file was refused."""
    if case.get("expect", "ready") == "error":
        return "yes" if text is None else "read"
    if text is None:
        return "no text"
    flat = _words(text)
    found = [words for words in case["holds"] if _words(words) in flat]
    wrong = [words for words in case["lacks"] if words in " ".join(text.split())]
    if len(found) < len(case["holds"]):
        return f"{len(found)}/{len(case['holds'])}"
    return "wrong words" if wrong else "yes"


def _words(text: str) -> str:
    """Return the words of a text between single spaces; signs alone stay as they are."""
    words = " ".join(_SIGNS.sub(" ", text).split())
    return f" {words} " if words else text
