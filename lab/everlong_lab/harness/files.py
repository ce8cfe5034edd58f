"""`replacing`: writes a file that appears once it is complete."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yield the path of a new file, which takes the place of `file` at the end of the block. After an exception, `file` is as it was."""
    part = file.with_name(f".{file.name}.part")
    yield part
    part.replace(file)
