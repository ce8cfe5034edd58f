"""The tokenizer of GPT-NeoX and Pythia, which transformers' GGUF reader does not restore: `restore`."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
from transformers import PreTrainedTokenizerBase


def restore(tokenizer: PreTrainedTokenizerBase, file: Path) -> None:
    """Make runs of spaces tokens again, and compose characters first (NFC), as the original tokenizer does.

    A file has such a run as it is, marked as defined by the user. transformers spells it like other tokens, where it never matches a text.
    """
    from tokenizers import AddedToken, Tokenizer  # noqa: PLC0415

    # Reads all strings as objects: some seconds, once, for a vocabulary of 50,000.
    fields = gguf.GGUFReader(file).fields
    tokens: list[str] = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents() if "tokenizer.ggml.token_type" in fields else []
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["model"]["vocab"] = {token: index for index, token in enumerate(tokens)}
    state["normalizer"] = {"type": "NFC"}
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(state))  # transformers has no setter
    added = [token for token, kind in zip(tokens, kinds, strict=False) if kind == gguf.TokenType.USER_DEFINED]
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in added])
