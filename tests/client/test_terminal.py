"""`everlong ingest` and `everlong chat` on a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.client.fake_server import ANSWER, Fake, FakeServer


class Terminal:
    """A command on its own pseudo-terminal."""

    def __init__(self, *args: str, url: str, stdout: Path | None = None) -> None:
        self.output = ""
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.environ |= {"EVERLONG_URL": url, "TERM": "xterm", "COLUMNS": "200"}
            if stdout is not None:
                os.dup2(os.open(stdout, os.O_WRONLY | os.O_CREAT), 1)
            os.execv(sys.executable, [sys.executable, "-m", "everlong_client", *args])

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def interrupt_until(self, text: str) -> None:
        """Type Ctrl-C until `text` appears: Python notices a Ctrl-C late if it is not waiting for input yet."""
        for _ in range(10):
            self.type("\x03")
            if self.expect(text, 3, must=False):
                return
        pytest.fail(f"{text!r} did not come after {self.output!r}")

    def expect(self, text: str, seconds: float = 20, *, must: bool = True) -> bool:
        """Read the output until `text` appears after the end of the last match."""
        deadline = time.monotonic() + seconds
        while text not in self.output:
            ready, _, _ = select.select([self._fd], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                assert not must, f"{text!r} did not come after {self.output!r}"
                return False
            try:
                self.output += os.read(self._fd, 65536).decode(errors="replace")
            except OSError:
                pytest.fail(f"it ended without {text!r}, after {self.output!r}")
        self.output = self.output.split(text, 1)[1]
        return True

    def wait(self) -> int:
        """Wait for the command to end and return its exit code."""
        try:
            while os.read(self._fd, 65536):
                pass
        except OSError:  # Linux reports the end of a terminal like this
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


@pytest.fixture
def terminal(server: FakeServer) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def start(*args: str | Path, stdout: Path | None = None) -> Terminal:
        made.append(Terminal(*map(str, args), url=server.url, stdout=stdout))
        return made[-1]

    yield start
    for terminal in made:
        try:
            os.kill(terminal._pid, signal.SIGKILL)
            os.waitpid(terminal._pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(terminal._fd)


def test_chat_on_a_terminal(terminal: Callable[..., Terminal], server: FakeServer, book: Path):
    chat = terminal("chat", book)
    chat.expect("reading book.txt")
    chat.expect("1,000 tokens")
    chat.expect("session ses_1")
    chat.expect("> ")
    chat.type("Who?\n")
    chat.expect(ANSWER)
    chat.expect("the search found no passage")
    chat.expect("7 tokens")
    chat.expect("> ")
    chat.type("/what is this\n")
    chat.expect("error: /what is not a command; /help lists the commands")
    chat.expect("> ")
    chat.type("fail\n")
    chat.expect("error: no room for the answer")
    chat.expect("> ")
    chat.type("\x04")
    chat.expect("everlong chat --session ses_1")
    assert chat.wait() == 0


def test_interrupting_an_answer(terminal: Callable[..., Terminal], fake: Fake):
    chat = terminal("chat")
    chat.expect("> ")
    chat.type("hang\n")
    chat.expect(ANSWER[:5])
    chat.type("\x03")
    chat.expect("cancelled after 7 tokens")
    assert fake.cancelled.is_set()
    chat.expect("> ")
    chat.type("Who?\n")
    chat.expect(ANSWER)
    chat.expect("> ")
    chat.interrupt_until("everlong chat --session ses_1")


def test_interrupting_twice_leaves(terminal: Callable[..., Terminal], fake: Fake):
    chat = terminal("chat")
    chat.expect("> ")
    chat.type("deaf\n")
    chat.expect(ANSWER[:5])
    chat.type("\x03")
    assert fake.cancelling.wait(10)
    assert not fake.closed.is_set()
    chat.interrupt_until("everlong chat --session ses_1")
    assert chat.wait() == 0
    assert fake.closed.wait(10)


def test_interrupting_an_ingest(terminal: Callable[..., Terminal], fake: Fake, book: Path):
    stuck = book.with_name("stuck")
    stuck.write_text("x")
    ingest = terminal("ingest", book, stuck, book)
    ingest.expect("reading stuck")
    ingest.type("\x03")
    ingest.expect("the server continues to read stuck as doc_2")
    ingest.expect("the server continues to read book.txt as doc_3")
    assert ingest.wait() == 130


@pytest.mark.parametrize("words", [["chat"], ["ask", "--keep"]])
def test_interrupting_the_reading_before_an_answer(
    terminal: Callable[..., Terminal], fake: Fake, book: Path, words: list[str]
):
    question = ["Who?"] if "ask" in words else []
    command = terminal(*words, book.rename(book.with_name("stuck")), *question)
    command.expect("reading stuck")
    command.type("\x03")
    command.expect("the server continues to read stuck as doc_1")
    command.expect("everlong documents delete doc_1")
    assert command.wait() == 130
    assert not fake.sessions


def test_ingest_from_a_named_pipe(terminal: Callable[..., Terminal], fake: Fake, tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ingest = terminal("ingest", pipe)
    pipe.write_text("Call me Ishmael.")
    ingest.expect("doc_1")
    assert ingest.wait() == 0
    assert fake.uploads[0][0] == b"Call me Ishmael."


def test_answers_for_a_file_are_without_prompts(terminal: Callable[..., Terminal], tmp_path: Path):
    out = tmp_path / "answers.txt"
    chat = terminal("chat", stdout=out)
    chat.expect("> ")
    chat.type("Who?\n")
    chat.expect("7 tokens")
    chat.expect("> ")
    chat.type("\x04")
    chat.expect("everlong chat --session ses_1")
    assert chat.wait() == 0
    assert out.read_text() == f"{ANSWER}\n"


def test_results_and_errors_are_printed_above_the_progress_bars(terminal: Callable[..., Terminal], book: Path):
    for name in ("broken", "[bold]it.txt"):
        book.with_name(name).write_text("x")
    ingest = terminal("ingest", book, book.with_name("broken"), book.with_name("[bold]it.txt"))
    clear = "\x1b[2K"  # erases the line of a progress bar
    ingest.expect(f"{clear}doc_1\r\n")
    ingest.expect(f"{clear}\x1b[31merror: broken: doc_2 could not be read: byte 17 is not UTF-8\x1b[0m\r\n")
    ingest.expect("reading [bold]it.txt")
    ingest.expect(f"{clear}doc_3\r\n")
    assert ingest.wait() == 1


def test_progress_bars_do_not_reach_redirected_output(terminal: Callable[..., Terminal], book: Path, tmp_path: Path):
    """`id=$(everlong ingest book.txt)`: bars on the terminal, the id alone in the variable."""
    out = tmp_path / "out"
    command = terminal("ingest", book, stdout=out)
    command.expect("reading book.txt")
    command.expect("1,000 tokens")
    assert command.wait() == 0
    assert out.read_text() == "doc_1\n"
