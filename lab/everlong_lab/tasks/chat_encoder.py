"""Questions and answers about documents as token ids, in the chat format of a tokenizer; batches of such documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from everlong_lab.tasks.task import Batch
from everlong_models.text.chat_format import ChatFormat
from everlong_models.text.tokenizer import Tokenizer


class Example(NamedTuple):
    """One document to learn from: token ids (N,), and which of them are targets (N,)."""

    ids: np.ndarray
    targets: np.ndarray


class ChatEncoder:
    """A chat format and the tokenizer it is of.

    `end`: the token that an answer ends with. `ends`: all tokens at which an answer is over.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.format = ChatFormat.of(tokenizer)
        first = self.format.turn[0]
        self._instruct = first in tokenizer.eos_ids
        # Chat templates end an answer with a token that ends generation; base models have but the end of text.
        self.end = first if self._instruct or not tokenizer.eos_ids else tokenizer.eos_ids[0]
        self.ends = frozenset((*tokenizer.eos_ids, self.end))

    def head(self, text: str = "") -> list[int]:
        """What a document or a question begins with; `text` goes before it."""
        return [*self.format.head, *self.tokenizer.encode(text)]

    def question(self, text: str, *, document: bool = True) -> list[int]:
        """From the end of a document to the beginning of the answer; without a `document`, from the question on."""
        return [*(self.format.separator if document else ()), *self.tokenizer.encode(text), *self.format.ask]

    def answer(self, text: str) -> list[int]:
        """An answer and its end."""
        return [*self.tokenizer.encode(text if self._instruct else f" {text}"), self.end]

    @property
    def turn(self) -> list[int]:
        """From the end of an answer to the next question."""
        return list(self.format.turn[1:] if self.format.turn[0] == self.end else self.format.turn)

    def example(self, asked: np.ndarray | Sequence[int], answer: str) -> Example:
        """A document with its question, `asked`, and the answer, which is the target."""
        ids = np.concatenate([np.asarray(asked, dtype=np.int64), np.array(self.answer(answer), dtype=np.int64)])
        return Example(ids, np.arange(len(ids)) >= len(asked))


def pad_batch(lines: Sequence[Example]) -> Batch:
    """A batch of documents, padded behind their ends."""
    lengths = [len(line.ids) for line in lines]
    tokens = torch.zeros(len(lines), max(lengths), dtype=torch.int64)
    targets = torch.zeros(tokens.shape, dtype=torch.bool)
    for row, line in enumerate(lines):
        tokens[row, : lengths[row]] = torch.from_numpy(line.ids)
        targets[row, : lengths[row]] = torch.from_numpy(line.targets)
    return Batch(tokens, torch.tensor(lengths), targets)
