"""Reads pictures (PNG, JPEG, TIFF) by recognising their text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from PIL import Image, ImageOps

from everlong_server.engine.documents.formats.blocks import Block, Notes, Unreadable


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the text of each picture of the file. A TIFF may have several, which are its pages."""
    try:
        picture = Image.open(file, formats=("PNG", "JPEG", "TIFF"))
    except OSError as error:  # the library's own have no number
        if error.errno is not None:
            raise
        raise Unreadable("the picture is damaged") from None
    except Image.DecompressionBombError as error:
        raise Unreadable(f"the picture cannot be read: {error}") from None
    with picture:
        pages = getattr(picture, "n_frames", 1)
        for number in range(pages):
            notes.on_page(number + 1, pages)
            picture.seek(number)
            yield Block(notes.recognised(lambda: ImageOps.exif_transpose(picture), page=number + 1), page=number + 1)
