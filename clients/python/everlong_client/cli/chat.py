"""A dialogue about documents, on a terminal or through a pipe."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from everlong_client.cli.terminal import console, fail, print_error, print_note, write
from everlong_client.client import Conversation, Everlong
from everlong_client.errors import EverlongError
from everlong_client.types.event import TextDelta
from everlong_client.types.message import Sampling
from everlong_client.types.session import Session

with suppress(ImportError):  # there is none on Windows
    import readline  # noqa: F401  # gives the prompt history and editing

__all__ = ["Chat"]

HELP = """\
/new   begin anew: a new session on the same documents
/fork  go on in a copy of this session; the original stays as it is
/quit  leave (so do Ctrl-C and Ctrl-D)
Ctrl-C during an answer ends the answer."""


class Chat:
    """Asks the questions that come from standard input, one a line, and writes the answers."""

    def __init__(self, client: Everlong, session: Session, sampling: Sampling) -> None:
        self._client = client
        self._sampling = sampling
        self._terminal = sys.stdin.isatty()
        self.session = session

    def run(self) -> None:
        """Until the questions end, or the user leaves. On a terminal an error ends only the answer."""
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
                yield from map(str.strip, sys.stdin)
                return
            with suppress(EOFError, KeyboardInterrupt):
                while True:
                    yield _prompt().strip()
            print_note("")  # the shell's prompt wants a line of its own
        except UnicodeDecodeError as error:
            fail(f"a question is not {error.encoding.upper()}: {error.reason}")

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
            case _ if line.startswith("/") and self._terminal:  # in a file it is a question
                print_error(f"{line.split(maxsplit=1)[0]} is no command; /help lists them")
            case _:
                self._ask(line)

    def _wait_until_ready(self) -> None:
        with console().status("waiting for the session's documents"):
            self.session = self._client.sessions.wait(self.session.id)
        if self._terminal:
            print_note(
                f"session {self.session.id}, {self.session.position:,} tokens in memory; /help lists the commands"
            )

    def _ask(self, question: str) -> None:
        # A connection for each question: none has to outlive the time that the user thinks, or a restart.
        with self._client.sessions.connect(self.session.id) as conversation:
            answer = conversation.send(question, **self._sampling)
            try:
                with cancelled_by_interrupt(conversation):
                    for event in answer:
                        if isinstance(event, TextDelta):
                            write(event.delta)
            finally:
                write("\n")
        if self._terminal:
            usage, end = answer.message.usage, answer.message.finish_reason
            ended = "" if end == "stop" else f" ({end})"
            print_note(f"{usage.completion_tokens:,} tokens{ended}, {usage.reused_tokens:,} reused from memory")


def _prompt() -> str:
    """A line. Raises `EOFError` at the end."""
    if sys.stdout.isatty():
        return input("> ")
    # Else Python would write the prompt among the answers.
    sys.stderr.write("> ")
    sys.stderr.flush()
    return input()


@contextmanager
def cancelled_by_interrupt(conversation: Conversation) -> Iterator[None]:
    """Ctrl-C cancels the answer instead of raising `KeyboardInterrupt`; a second one does raise it."""

    def cancel() -> None:
        with suppress(EverlongError):  # the answer's reader is told of a lost connection too
            conversation.cancel()

    def interrupted(signum: int, frame: object) -> None:
        signal.signal(signal.SIGINT, previous)
        # In a thread: the interrupted code may be inside the connection, holding its lock.
        threading.Thread(target=cancel, daemon=True).start()

    previous = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
