"""Completions in the format of OpenAI's API: whole, as chunks while they are generated, and replayed from a record."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from everlong_models import Tokenizer
from everlong_server.engine.answering.completions import CompletionFinished, PromptScored
from everlong_server.engine.device.answer_text import TokenDelta

Logprobs = dict[str, list[Any]]
_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@dataclass(slots=True)
class Text:
    """One text of a completion, as it is generated. `echo`: the prompt's text, which precedes it; None: without the prompt."""

    index: int
    prompt: list[int]
    tokenizer: Tokenizer
    echo: str | None
    top: int | None
    parts: list[str] = field(default_factory=list)
    logprobs: Logprobs = field(default_factory=lambda: {name: [] for name in _LISTS})
    end: CompletionFinished | None = None
    _offset: int = 0

    def add(self, event: PromptScored | TokenDelta | CompletionFinished) -> dict[str, Any] | None:
        """Add an event and return its choice in a chunk; None if it adds nothing."""
        match event:
            case PromptScored(scored):
                if self.echo is None:
                    return None
                if self.top is None:
                    return self._piece(self.echo, [])
                first = {
                    "token": self.tokenizer.token(self.prompt[0]),
                    "bytes": list(self.tokenizer.token_bytes(self.prompt[0])),
                }
                return self._piece(self.echo, [first, *scored])
            case TokenDelta(text, entries):
                return self._piece(text, entries) if text or entries else None
            case CompletionFinished():
                self.end = event
                return {"index": self.index, "text": "", "logprobs": None, **_end(event)}

    def choice(self) -> dict[str, Any]:
        """Return the complete text. Call it after the last event."""
        assert self.end is not None
        logprobs = None if self.top is None else self.logprobs
        return {"index": self.index, "text": "".join(self.parts), "logprobs": logprobs, **_end(self.end)}

    def _piece(self, text: str, entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
        self.parts.append(text)
        logprobs = self._lists(entries) if self.top is not None else None
        for name in _LISTS if logprobs else ():
            self.logprobs[name] += logprobs[name] if logprobs else []
        return {"index": self.index, "text": text, "logprobs": logprobs, "finish_reason": None, "stop_reason": None}

    def _lists(self, entries: Sequence[dict[str, Any]]) -> Logprobs:
        lists: Logprobs = {name: [] for name in _LISTS}
        for entry in entries:
            known = "logprob" in entry  # a prompt's first token has none
            lists["tokens"].append(_name(entry))
            lists["token_logprobs"].append(entry["logprob"] if known else None)
            lists["top_logprobs"].append(self._likeliest(entry) if known else None)
            lists["text_offset"].append(self._offset)
            self._offset += len(entry["token"])
        return lists

    def _likeliest(self, entry: dict[str, Any]) -> dict[str, float]:
        """Return the likeliest tokens and the token itself, as OpenAI does. If two have the same text, the likelier one counts."""
        named: dict[str, float] = {}
        for other in [*entry["top_logprobs"], entry]:
            named.setdefault(_name(other), other["logprob"])
        return named


def completion_view(head: dict[str, Any], texts: Sequence[Text], prompt_tokens: int) -> dict[str, Any]:
    """Return the completion. `head`: its first fields; `prompt_tokens`: those of all prompts."""
    generated = sum(text.end.tokens for text in texts if text.end is not None)
    usage = {
        "prompt_tokens": prompt_tokens, "completion_tokens": generated, "total_tokens": prompt_tokens + generated,
        "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip
    return {**head, "choices": [text.choice() for text in texts], "usage": usage}


async def replayed_chunks(completion: dict[str, Any], *, usage: bool) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the chunks of a recorded completion, with each text in one piece."""
    head = {name: value for name, value in completion.items() if name not in ("choices", "usage")}
    for choice in completion["choices"]:
        yield {**head, "choices": [choice]}
    if usage:
        yield {**head, "choices": [], "usage": completion["usage"]}


def _name(entry: dict[str, Any]) -> str:
    """Return the text of a token, or its bytes if these are only part of a character."""
    if "\ufffd" not in entry["token"]:
        return str(entry["token"])
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry["bytes"])


def _end(end: CompletionFinished) -> dict[str, str | None]:
    looped = end.reason == "repetition"
    return {"finish_reason": "length" if looped else end.reason, "stop_reason": "repetition" if looped else None}
