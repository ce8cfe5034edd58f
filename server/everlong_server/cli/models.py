"""`everlong models`: list, download and locate models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from everlong_server.cli.common import ModelsDir, chosen_models_dir, fail, out, say, settings_or_fail

if TYPE_CHECKING:
    from everlong_models.catalogue.entry import Entry

models = typer.Typer(add_completion=False, no_args_is_help=True, help="List, download and locate models.")


@models.command("list")
def list_models(
    models_dir: ModelsDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array instead of a table.")] = False,
) -> None:
    """List the models by name: their size and licence, and where they are on this machine."""
    folder = chosen_models_dir(models_dir)
    rows = [*_known(folder), *_shipped(folder), *_stored(folder)]
    default, others = _default(folder), _others(folder)
    for row in rows:
        row["default"] = row["name"] == default
        row["on_demand"] = row["name"] in others
    if as_json:
        out.print_json(json.dumps(rows))
        return
    table = Table("model", "parameters", "download", "memory", "licence", "here")
    for row in rows:
        table.add_row(
            escape(row["name"])
            + " (adapter)" * row["adapter"]
            + " (default here)" * row["default"]
            + " (on demand)" * row["on_demand"],
            f"{row['parameters'] / 1e6:,.0f} million" if row["parameters"] else "",
            f"{row['bytes'] / 1e6:,.1f} MB",
            f"{row['memory_bytes'] / 1e9:.1f} GB" if row["memory_bytes"] else "",
            row["licence"] or "",
            escape(row["path"] or f"no: everlong models pull {row['name']}"),
        )
    out.print(table)


def _default(folder: Path) -> str:
    from everlong_server.process.served_model import default_models

    return default_models(settings_or_fail().model_copy(update={"models_dir": folder, "memory": None}))[0]


def _others(folder: Path) -> set[str]:
    """Return the names of the models that a server loads on demand."""
    from everlong_models.naming import model_name

    return {model_name(given, folder) for given in settings_or_fail().models}


def _row(name: str, path: Path | None, size: int, entry: Entry | None = None) -> dict[str, Any]:
    """Return what a model is listed with. `entry`: its backbone in the catalogue, if that has one."""
    from everlong_models.catalogue.machine import memory_needed

    return {
        "name": name,
        "adapter": False,
        "here": path is not None,
        "path": str(path) if path else None,
        "bytes": size,
        "memory_bytes": memory_needed(entry.bytes) if entry else None,
        "parameters": entry.parameters if entry else None,
        "architecture": entry.architecture if entry else None,
        "licence": entry.licence if entry else None,
        "sources": [source.model_dump(include={"hub", "wheels"}) for source in entry.sources] if entry else [],
    }


def _known(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the models of the catalogue."""
    from everlong_models.catalogue.entry import entries
    from everlong_models.catalogue.pull import locate

    for name, entry in entries().items():
        yield _row(name, locate(entry, folder), entry.bytes, entry)


def _shipped(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the trained models of the package and of the folder. One is here if its backbone is, too."""
    from everlong_models.catalogue.entry import TRAINED, entries
    from everlong_models.catalogue.pull import locate
    from everlong_models.weights import MANIFEST, read_manifest

    for manifest in sorted([*TRAINED.glob(f"*/{MANIFEST}"), *folder.glob(f"[!.]*/{MANIFEST}")]):
        trained = manifest.parent
        backbone = entries().get(read_manifest(trained).backbone or "")
        here = backbone is None or locate(backbone, folder) is not None
        size = _size(trained) + (0 if here or backbone is None else backbone.bytes)
        yield _row(trained.name, trained if here else None, size, backbone)


def _stored(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the folders in Hugging Face's format, which were pulled from the hub or converted. Some are adapters."""
    from everlong_models.backbone.folders import is_complete

    for stored in sorted(each for each in folder.glob("[!.]*") if is_complete(each)):
        row = _row(stored.name.replace("--", "/"), stored, _size(stored))
        yield row | {"adapter": not (stored / "config.json").is_file()}


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@models.command()
def pull(
    name: Annotated[
        str,
        typer.Argument(
            help="A name that `everlong models list` shows, ORGANISATION/NAME of the hub, or BACKBONE+ADAPTER.",
            metavar="NAME",
        ),
    ],
    models_dir: ModelsDir = None,
) -> None:
    """Download a model, unless this machine has it. After an interruption, run the command again: it continues."""
    from everlong_models import EverlongModelError
    from everlong_models.catalogue.pull import pull as pull_entry
    from everlong_models.lora import find_adapter
    from everlong_models.naming import catalogue_entry, find_model, split_adapter

    folder = chosen_models_dir(models_dir)
    name, adapter = split_adapter(name, folder)
    try:
        if (entry := catalogue_entry(name, folder)) is None:
            found = _find(name, models_dir)
        else:
            file = pull_entry(entry, folder, say)
            found = file if entry.name == name else find_model(name, folder)
        out.print(str(found), markup=False, soft_wrap=True)
        if adapter is not None:
            if "/" in adapter and not Path(adapter).expanduser().is_dir():
                _find(adapter, models_dir)
            out.print(str(find_adapter(adapter, folder)), markup=False, soft_wrap=True)
    except EverlongModelError as error:
        raise fail(str(error)) from None


@models.command()
def path(
    name: Annotated[str, typer.Argument(help="A model's name, or ORGANISATION/NAME of the hub.", metavar="NAME")],
    models_dir: ModelsDir = None,
) -> None:
    """Print the folder of a model or a backbone. Downloads or converts the backbone if necessary."""
    out.print(str(_find(name, models_dir)), markup=False, soft_wrap=True)


def _find(name: str, models_dir: Path | None) -> Path:
    from everlong_models import EverlongModelError
    from everlong_models.backbone.loading import find_backbone
    from everlong_models.naming import find_model
    from everlong_models.weights import MANIFEST

    if ((folder := find_model(name, chosen_models_dir(models_dir))) / MANIFEST).is_file():
        return folder
    try:
        return find_backbone(name, models_dir=chosen_models_dir(models_dir), progress=say)
    except EverlongModelError as error:
        raise fail(str(error)) from None
