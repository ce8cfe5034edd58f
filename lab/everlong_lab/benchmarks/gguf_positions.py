"""A GGUF that says that its weights know more positions than they were trained on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from gguf import GGUFReader

_TRAINED = "llama.context_length"


def with_positions(file: Path, positions: int, folder: Path) -> Path:
    """`file`, or a copy in `folder` with so many `positions` if it has fewer: llama.cpp's server refuses what is longer, and
    takes no option for it. As gguf's own `gguf_set_metadata` script does it."""
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
    """A view of one number in the file."""
    field = reader.fields[_TRAINED]
    return field.parts[field.data[0]]
