"""Names of models: to folders, to names that requests use, and `BACKBONE+ADAPTER` to its two parts."""

from __future__ import annotations

from pathlib import Path

from everlong_models.catalogue.entry import TRAINED, Entry, entries
from everlong_models.lora import adapter_folder
from everlong_models.weights import MANIFEST, read_manifest


def find_model(name: str, models_dir: Path) -> Path:
    """Resolve a model name to a folder: a path, a model in `models_dir`, or one shipped with the package.

    Does not check that the folder exists.
    """
    folder = Path(name).expanduser()
    models = [parent / name for parent in (models_dir, TRAINED) if (parent / name / MANIFEST).is_file()]
    return folder if folder.exists() or not models else models[0]


def split_adapter(name: str, models_dir: Path) -> tuple[str, str | None]:
    """Split `BACKBONE+ADAPTER`. A name without a plus, or of an existing file or folder, has no adapter.

    If there are several pluses, the name is split where the right part is an existing adapter and the left part an existing backbone. If
    there is no such plus: at one with an existing adapter, else at one with an existing backbone, else at the last one.
    """
    parts = name.split("+")
    splits = [("+".join(parts[:n]), "+".join(parts[n:])) for n in range(len(parts) - 1, 0, -1)]
    splits = [(backbone, adapter) for backbone, adapter in splits if backbone and adapter]
    if not splits or find_model(name, models_dir).exists():
        return name, None

    def found(split: tuple[str, str]) -> tuple[bool, bool]:
        backbone, adapter = split
        here = backbone in entries() or any(
            folder.exists() for folder in (find_model(backbone, models_dir), models_dir / backbone.replace("/", "--"))
        )
        return adapter_folder(adapter, models_dir) is not None, here

    return max(splits, key=found)  # the last plus, if none of them is better


def model_name(name: str, models_dir: Path) -> str:
    """Return the name of the `Model` that `load_model` makes of `name`."""
    backbone, adapter = split_adapter(name, models_dir)
    if adapter is not None:
        return f"{model_name(backbone, models_dir)}+{display_name(adapter)}"
    folder = find_model(name, models_dir)
    return folder_name(folder) if (folder / MANIFEST).is_file() else display_name(name)


def catalogue_entry(name: str, models_dir: Path) -> Entry | None:
    """Return the catalogue's entry of the model `name`, or of its backbone; None if the catalogue has neither.

    Raises `AdapterError` for a model folder that cannot be read.
    """
    name, _ = split_adapter(name, models_dir)
    folder = find_model(name, models_dir)
    return entries().get((read_manifest(folder).backbone or "") if (folder / MANIFEST).is_file() else name)


def resolve_backbone(folder: Path, name: str | None) -> str | None:
    """Return a backbone's name, or its path if it is a folder relative to the manifest's."""
    return str(folder / name) if name and (folder / name).exists() else name


def display_name(name: str) -> str:
    """Return the name of a path's last part, or another `name` as it is."""
    path = Path(name).expanduser()
    return folder_name(path) if path.exists() else name


def folder_name(path: Path) -> str:
    """Return a folder's name, even if the path is `.` or `..`. A symbolic link keeps its own name."""
    return path.name if path.name not in ("", "..") else path.resolve().name
