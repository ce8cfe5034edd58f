"""`everlong chat`: questions about documents, typed on a terminal or read from a pipe."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from everlong_client.cli.citations import citation_lines
from everlong_client.cli.originals import Originals
from everlong_client.cli.terminal import console, fail, print_error, print_note, write
from everlong_client.client import Everlong
from everlong_client.errors import EverlongError
from everlong_client.streams import Conversation
from everlong_client.types.event import TextDelta
from everlong_client.types.message import Sampling
from everlong_client.types.session import Session

with suppress(ImportError):  # Windows has no readline
    import readline  # noqa: F401  # gives the prompt history and editing

HELP = """\
/new   start a new session on the same documents
/fork  continue in a copy of this session; the original does not change
/quit  leave (also Ctrl-C and Ctrl-D)
Ctrl-C during an answer cancels the answer."""


class Chat:
    """Reads questions from standard input, one a line, sends them and writes the answers to standard output."""

    def __init__(
        self,
        client: Everlong,
        session: Session,
        sampling: Sampling,
        originals: Originals,
        piped: Iterable[str] | None = None,
    ) -> None:
        """`originals`: the local files of documents. `piped`: the lines to read instead of standard input, without a terminal."""
        self._client = client
        self._originals = originals
        self._piped = sys.stdin if piped is None else piped
        self._sampling = sampling
        self._terminal = sys.stdin.isatty()
        self.session = session

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
                self.session = self._client.sessions.create(self.session.documents, model=self.session.model)
                self._wait_until_ready()
            case "/fork":
                left = self.session.id
                self.session = self._client.sessions.fork(left)
                print_note(f"session {self.session.id}, a fork of {left}")
            case _ if line.startswith("/") and self._terminal:  # from a pipe it is a question
                print_error(f"{line.split(maxsplit=1)[0]} is not a command; /help lists the commands")
            case _:
                self._ask(line)

    def _wait_until_ready(self) -> None:
        with console().status("waiting for the session's documents"):
            self.session = self._client.sessions.wait(self.session.id)
        if self._terminal:
            print_note(f"session {self.session.id}, {self.session.position:,} tokens read; /help lists the commands")
            print_note("answers can be wrong: compare them with the passages that they cite")

    def _ask(self, question: str) -> None:
        # One connection per question: it need not survive the user's pauses, or a restart of the server.
        with self._client.sessions.connect(self.session.id) as conversation:
            answer = conversation.send(question, **self._sampling)
            try:
                with cancelled_by_interrupt(conversation):
                    for event in answer:
                        if isinstance(event, TextDelta):
                            write(event.delta)
            finally:
                write("\n")
        for line in citation_lines(answer.message, self._originals):
            print_note(line)
        if self._terminal:
            usage, end = answer.message.usage, answer.message.finish_reason
            ended = "" if end == "stop" else f" ({end})"
            passages = len(answer.message.evidence)
            rests = f"rests on {passages} passage{'s' * (passages != 1)}" if passages else "rests on no passage"
            print_note(f"{rests}, {usage.completion_tokens:,} tokens{ended}")


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
