"""`everlong bench peers --prompt`: chats that are timed at both servers in turns."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from everlong_lab.benchmarks import turns
from everlong_lab.benchmarks.peers import PeerMissing, gguf_file
from everlong_lab.benchmarks.turns import ChatTiming, chat
from tests.process import Server


def test_a_streamed_chat_is_timed(server: Server) -> None:
    found = chat(server.http, "The time has come, the Walrus said, to talk of many things.")
    assert found.first > 0
    assert found.each > 0
    assert found.prompt_tokens > 10
    with pytest.raises(RuntimeError, match=r"the chat was refused with 4\d\d: .*content"):
        chat(server.http, "")


def test_neither_server_is_always_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def timed(http: str, text: str) -> ChatTiming:
        asked.append((http, text))
        return ChatTiming(2.0, 0.1, 900) if http == "ours" else ChatTiming(5.0, 0.2, 901)

    monkeypatch.setattr(turns, "chat", timed)
    servers = {name: SimpleNamespace(http=name) for name in ("ours", "theirs")}
    timings = turns._measure(servers, ["a", "b"], lambda message: None)  # type: ignore[arg-type]
    assert asked == [("ours", "a"), ("theirs", "a"), ("theirs", "b"), ("ours", "b")]
    ours, theirs = turns._row("ours", timings["ours"], 10**9), turns._row("theirs", timings["theirs"], 2 * 10**9)
    assert (ours["first_token_s"], ours["ms_per_token"], theirs["prompt_tokens"]) == (2.0, 100.0, 901)
    assert [(target.value, target.met) for target in turns._targets(ours, theirs)] == [
        (2.5, True),
        (2.0, True),
        (0.5, True),
    ]


def test_a_model_that_is_no_gguf_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.touch()
    assert gguf_file(str(file)) == file
    with pytest.raises(
        PeerMissing, match=r"--model: '.*b\.gguf' is neither a GGUF file nor one of qwen2\.5-coder-1\.5b"
    ):
        gguf_file(str(tmp_path / "b.gguf"))
