"""Encode documents, questions and answers as token ids in a tokenizer's chat format, and batch them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from everlong_lab.tasks.task import Batch
from everlong_models.text.chat_format import ChatFormat
from everlong_models.text.tokenizer import Tokenizer


class Example(NamedTuple):
    """One document to learn from: token ids (N,), and a mask of the targets (N,)."""

    ids: np.ndarray
    targets: np.ndarray


class ChatEncoder:
    """Encodes the parts of a chat for one tokenizer.

    `end`: the token that ends an answer. `ends`: all tokens that end generation.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.format = ChatFormat.of(tokenizer)
        first = self.format.turn[0]
        self._instruct = first in tokenizer.eos_ids
        # A chat template ends an answer with a token that ends generation; base models have only the end of text.
        self.end = first if self._instruct or not tokenizer.eos_ids else tokenizer.eos_ids[0]
        self.ends = frozenset((*tokenizer.eos_ids, self.end))

    def head(self, text: str = "") -> list[int]:
        """Return the tokens that start a document or a question, followed by `text`."""
        return [*self.format.head, *self.tokenizer.encode(text)]

    def question(self, text: str, *, document: bool = True) -> list[int]:
        """Return a question, up to the start of its answer, preceded by the separator if it follows a `document`."""
        return [*(self.format.separator if document else ()), *self.tokenizer.encode(text), *self.format.ask]

    def answer(self, text: str) -> list[int]:
        """Return an answer with its end token."""
        return [*self.tokenizer.encode(text if self._instruct else f" {text}"), self.end]

    @property
    def turn(self) -> list[int]:
        """The tokens between the end of an answer and the next question."""
        return list(self.format.turn[1:] if self.format.turn[0] == self.end else self.format.turn)

    def example(self, context: np.ndarray | Sequence[int], answer: str) -> Example:
        """Return an example: `context`, a document with its question, and the answer as the target."""
        ids = np.concatenate([np.asarray(context, dtype=np.int64), np.array(self.answer(answer), dtype=np.int64)])
        return Example(ids, np.arange(len(ids)) >= len(context))


def pad_batch(examples: Sequence[Example]) -> Batch:
    """Return a batch of the examples, padded at their ends."""
    tokens = pad_sequence([torch.from_numpy(example.ids) for example in examples], batch_first=True)
    targets = pad_sequence([torch.from_numpy(example.targets) for example in examples], batch_first=True)
    return Batch(tokens, torch.tensor([len(example.ids) for example in examples]), targets)
