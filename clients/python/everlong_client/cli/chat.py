"""`everlong chat`: questions about documents, typed on a terminal or read from a pipe."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from everlong_client.cli.answer import doubt_lines, end_lines, question_lines, source_lines, token_count
from everlong_client.cli.terminal import console, fail, note_what_is_left, print_error, print_note, write
from everlong_client.cli.uploads import Uploads
from everlong_client.client import Everlong
from everlong_client.errors import EverlongError
from everlong_client.streams import Conversation
from everlong_client.types.event import TextDelta
from everlong_client.types.message import Message, Sampling
from everlong_client.types.session import Session

with suppress(ImportError):  # Windows has no readline
    import readline  # noqa: F401  # gives the prompt history and editing

HELP = """\
/new   start a new session on the same documents
/fork  continue in a copy of this session; the original does not change
/quit  leave (also Ctrl-C and Ctrl-D)
Ctrl-C during an answer cancels the answer."""


class Chat:
    """Reads questions from standard input, one a line, sends them and writes the answers to standard output.

    Call `start` or `resume`, then `run`, and always `end`. What it creates stays on the server.
    """

    def __init__(self, client: Everlong, url: str, sampling: Sampling, piped: Iterable[str] | None = None) -> None:
        """`url`: the address of the client's server. `piped`: the lines to read instead of standard input, without a terminal."""
        self._client = client
        self._url = url
        self._piped = sys.stdin if piped is None else piped
        self._sampling = sampling
        self._terminal = sys.stdin.isatty()
        self._uploads = Uploads(client, keep=True)
        self._names: dict[str, str | None] = {}
        self._created: list[str] = []
        self._session: Session | None = None

    def start(self, files: Sequence[Path], documents: Sequence[str], model: str | None) -> bool:
        """Create a session about the documents, then the files. Return False if a file could not be uploaded or read."""
        if not self._uploads.upload(files):
            return False
        self._names |= {document.id: document.filename for document in self._uploads.documents}
        self._create([*documents, *(document.id for document in self._uploads.documents)], model)
        return True

    def resume(self, session: str) -> None:
        """Continue a session."""
        self._session = self._client.sessions.get(session)

    def end(self) -> None:
        """Write how to continue the session, and how to delete what this command has created."""
        session = None if self._session is None else self._session.id
        note_what_is_left(self._url, session, self._created, self._uploads.documents)

    def run(self) -> None:
        """Run until the input ends or the user leaves. On a terminal an error ends only the current answer."""
        self._wait_until_ready()
        for line in self._lines():
            try:
                if line == "/quit":
                    return
                self._handle(line)
            except KeyboardInterrupt:
                return
            except EverlongError as error:
                if not self._terminal:
                    raise
                print_error(str(error))

    @property
    def _current(self) -> Session:
        assert self._session is not None  # after `start` or `resume`
        return self._session

    def _create(self, documents: Sequence[str], model: str | None) -> None:
        self._enter(self._client.sessions.create(documents, model=model))

    def _enter(self, created: Session) -> None:
        self._session = created
        self._created.append(created.id)

    def _lines(self) -> Iterator[str]:
        try:
            if not self._terminal:
                yield from map(str.strip, self._piped)
                return
            with suppress(EOFError, KeyboardInterrupt):
                while True:
                    yield _prompt().strip()
            print_note("")  # puts the shell's prompt on a new line
        except UnicodeDecodeError as error:
            fail(f"a question is not valid {error.encoding.upper()}: {error.reason}")

    def _handle(self, line: str) -> None:
        match line:
            case "":
                pass
            case "/help":
                write(HELP + "\n")
            case "/new":
                self._create(self._current.documents, self._current.model)
                self._wait_until_ready()
            case "/fork":
                left = self._current.id
                self._enter(self._client.sessions.fork(left))
                print_note(f"session {self._current.id}, a fork of {left}")
            case _ if line.startswith("/") and self._terminal:  # from a pipe it is a question
                print_error(f"{line.split(maxsplit=1)[0]} is not a command; /help lists the commands")
            case _:
                self._ask(line)

    def _wait_until_ready(self) -> None:
        with console().status("waiting for the session's documents"):
            self._session = session = self._client.sessions.wait(self._current.id)
        if self._terminal:
            print_note(f"session {session.id}, {session.position:,} tokens read; /help lists the commands")
            print_note("answers can be wrong: compare them with the passages that they cite")

    def _ask(self, question: str) -> None:
        # One connection per question: it need not survive the user's pauses, or a restart of the server.
        with self._client.sessions.connect(self._current.id) as conversation:
            answer = conversation.send(question, **self._sampling)
            try:
                with cancelled_by_interrupt(conversation):
                    for event in answer:
                        if isinstance(event, TextDelta):
                            write(event.delta)
            finally:
                write("\n")
        self._note_below(answer.message)

    def _note_below(self, message: Message) -> None:
        """Write how the question was understood, the sources of the answer, and how it ended."""
        sources = source_lines(message, self._uploads.originals, self._filename) if self._current.documents else []
        ended = end_lines(message) or ([token_count(message)] if self._terminal else [])
        for line in (*question_lines(message), *doubt_lines(message), *sources, *ended):
            print_note(line)

    def _filename(self, document: str) -> str | None:
        """Return the name of a document; None if it has none, or if it cannot be fetched, for example because it was deleted."""
        if document not in self._names:
            self._names[document] = None
            with suppress(EverlongError):
                self._names[document] = self._client.documents.get(document).filename
        return self._names[document]


def _prompt() -> str:
    """Read a line from the terminal. Raises `EOFError` at the end of the input."""
    if sys.stdout.isatty():
        return input("> ")
    # `input("> ")` would write the prompt to standard output, among the answers.
    sys.stderr.write("> ")
    sys.stderr.flush()
    return input()


@contextmanager
def cancelled_by_interrupt(conversation: Conversation) -> Iterator[None]:
    """The first Ctrl-C cancels the answer; only the second one raises `KeyboardInterrupt`."""

    def cancel() -> None:
        with suppress(EverlongError):  # the loop that reads the answer raises it as well
            conversation.cancel()

    def interrupted(signum: int, frame: object) -> None:
        signal.signal(signal.SIGINT, previous)
        # In a thread, because the interrupted code may hold the connection's lock.
        threading.Thread(target=cancel, daemon=True).start()

    previous = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
