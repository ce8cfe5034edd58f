"""Options and output that the commands of everlong-lab share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from everlong_client.cli.uploads import exit_on_sigterm
from everlong_lab.harness.progress import Progress
from everlong_server.cli.common import chosen_models_dir, err, fail, out

if TYPE_CHECKING:
    from everlong_lab.harness.report import Report
    from everlong_models.model import Model


def writable(file: Path | None) -> Path | None:
    """Check that an option's file can be written, before hours are spent on its content."""
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


DataDir = Annotated[
    Path, Option(envvar="EVERLONG_DATA", help="Find data sets in this folder, as folders or .tar.xz files.")
]
LabelledFile = Annotated[
    Path, Argument(help="JSON lines of questions: text, q, a and quote, as in docs/research/data.md.", metavar="FILE")
]
TextFolders = Annotated[list[Path], Option(help="Find the texts in this folder. Repeat it for more folders.")]
MoreData = Annotated[
    Path | None, Option(envvar="EVERLONG_DATA", help="Also use FairytaleQA and SQuAD, from this folder.")
]
ModelOption = Annotated[str | None, Option(help="Measure this model; default: the packaged backbone.")]
MemoryOption = Annotated[str | None, Option(help="Use this memory around a backbone; default: window.")]
Output = Annotated[Path | None, Option("--json", help="Write the figures to this file.", callback=writable)]
Device = Annotated[str, Option(help="Run on cpu, cuda, ….")]
Seed = Annotated[int, Option(help="Choose the sample by this seed.", min=0)]
Threads = Annotated[int | None, Option(help="Use this many CPU threads.", min=1)]


@contextmanager
def reported(*kinds: type[Exception]) -> Iterator[None]:
    """End the command with a message for an `EverlongModelError` or an error of `kinds` in the block."""
    from everlong_models.errors import EverlongModelError

    shown: tuple[type[Exception], ...] = (EverlongModelError, *kinds)
    try:
        yield
    except shown as error:
        raise fail(str(error)) from None


def progress(message: str) -> None:
    """Show a line of progress."""
    err.print(f"[dim]{message}[/]")


@contextmanager
def progress_bar(what: str = "") -> Iterator[Progress]:
    """Show a bar during the block."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err) as bar:
        shown = bar.add_task(what, total=1.0)
        yield lambda what, done: bar.update(shown, description=escape(what[:60]), completed=done)


def load(
    name: str | None,
    models_dir: Path | None,
    threads: int | None,
    *,
    memory: str | None = None,
    options: dict[str, Any] | None = None,
    device: str = "cpu",
) -> Model:
    """Load a model by name or folder, by default the packaged backbone, with `memory` around a backbone.

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
        options=options,
        device=device,
        progress=err.print,
    )


def options_of(given: str | None) -> dict[str, Any]:
    """Parse options of a memory, a JSON object."""
    if given is None:
        return {}
    try:
        options = json.loads(given)
    except json.JSONDecodeError as error:
        raise fail(f"--options: {given!r} is not JSON: {error}") from None
    if not isinstance(options, dict):
        raise fail(f"--options: {given!r}; must be a JSON object")
    return options


def sizes(given: str, option: str, *, least: int = 100) -> tuple[int, ...]:
    """Parse numbers separated by commas; return them sorted, without duplicates."""
    sizes = tuple(int(size) if size.strip().isdecimal() else 0 for size in given.split(","))
    if not all(size >= least for size in sizes):
        raise fail(f"{option}: {given!r}; must be numbers of at least {least}, separated by commas")
    return tuple(sorted(set(sizes)))


def names_of(given: str, known: Collection[str], option: str, *, none: bool = False) -> tuple[str, ...]:
    """Parse names separated by commas, all of which must be `known`. `none`: allow none."""
    names = tuple(name.strip() for name in given.split(",") if name.strip())
    if unknown := [name for name in names if name not in known]:
        raise fail(f"{option}: unknown name {unknown[0]!r}; choose from {', '.join(known)}")
    if not (names or none):
        raise fail(f"{option}: {given!r} has no names; choose from {', '.join(known)}")
    return names


def command() -> str:
    """Return the command as it was typed."""
    return "everlong " + " ".join(sys.argv[1:])


def write(document: dict[str, Any], output: Path | None) -> None:
    """Write figures as JSON to `output`, if given."""
    if output is not None:
        try:
            output.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        except OSError as error:
            raise fail(f"cannot write {output}: {error}") from None
        err.print(f"written to {output}")


def show(
    title: str, rows: list[dict[str, Any]], output: Path | None, *, notes: Sequence[str] = (), **more: Any
) -> None:
    """Print `rows` as a table, and `notes`; write them to `output` with the command, the machine and `more`."""
    from everlong_lab.harness.report import machine

    if not rows:
        raise fail(f"{title}: nothing was measured")
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{value:,.4g}" if isinstance(value, float) else f"{value}" for value in row.values()))
    out.print(table)
    for note in notes:
        out.print(f"[dim]{note}[/]")
    more |= {"notes": notes} if notes else {}
    write({"command": command(), "machine": machine(), "rows": rows, **more}, output)


def measured(measure: Callable[[], Report], output: Path | None) -> Report:
    """Measure, show and write a report. An `EverlongModelError` becomes an error message. SIGTERM also ends the servers that it started."""
    with reported(), exit_on_sigterm():
        report = measure()
    report.show(out)
    write(report.document(command=command()), output)
    return report
