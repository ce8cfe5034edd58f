"""`everlong search`: the passages of files and documents that fit a query."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from everlong_client.cli.citations import place
from everlong_client.cli.ingest import ingest_files
from everlong_client.cli.originals import Originals
from everlong_client.cli.terminal import print_note, write
from everlong_client.client import Everlong
from everlong_client.errors import NotFoundError
from everlong_client.types.document import Document

_ID = "doc_"


class Searching:
    """Searches documents and files, which are uploaded and deleted at the end, and writes passages to standard output."""

    def __init__(self, client: Everlong, *, as_json: bool) -> None:
        self._client = client
        self._as_json = as_json
        self._uploaded: list[Document] = []
        self._originals = Originals()

    def run(self, names: Sequence[str], query: str, limit: int | None) -> bool:
        """Search the named files and documents. Return False if a file could not be uploaded or read."""
        ids = [name for name in names if name.startswith(_ID) and not Path(name).exists()]
        files = [Path(name) for name in names if name not in ids]
        try:
            for file, document in zip(files, ingest_files(self._client, files), strict=True):
                if document is not None:
                    self._uploaded.append(document)
                    self._originals.add(document, file)
            if len(self._uploaded) < len(files):
                return False
            self._show([*ids, *(document.id for document in self._uploaded)], query, limit)
        finally:
            for document in self._uploaded:
                try:
                    self._client.documents.delete(document.id)
                except NotFoundError:  # deleted by somebody else in the meantime
                    continue
        return True

    def _show(self, documents: Sequence[str], query: str, limit: int | None) -> None:
        found = self._client.search(query, documents, limit=limit)
        if self._as_json:
            lines = [self._originals.line(each.document, each.start_byte, each.text) for each in found]
            shown = [asdict(each) | {"line": line} for each, line in zip(found, lines, strict=True)]
            write(json.dumps(shown, ensure_ascii=False) + "\n")
            return
        for number, passage in enumerate(found):
            where = place(passage, passage.filename, self._originals)
            write(f"{'' if number == 0 else chr(10)}{where} ({passage.score:.2f})\n{passage.text.strip()}\n")
        if not found:
            print_note("the search found no passage")
