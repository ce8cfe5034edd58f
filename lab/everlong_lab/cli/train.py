"""`everlong train`: train a memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from everlong_lab.cli.common import DataDir, Threads
from everlong_server.cli.common import ModelsDir, chosen_models_dir, err, fail, out

train = typer.Typer(add_completion=False)


@train.command()
def _train(
    recipe: Annotated[
        str | None, typer.Argument(help="Train this recipe, by name or YAML file; without it, list the recipes.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Write the run to this folder; default runs/RECIPE.")
    ] = None,
    data: DataDir = Path("data"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the folder's checkpoint.")] = False,
    max_minutes: Annotated[float | None, typer.Option(help="Stop after so many minutes, with a checkpoint.")] = None,
    device: Annotated[str, typer.Option(help="Run on cpu, cuda, ….")] = "cpu",
    bfloat16: Annotated[
        bool,
        typer.Option("--bfloat16", help="Multiply in bfloat16, as always on CUDA; for CPUs with instructions for it."),
    ] = False,
    threads: Threads = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change the recipe: KEY=VALUE, with dots in KEY; may be repeated.")
    ] = None,
    models_dir: ModelsDir = None,
) -> None:
    """Train a memory by a recipe."""
    import torch

    from everlong_lab.train.console import train as run
    from everlong_lab.train.recipe import load_recipe, recipe_names
    from everlong_models import EverlongModelError

    if recipe is None:
        names = recipe_names()
        width = max(map(len, names))
        out.print("\n".join(f"{name:{width}}  {load_recipe(name).description}" for name in names), soft_wrap=True)
        return
    if max_minutes is not None and not max_minutes > 0:
        raise fail(f"--max-minutes={max_minutes:g}: must be greater than 0")
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        run(
            load_recipe(recipe, changes or ()),
            folder or Path("runs") / Path(recipe).stem,
            data=data,
            models_dir=chosen_models_dir(models_dir),
            device=device,
            resume=resume,
            bfloat16=bfloat16,
            max_minutes=max_minutes,
            console=err,
        )
    except EverlongModelError as error:
        raise fail(str(error)) from None
