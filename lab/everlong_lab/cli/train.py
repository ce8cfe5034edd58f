"""`everlong train`: train a memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from everlong_lab.cli.common import DataDir, Device, Threads, reported
from everlong_server.cli.common import ModelsDir, chosen_models_dir, err, fail, out

train = Typer(add_completion=False)


@train.command()
def _train(
    recipe: Annotated[
        str | None, Argument(help="Train this recipe or YAML file; without it, list recipes.", metavar="RECIPE")
    ] = None,
    folder: Annotated[Path | None, Option("--out", help="Write the run to this folder; default: runs/RECIPE.")] = None,
    data: DataDir = Path("data"),
    resume: Annotated[bool, Option("--resume", help="Continue from the folder's checkpoint.")] = False,
    max_minutes: Annotated[float | None, Option(help="Stop after this many minutes, with a checkpoint.")] = None,
    device: Device = "cpu",
    bfloat16: Annotated[
        bool,
        Option("--bfloat16", help="Multiply in bfloat16, on a CPU that has instructions for it. CUDA always does."),
    ] = False,
    threads: Threads = None,
    changes: Annotated[list[str] | None, Option("--set", help="Change the recipe: KEY=VALUE; may be repeated.")] = None,
    models_dir: ModelsDir = None,
) -> None:
    """Train a memory as a recipe describes."""
    import torch

    from everlong_lab.train.console import train as run
    from everlong_lab.train.recipe import load_recipe, recipe_names

    if recipe is None:
        names = recipe_names()
        width = max(map(len, names))
        out.print("\n".join(f"{name:{width}}  {load_recipe(name).description}" for name in names), soft_wrap=True)
        return
    if max_minutes is not None and not max_minutes > 0:
        raise fail(f"--max-minutes={max_minutes:g}: must be greater than 0")
    if threads is not None:
        torch.set_num_threads(threads)
    with reported():
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
