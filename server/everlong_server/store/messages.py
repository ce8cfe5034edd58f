"""The messages of sessions and responses, as they are stored and as callers receive them: JSON objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from everlong_models import ToolCall
from everlong_server.store.records import new_id
from everlong_server.store.texts.passage import Passage
from everlong_server.store.vault import MESSAGES, Vault


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of an answer. `reused_tokens` of the prompt's tokens were in memory already."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reused_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Citation:
    """A sentence of an answer, its characters `start` to `end`, rests on `document_start` to `document_end` of `document`.

    `evidence`: the position of the passage in the answer's evidence, from 0. `filename`: the document's; None if it has none.
    `page` and `section`: where the cited part begins, if the document has these.
    """

    start: int
    end: int
    evidence: int
    document: str
    document_start: int
    document_end: int
    filename: str | None = None
    page: int | None = None
    section: str | None = None

    def json(self) -> dict[str, Any]:
        """Return the JSON object of the citation, without a page and a section if it has none."""
        return {name: v for name, v in asdict(self).items() if v is not None or name not in ("page", "section")}


@dataclass(frozen=True, slots=True)
class AnswerMessage:
    """An answer. While it is being generated, only the first fields are known.

    `session`: the id of its session, or the digest of its chat before the answer. `evidence`: the passages that the search chose for the model.
    `finish_reason`: stop, length, repetition or cancelled. `logprobs`: None unless they were requested. `memory_progress`: the share
    of the documents' text that had been read, if the memory was not ready and the answer rests on the evidence alone. `tool_calls`,
    and `stop_sequence`, the stop string that ended the answer, are not part of the JSON; responses store calls apart. `standalone_question`: the question as
    it was searched for and answered, if it was rewritten. `agreement`: the mean similarity of the other answers of a vote to this one, 0 to 1;
    None without a vote.
    """

    id: str
    session: str
    model: str
    created_at: float
    seed: int
    evidence: Sequence[Passage] = ()
    content: str = ""
    finish_reason: str = ""
    usage: Usage = field(default_factory=Usage)
    logprobs: list[dict[str, Any]] | None = None
    citations: Sequence[Citation] = ()
    memory_progress: float | None = None
    standalone_question: str | None = None
    agreement: float | None = None
    tool_calls: Sequence[ToolCall] = ()
    stop_sequence: str | None = None

    def joined_to(self, first: AnswerMessage, between: str) -> AnswerMessage:
        """Return the answer `first` continued by this one, with the text `between` them, as one answer with this one's id."""
        before, own = first.usage, self.usage
        usage = Usage(
            before.prompt_tokens or own.prompt_tokens,
            before.completion_tokens + own.completion_tokens,
            min(before.reused_tokens, own.reused_tokens),
        )
        text = first.content.rstrip("\ufffd")  # a character that was cut is whole in this one
        return replace(
            self, content=text + between + self.content, created_at=first.created_at, usage=usage,
            standalone_question=first.standalone_question,
        )  # fmt: skip

    def head(self) -> dict[str, Any]:
        """Return the JSON object of an answer that has just begun."""
        return {
            "id": self.id, "object": "message", "role": "assistant", "session": self.session, "model": self.model,
            "created_at": self.created_at, "seed": self.seed,
            **({} if self.memory_progress is None else {"memory_progress": self.memory_progress}),
            **({} if self.standalone_question is None else {"standalone_question": self.standalone_question}),
        }  # fmt: skip

    def json(self) -> dict[str, Any]:
        """Return the JSON object of the complete answer."""
        return {
            **self.head(), "evidence": [evidence_json(passage) for passage in self.evidence], "content": self.content,
            "citations": [citation.json() for citation in self.citations],
            "finish_reason": self.finish_reason, "usage": asdict(self.usage),
            **({} if self.logprobs is None else {"logprobs": self.logprobs}),
            **({} if self.agreement is None else {"agreement": self.agreement}),
        }  # fmt: skip

    def session_json(self) -> dict[str, Any]:
        """Return the JSON object that a session stores: without its own id and without log-probabilities."""
        return {name: value for name, value in self.json().items() if name not in ("session", "logprobs")}

    @staticmethod
    def of(stored: Mapping[str, Any]) -> AnswerMessage:
        """Decode the JSON object of a complete answer."""
        fields = {name: value for name, value in stored.items() if name not in ("object", "role")}
        evidence = tuple(Passage(**passage) for passage in stored["evidence"])
        citations = tuple(Citation(**citation) for citation in stored.get("citations", ()))
        return AnswerMessage(
            **fields | {"evidence": evidence, "citations": citations, "usage": Usage(**stored["usage"])}
        )


def question_json(content: str, created_at: float) -> dict[str, Any]:
    """Return the JSON object of a user's message, with a new id."""
    return {"id": new_id("msg"), "object": "message", "role": "user", "content": content, "created_at": created_at}


def evidence_json(passage: Passage) -> dict[str, Any]:
    """Return the JSON object of a passage, without the fields that are not known."""
    optional = {
        "start_token": passage.start_token, "end_token": passage.end_token, "page": passage.page, "section": passage.section,
    }  # fmt: skip
    return {
        "document": passage.document, "start": passage.start, "end": passage.end, "start_byte": passage.start_byte,
        "end_byte": passage.end_byte, "text": passage.text, "score": passage.score,
        **{name: value for name, value in optional.items() if value is not None},
    }  # fmt: skip


# 0.1.0 refuses messages with fields that it does not know, and its servers share the store during a rolling upgrade. So what it
# does not know is stored apart, in fields of the session's hash, which it copies and deletes with the session.

ADDED = "added:"
"""Start of the names of those fields; a message's id follows."""
_ADDED_FIELDS = ("citations", "memory_progress", "standalone_question", "agreement")


def seal_messages(messages: Sequence[dict[str, Any]], vault: Vault) -> tuple[list[bytes | str], dict[str, bytes | str]]:
    """Return messages as they are stored: items of the session's list, and fields of its hash."""
    items, fields = list[bytes | str](), dict[str, bytes | str]()
    for message in messages:
        added = {name: message[name] for name in _ADDED_FIELDS if message.get(name) not in (None, [])}
        plain = {name: value for name, value in message.items() if name not in _ADDED_FIELDS}
        if message.get("finish_reason") == "repetition":
            added["finish_reason"], plain["finish_reason"] = "repetition", "stop"
        items.append(vault.seal(json.dumps(plain), MESSAGES))
        if added:
            fields[f"{ADDED}{message['id']}"] = vault.seal(json.dumps(added), MESSAGES)
    return items, fields


def open_message(item: bytes, vault: Vault) -> dict[str, Any]:
    """Decode an item of a session's list. An answer has no citations yet."""
    message: dict[str, Any] = json.loads(vault.unseal(item, MESSAGES))
    return ({"citations": []} if "evidence" in message else {}) | message


def open_added(field: bytes | None, vault: Vault) -> dict[str, Any]:
    """Decode a field of a session's hash that belongs to a message."""
    return {} if field is None else dict(json.loads(vault.unseal(field, MESSAGES)))
