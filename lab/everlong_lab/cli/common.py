"""What the laboratory's commands share: options of more than one, how figures are shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from everlong_server.cli.common import chosen_models_dir, err, fail, out

if TYPE_CHECKING:
    from everlong_models.model import Model


def writable(file: Path | None) -> Path | None:
    """An option's file, once it is known that it can be written: before hours are spent on what it is to hold."""
    if file is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            new = not file.exists()
            file.open("ab").close()
            if new:
                file.unlink()
        except OSError as error:
            raise fail(f"cannot write {file}: {error}") from None
    return file


DataDir = Annotated[Path, typer.Option(envvar="EVERLONG_DATA", help="folder of data sets, packed or not")]
Output = Annotated[Path | None, typer.Option("--json", help="write the figures here, for programs", callback=writable)]
Threads = Annotated[int | None, typer.Option(help="CPU threads", min=1)]


def load(
    name: str | None, models_dir: Path | None, threads: int | None, *, memory: str | None = None, device: str = "cpu"
) -> Model:
    """The model of that name or folder, default the backbone that comes with the package; `memory`: around a backbone.

    Raises `EverlongModelError`.
    """
    import torch

    from everlong_models.backbone.loading import DEFAULT_BACKBONE
    from everlong_models.model import load_model

    if threads is not None:
        torch.set_num_threads(threads)
    return load_model(
        name or DEFAULT_BACKBONE,
        models_dir=chosen_models_dir(models_dir),
        memory=memory,
        device=device,
        progress=err.print,
    )


def sizes(given: str, option: str, *, least: int = 100) -> tuple[int, ...]:
    """Numbers with commas between them, each of them once, in order."""
    sizes = tuple(int(size) if size.strip().isdecimal() else 0 for size in given.split(","))
    if not all(size >= least for size in sizes):
        raise fail(f"{option}: {given!r}; must be numbers of at least {least}, with commas between them")
    return tuple(sorted(set(sizes)))


def names_of(given: str, known: Collection[str], option: str, *, none: bool = False) -> tuple[str, ...]:
    """Names with commas between them."""
    names = tuple(name.strip() for name in given.split(",") if name.strip())
    if unknown := [name for name in names if name not in known]:
        raise fail(f"{option}: no {unknown[0]!r}; there are {', '.join(known)}")
    if not (names or none):
        raise fail(f"{option}: {given!r} names none of {', '.join(known)}")
    return names


def command() -> str:
    """What was typed."""
    return "everlong " + " ".join(sys.argv[1:])


def write(document: dict[str, Any], output: Path | None) -> None:
    """Writes figures for programs, if they are wanted."""
    if output is not None:
        try:
            output.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        except OSError as error:
            raise fail(f"cannot write {output}: {error}") from None
        err.print(f"written to {output}")


def show(title: str, rows: list[dict[str, Any]], output: Path | None, **more: Any) -> None:
    """Prints `rows` as a table; writes them to `output`, with the command, the machine and `more`."""
    from everlong_lab.harness.report import machine

    if not rows:
        raise fail(f"{title}: nothing was measured")
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{value:,.4g}" if isinstance(value, float) else f"{value}" for value in row.values()))
    out.print(table)
    write({"command": command(), "machine": machine(), "rows": rows, **more}, output)
