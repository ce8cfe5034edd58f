"""`ChatFormat`: the fixed pieces of a chat template, between which documents, questions and answers are inserted.

A conversation about documents is one long user message that starts with them:

    head  document [separator document …] separator question  ask  answer  turn  question  ask  answer …

`head`, `ask` and `turn` come from the tokenizer's chat template, so that an instruct model sees exactly the format that it was trained
on. A document is read once after `head`, and shared by every session that asks about it.

Instructions (the system message) are placed where the template puts them if no document comes before them:

    system[0]  instructions  system[1]  question  ask  answer …

Otherwise they are the first text after the documents, as for a template without system messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from jinja2 import TemplateError

from everlong_models.errors import BackboneError
from everlong_models.text.tokenizer import Tokenizer

_A, _B, _C = "\x01a\x01", "\x01b\x01", "\x01c\x01"


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Token ids of the fixed pieces.

    `head`: before the first text. `separator`: after a document. `ask`: between a question and its answer. `turn`: between an answer and
    the next question. `system`: before the instructions, and between them and the first text; None if the template has no system message.
    """

    head: tuple[int, ...]
    separator: tuple[int, ...]
    ask: tuple[int, ...]
    turn: tuple[int, ...]
    system: tuple[tuple[int, ...], tuple[int, ...]] | None

    @staticmethod
    def of(tokenizer: Tokenizer) -> ChatFormat:
        """Return the format of the tokenizer's chat template, or a plain format for base models, which have no template.

        Raises `BackboneError` for a template that fails, or that changes the texts of user and assistant or their order.
        """
        if tokenizer.chat_template:
            messages = [
                {"role": "user", "content": _A},
                {"role": "assistant", "content": _B},
                {"role": "user", "content": _C},
            ]
            try:
                rendered = tokenizer.render(messages, answer=True)
            except (TemplateError, TypeError, ValueError) as error:
                raise BackboneError(f"the tokenizer's chat template fails: {error}") from error
            try:
                head, _, turn, ask = split_at(rendered, _A, _B, _C)
            except ValueError:
                raise BackboneError(
                    f"the tokenizer's chat template loses messages or changes their order: {rendered!r}"
                ) from None
        else:
            head, ask, turn = "", "\n\nAnswer:", "\n\n"
        return ChatFormat(
            head=tuple(tokenizer.encode_markup(head)),
            separator=tuple(tokenizer.encode_markup("\n\n")),
            ask=tuple(tokenizer.encode_markup(ask)),
            turn=tuple(tokenizer.encode_markup(turn)),
            system=_system(tokenizer),
        )


def _system(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    if not tokenizer.chat_template:
        return None
    messages = [{"role": "system", "content": _A}, {"role": "user", "content": _B}]
    try:
        before, after, _ = split_at(tokenizer.render(messages, answer=False), _A, _B)
    except (TemplateError, TypeError, ValueError):  # many templates raise for a system message, or leave it out
        return None
    return tuple(tokenizer.encode_markup(before)), tuple(tokenizer.encode_markup(after))


def split_at(text: str, *marks: str) -> list[str]:
    """Split the `text` that a chat template has made at the marks, in their order. Raises `ValueError` if one is missing."""
    pieces = []
    for mark in marks:
        piece, found, text = text.partition(mark)
        if not found:
            raise ValueError(f"the chat template loses {mark!r}")
        pieces.append(piece)
    return [*pieces, text]
