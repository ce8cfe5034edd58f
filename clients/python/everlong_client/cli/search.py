"""`everlong search`: the passages of files and documents that fit a query."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from everlong_client.cli.answer import place
from everlong_client.cli.terminal import print_note, write
from everlong_client.cli.uploads import Uploads, exit_on_sigterm
from everlong_client.client import Everlong

_ID = "doc_"


class Searching:
    """Searches documents and files, and writes passages to standard output.

    The files are uploaded, and deleted from the server at the end, also after Ctrl-C and SIGTERM.
    """

    def __init__(self, client: Everlong, url: str, *, as_json: bool) -> None:
        """`url`: the address of the client's server."""
        self._client = client
        self._url = url
        self._as_json = as_json
        self._uploads = Uploads(client)

    def run(self, names: Sequence[str], query: str, limit: int | None) -> bool:
        """Search the named files and documents. Return False if a file could not be uploaded or read, or if one could not be deleted at
        the end."""
        ids = [name for name in names if name.startswith(_ID) and not Path(name).exists()]
        files = [Path(name) for name in names if name not in ids]
        with exit_on_sigterm():
            try:
                if done := self._uploads.upload(files):
                    self._show([*ids, *(document.id for document in self._uploads.documents)], query, limit)
            finally:
                deleted = self._uploads.delete(self._url)
        return done and deleted

    def _show(self, documents: Sequence[str], query: str, limit: int | None) -> None:
        found = self._client.search(query, documents, limit=limit)
        if self._as_json:
            lines = [self._uploads.originals.line(each.document, each.start_byte, each.text) for each in found]
            shown = [asdict(each) | {"line": line} for each, line in zip(found, lines, strict=True)]
            write(json.dumps(shown, ensure_ascii=False) + "\n")
            return
        for number, passage in enumerate(found):
            where = place(passage, passage.filename, self._uploads.originals)
            write(f"{'' if number == 0 else chr(10)}{where} ({passage.score:.2f})\n{passage.text.strip()}\n")
        if not found:
            print_note("the search found no passage")
