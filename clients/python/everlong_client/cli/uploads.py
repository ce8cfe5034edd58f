"""`Uploads`: the documents that one command uploads and, unless they are to be kept, deletes at the end."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from everlong_client.cli.ingest import ingest_files
from everlong_client.cli.originals import Originals
from everlong_client.cli.terminal import note_what_is_left, print_error
from everlong_client.client import Everlong
from everlong_client.errors import EverlongError, NotFoundError
from everlong_client.types.document import Document


class Uploads:
    """`documents`: those that were uploaded, also if one of the files after them failed. `originals`: their local files."""

    def __init__(self, client: Everlong, *, keep: bool = False) -> None:
        """`keep`: the documents are to stay on the server."""
        self._client = client
        self._keep = keep
        self.documents: list[Document] = []
        self.originals = Originals()

    def upload(self, files: Sequence[Path]) -> bool:
        """Upload the files and wait until the server has read them. Return False if a file could not be uploaded or read."""
        return None not in list(ingest_files(self._client, files, on_upload=self._add, kept=self._keep))

    def _add(self, document: Document, file: Path) -> None:
        self.documents.append(document)
        self.originals.add(document, file)

    def delete(self, url: str, session: str | None = None) -> bool:
        """Delete the session and the documents from the server at `url`.

        If that fails, writes the error and how to delete what is left, and returns False.
        """
        sessions, documents = [session] if session is not None else [], [*self.documents]
        try:
            while sessions:
                with suppress(NotFoundError):  # deleted by somebody else in the meantime
                    self._client.sessions.delete(sessions[0])
                del sessions[0]
            while documents:
                with suppress(NotFoundError):
                    self._client.documents.delete(documents[0].id)
                del documents[0]
        except EverlongError as error:
            print_error(f"what this command created could not be deleted: {error}")
            note_what_is_left(url, None, sessions, documents)
            return False
        return True


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise `SystemExit`, as Ctrl-C raises `KeyboardInterrupt`, so that `finally` blocks run."""
    previous = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _exit(number: int, frame: object) -> None:
    sys.exit(128 + number)
