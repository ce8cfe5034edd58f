"""`PrefixCache`: keys and values of the newest prompts. A prompt with the same first tokens reuses them."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

MOST_BYTES = 128 << 20
"""Bytes of keys and values that are kept, unless the newest prompt has more."""


class PrefixCache:
    """The newest prompts with their keys and values. An owner, such as a tenant, gets only its own: how long a prompt takes tells whether
    one like it was encoded before."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._kept: deque[tuple[str, Tensor, Tensor, Tensor]] = deque()
        """Owner, tokens (n,), keys and values (1, …, n, d), and the last hidden state (1, 1, D), the oldest first."""

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, owner: str, tokens: Tensor, most: int) -> tuple[int, Tensor | None]:
        """Return how many of the first `tokens` (n,) another prompt of the owner has, at most `most`, and its keys and values."""
        count, found = 0, None
        for of, known, kv, _ in self._kept:
            length = min(len(known), len(tokens), most)
            if of == owner and length > count:
                same = int((known[:length] == tokens[:length]).cumprod(0).sum())
                if same > count:
                    count, found = same, kv
        return count, found

    def same(self, owner: str, tokens: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the keys and values of the owner's prompt `tokens` (n,), and its last hidden state (1, 1, D); None if it is not kept."""
        for of, known, kv, last in self._kept:
            if of == owner and torch.equal(known, tokens):
                return kv, last
        return None

    def keep(self, owner: str, tokens: Tensor, kv: Tensor, last: Tensor) -> None:
        """Keep a copy of the keys and values `kv` (1, …, C, d) of the prompt `tokens` (n,), n ≤ C, and of its last hidden state `last`
        (1, 1, D), in place of the prompts that it begins with.

        Drops the oldest ones that there is no room for. The newest one is kept in any case.
        """
        own = kv[..., : len(tokens), :]
        size = own.numel() * own.element_size()
        for entry in list(self._kept):
            if entry[0] == owner and len(entry[1]) <= len(tokens) and torch.equal(entry[1], tokens[: len(entry[1])]):
                self._drop(entry)
        while self._kept and self._bytes + size > self._most:
            self._drop(self._kept[0])
        self._kept.append((owner, tokens.clone(), own.clone(), last.clone()))
        self._bytes += size

    def _drop(self, entry: tuple[str, Tensor, Tensor, Tensor]) -> None:
        self._kept = deque(other for other in self._kept if other is not entry)
        self._bytes -= entry[2].nbytes
