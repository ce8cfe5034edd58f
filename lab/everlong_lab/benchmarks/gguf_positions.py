"""Positions of a GGUF file: how many it declares, which can be raised, and what one takes in a KV cache."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from gguf import GGUFReader


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
    field = reader.fields[f"{_architecture(reader)}.context_length"]
    return field.parts[field.data[0]]


def position_bytes(file: Path) -> int:
    """Return the bytes of the model's keys and values for one position, in 16 bits."""
    reader = GGUFReader(file)

    def number(name: str) -> int:
        return int(reader.fields[f"{_architecture(reader)}.{name}"].contents())

    heads, key_heads = number("attention.head_count"), number("attention.head_count_kv")
    return number("block_count") * 2 * key_heads * (number("embedding_length") // heads) * 2


def _architecture(reader: GGUFReader) -> str:
    return str(reader.fields["general.architecture"].contents())
