"""`ChatFormat`: the pieces of a dialogue between which the texts of people and documents go.

A dialogue about documents is one long user message that starts with them:

    head  document [separator document …] separator question  ask  answer  turn  question  ask  answer …

`head`, `ask` and `turn` come from the tokenizer's chat template, so that an instruct model sees just what it was
trained on; a document is read once behind `head` and shared by every session that asks about it.
"""

from __future__ import annotations

from dataclasses import dataclass

from everlong_models.tokenizer import Tokenizer

_A, _B, _C = "\x01a\x01", "\x01b\x01", "\x01c\x01"


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Token ids. `head`: before the first text. `separator`: after a document. `ask`: from a question to its answer.
    `turn`: from an answer to the next question."""

    head: tuple[int, ...]
    separator: tuple[int, ...]
    ask: tuple[int, ...]
    turn: tuple[int, ...]

    @staticmethod
    def of(tokenizer: Tokenizer) -> ChatFormat:
        """The format of the tokenizer's chat template, or a plain one for base models, which have none."""
        if tokenizer.chat_template:
            messages = [
                {"role": "user", "content": _A},
                {"role": "assistant", "content": _B},
                {"role": "user", "content": _C},
            ]
            head, _, rest = tokenizer.render(messages, answer=True).partition(_A)
            _, _, rest = rest.partition(_B)
            turn, _, ask = rest.partition(_C)
        else:
            head, ask, turn = "", "\n\nAnswer:", "\n\n"
        return ChatFormat(
            head=tuple(tokenizer.encode_markup(head)),
            separator=tuple(tokenizer.encode_markup("\n\n")),
            ask=tuple(tokenizer.encode_markup(ask)),
            turn=tuple(tokenizer.encode_markup(turn)),
        )
