"""`everlong ask`: one question about files, for scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from everlong_client.cli.answer import doubt_lines, end_lines, question_lines, source_lines
from everlong_client.cli.terminal import console, note_what_is_left, print_note, write
from everlong_client.cli.uploads import Uploads, exit_on_sigterm
from everlong_client.client import Everlong
from everlong_client.types.event import TextDelta
from everlong_client.types.message import Message, Sampling


class Asking:
    """Uploads files, asks one question about them and other documents, and writes the answer to standard output.

    With `keep`, the uploaded documents and the session stay on the server. Without it they are deleted at the end, also after Ctrl-C
    and SIGTERM.
    """

    def __init__(self, client: Everlong, url: str, *, as_json: bool, keep: bool) -> None:
        """`url`: the address of the client's server."""
        self._client = client
        self._url = url
        self._as_json = as_json
        self._keep = keep
        self._uploads = Uploads(client, keep=keep)
        self._session: str | None = None

    def run(
        self, files: Sequence[Path], documents: Sequence[str], question: str, model: str | None, sampling: Sampling
    ) -> bool:
        """Ask the question about the documents, then the files. Return False if a file could not be uploaded or read, or if something
        could not be deleted at the end."""
        names = {id: self._client.documents.get(id).filename for id in documents}
        with exit_on_sigterm():
            try:
                done = self._ask(files, names, question, model, sampling)
            finally:
                ended = self._end()
        return done and ended

    def _ask(
        self, files: Sequence[Path], names: dict[str, str | None], question: str, model: str | None, sampling: Sampling
    ) -> bool:
        if not self._uploads.upload(files):
            return False
        names |= {document.id: document.filename for document in self._uploads.documents}
        self._session = self._client.sessions.create(names, model=model).id
        with console().status("waiting for the session's documents"):
            self._client.sessions.wait(self._session)
        self._show(self._answer(self._session, question, sampling), names)
        return True

    def _answer(self, session: str, question: str, sampling: Sampling) -> Message:
        with self._client.sessions.stream(session, question, **sampling) as events:
            for event in events:
                if isinstance(event, TextDelta) and not self._as_json:
                    write(event.delta)
            if not self._as_json:
                write("\n")
            return events.message

    def _show(self, message: Message, names: dict[str, str | None]) -> None:
        """Write the answer as JSON, or its sources below the text that is written already."""
        if self._as_json:
            evidence = [
                asdict(passage)
                | {"filename": names.get(passage.document)}
                | {"line": self._uploads.originals.line(passage.document, passage.start_byte, passage.text)}
                for passage in message.evidence
            ]
            kept = {"documents": list(names), "session": self._session} if self._keep else {}
            write(
                json.dumps(asdict(message) | {"session": None, "evidence": evidence} | kept, ensure_ascii=False) + "\n"
            )
            return
        sources = source_lines(message, self._uploads.originals, names.get)
        for line in (*question_lines(message), *doubt_lines(message), *sources, *end_lines(message)):
            print_note(line)

    def _end(self) -> bool:
        """Delete what was made on the server, or say how to use it again. Return False if it could not be deleted."""
        if not self._keep:
            return self._uploads.delete(self._url, self._session)
        sessions = [self._session] if self._session is not None else []
        note_what_is_left(self._url, self._session, sessions, self._uploads.documents)
        return True
