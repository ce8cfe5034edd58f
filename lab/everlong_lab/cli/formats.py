"""`everlong bench formats` and `readers`: the readers of file formats, compared with libraries."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from everlong_lab.cli.common import Output, measured, progress
from everlong_server.cli.common import fail

Readers = Annotated[
    str,
    Option("--readers", help="Compare these readers, with commas: everlong, kreuzberg, markitdown, pandoc, docling."),
]
Interpreter = Annotated[str, Option(help="The Python that has the libraries; default: this one.", metavar="PATH")]


def _chosen(names: str, python: str) -> list[str]:
    from everlong_lab.benchmarks.formats import peers

    chosen = names.split(",")
    for name in chosen:
        if name not in peers.READERS:
            raise fail(f"{name}: unknown reader; choose from {', '.join(peers.READERS)}")
        if not peers.has(name, python):
            raise fail(f"{name} is not installed for {python}: install it, or leave it out of --readers")
    return chosen


def formats(
    files: Annotated[list[Path], Argument(help="Convert these files.", metavar="FILE", exists=True, dir_okay=False)],
    compared: Readers = "everlong,kreuzberg",
    python: Interpreter = sys.executable,
    output: Output = None,
) -> None:
    """Measure CPU time and memory of converting files to text, compared with libraries."""
    from everlong_lab.benchmarks.formats import speed

    chosen = _chosen(compared, python)
    measured(lambda: speed.run(files, readers=chosen, python=python, progress=progress), output)


def readers(
    folder: Annotated[
        Path, Argument(help="Folder with files and expected.jsonl.", metavar="FOLDER", exists=True, file_okay=False)
    ],
    compared: Readers = "everlong,kreuzberg",
    python: Interpreter = sys.executable,
    output: Output = None,
) -> None:
    """Compare which words of files the server and libraries find."""
    from everlong_lab.benchmarks.formats import readers as comparison

    chosen = _chosen(compared, python)
    measured(lambda: comparison.run(folder, readers=chosen, python=python, progress=progress), output)
