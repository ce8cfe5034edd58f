"""Write the folders of pulled and converted models atomically: a folder appears only when it is complete."""

from __future__ import annotations

from pathlib import Path


def put(scratch: Path, target: Path) -> None:
    """Rename the folder `scratch`, which holds a whole model, to `target`; another process may have done the same before."""
    try:
        scratch.rename(target)
    except OSError:
        if not is_complete(target):
            raise


def is_complete(folder: Path) -> bool:
    """Return whether the folder holds a model, or a LoRA adapter (see `lora`)."""
    return any((folder / file).is_file() for file in ("config.json", "adapter_config.json"))
