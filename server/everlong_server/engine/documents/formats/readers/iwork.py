"""Reads files of Apple Pages, Numbers and Keynote: only the preview as a PDF that some of them contain, as their own format is not public."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from everlong_server.engine.documents.formats.blocks import DAMAGED_ENTRY, Block, Notes, Unreadable
from everlong_server.engine.documents.formats.readers.portable import pdf
from everlong_server.engine.documents.formats.zips import open_zip

_WHAT_TO_DO = "export it as PDF, Word, Excel or PowerPoint, and upload that file"
_PREVIEW = "quicklook/preview.pdf"


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the pages of the preview. Raises `Unreadable` if there is none."""
    with open_zip(file, notes) as packed:
        name = next((name for name in packed.namelist() if name.lower().endswith(_PREVIEW)), None)
        try:
            data = None if name is None else packed.read(name)
        except DAMAGED_ENTRY as error:
            raise Unreadable(f"its preview is damaged ({error}): {_WHAT_TO_DO}") from None
    if data is None:
        raise Unreadable(f"it is a file of Apple Pages, Numbers or Keynote: {_WHAT_TO_DO}")
    notes.add("only the preview that the program stored in the file was read; it may be older or have fewer pages")
    with tempfile.TemporaryDirectory() as folder:
        preview = Path(folder, "preview.pdf")
        preview.write_bytes(data)
        yield from pdf.read(preview, notes)
