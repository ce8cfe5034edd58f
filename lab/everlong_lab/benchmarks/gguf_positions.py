"""Raise the number of positions that a GGUF file declares above that of its training."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from gguf import GGUFReader

_TRAINED = "llama.context_length"


def with_positions(file: Path, positions: int, folder: Path) -> Path:
    """Return `file`, or a copy in `folder` that declares `positions` positions if it has fewer.

    llama.cpp's server refuses longer texts and has no option to allow them. gguf's `gguf_set_metadata` does the same."""
    if _trained(GGUFReader(file))[0] >= positions:
        return file
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / file.name
    shutil.copyfile(file, copy)
    reader = GGUFReader(copy, "r+")
    _trained(reader)[0] = positions
    reader.data.flush()
    return copy


def _trained(reader: GGUFReader) -> Any:
    """Return a view of the number in the file."""
    field = reader.fields[_TRAINED]
    return field.parts[field.data[0]]
