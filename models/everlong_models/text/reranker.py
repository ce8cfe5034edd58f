"""`Reranker`: scores how well each sentence of some passages answers a question, with an encoder that reads both together.

A passage's vector is made before the question is known. This model reads the question with the passage (a cross-encoder: Nogueira & Cho,
2019, arXiv 1901.04085), so it tells an answer from a sentence with the same words. It gives each token a score. The score of a sentence is
the mean of its tokens, so one pass scores all sentences of a passage (as in Provence: Chirkova et al., 2025, arXiv 2501.16214).

The packaged weights are updates of the packaged embedder: pairs of low rank for its matrices, and new biases and norms
(`everlong train-reranker`, docs/research/data.md).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoModel

from everlong_models.errors import BackboneError
from everlong_models.quiet import without_progress_bars

PACKAGED = Path(__file__).with_name("reranker.safetensors")
_PACKAGED_DIGEST = "f1ce34cb6703a20eb0acacb603ca2ab9b141ce02e5a319bea11b6b3600e06178"
"""SHA-256 of the packaged weights. Change it together with them."""
MAX_TOKENS = 512
"""Maximum number of tokens of a question and a passage, the encoder's limit. The end of a longer passage is not read."""
_QUESTION_TOKENS = 64
_ROWS = 8
"""Passages in a batch. Few, since a batch is padded to its longest passage, and a table has three times the tokens of prose."""
_UNREAD = -20.0
"""Score of a sentence of which no token was read."""

Spans = Sequence[tuple[int, int]]
"""Start and end of each sentence of a passage, in characters."""


class TokenScorer(nn.Module):
    """An encoder of BERT's kind, and a linear layer that gives each token a score."""

    def __init__(self, folder: Path) -> None:
        """`folder`: the encoder, in Hugging Face format. The weights are in float32."""
        super().__init__()
        with without_progress_bars():
            # Rows are short: plain attention is several times faster here than PyTorch's fused one on a CPU.
            self.encoder = AutoModel.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True, attn_implementation="eager"
            )
        self.encoder.pooler = None
        self.head = nn.Linear(self.encoder.config.hidden_size, 1)

    def forward(self, tokens: Tensor, inside: Tensor, kinds: Tensor) -> Tensor:
        """Return the score of each token, (rows, length). `inside`: 0 at padding. `kinds`: 0 in the question, 1 in the passage."""
        hidden = self.encoder(input_ids=tokens, attention_mask=inside, token_type_ids=kinds).last_hidden_state
        scores: Tensor = self.head(hidden)[..., 0]
        return scores


class PairTokenizer:
    """Encodes a question with each of some passages, with the tokenizer of an encoder's folder."""

    def __init__(self, folder: Path) -> None:
        self._pairs, self._questions = (Tokenizer.from_file(str(folder / "tokenizer.json")) for _ in range(2))
        for tokenizer in (self._pairs, self._questions):
            tokenizer.no_padding()
        self._pairs.enable_truncation(MAX_TOKENS, strategy="only_second")
        self._questions.enable_truncation(_QUESTION_TOKENS)

    def encode(self, question: str, passages: Sequence[str]) -> list[Any]:
        """Return a row of tokens for each passage. A long question is cut, so that each row has room for its passage."""
        tokens = self._questions.encode(question, add_special_tokens=False)
        if tokens.overflowing:
            question = question[: tokens.offsets[-1][1]]
        rows: list[Any] = self._pairs.encode_batch([(question, passage) for passage in passages])
        return rows


def batch(rows: Sequence[Any]) -> Tensor:
    """Return the arguments of `TokenScorer.forward` for encoded pairs: [3, rows, length]."""
    made = torch.zeros(3, len(rows), max(map(len, rows)), dtype=torch.long)
    for n, row in enumerate(rows):
        made[:, n, : len(row)] = torch.tensor([row.ids, row.attention_mask, row.type_ids])
    return made


class Reranker:
    """Loads its weights when it is first used. Several threads may use it; they take turns.

    `folder`: the encoder; `updates`: the file of trained updates of its weights. `device`: a PyTorch device; `dtype`: of the weights.
    """

    def __init__(self, folder: Path, updates: Path, *, device: torch.device, dtype: torch.dtype) -> None:
        self._folder = folder
        self._updates = updates
        self._device = device
        self._dtype = dtype
        self._lock = threading.Lock()

    @classmethod
    def packaged(cls, folder: Path, *, device: torch.device, dtype: torch.dtype) -> Reranker:
        """Return the reranker that was trained from the packaged embedder, in `folder`.

        Raises `BackboneError` if its file is missing or damaged.
        """
        try:
            with PACKAGED.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise BackboneError(f"cannot read the reranker: {error}; reinstall everlong") from error
        if digest != _PACKAGED_DIGEST:
            raise BackboneError(
                f"the reranker in {str(PACKAGED)!r} has the digest {digest}, and must have {_PACKAGED_DIGEST}: reinstall everlong, or set "
                "EVERLONG_EMBEDDINGS to off"
            )
        return cls(folder, PACKAGED, device=device, dtype=dtype)

    def scores(self, question: str, passages: Sequence[str], sentences: Sequence[Spans]) -> list[NDArray[np.float32]]:
        """Return the score of each sentence of each passage. Larger is better, and a score has no bounds. Blocks.

        Reads the first 64 tokens of the question, and of each passage as much as fits into `MAX_TOKENS` with them. Raises
        `BackboneError` if the weights cannot be loaded.
        """
        encoded = self._tokenizer.encode(question, passages)
        found: list[NDArray[np.float32]] = [np.zeros(0, np.float32)] * len(passages)
        order = sorted(range(len(encoded)), key=lambda n: len(encoded[n]))  # rows of one length need no padding
        for start in range(0, len(order), _ROWS):
            rows = order[start : start + _ROWS]
            with self._lock, torch.inference_mode():  # one batch at a time, so that an answer waits for no whole search
                of_tokens = self._token_scores([encoded[n] for n in rows])
            for n, scores in zip(rows, of_tokens, strict=True):
                found[n] = _means(encoded[n], scores, sentences[n])
        return found

    def _token_scores(self, rows: Sequence[Any]) -> NDArray[np.float32]:
        scores: NDArray[np.float32] = self._model(*batch(rows).to(self._device)).float().cpu().numpy()
        return scores

    @cached_property
    def _tokenizer(self) -> PairTokenizer:
        return PairTokenizer(self._folder)

    @cached_property
    def _model(self) -> TokenScorer:
        model = TokenScorer(self._folder)
        try:
            apply_updates(model, load_file(self._updates))
        except (OSError, SafetensorError, KeyError, RuntimeError) as error:
            raise BackboneError(f"cannot load the reranker {str(self._updates)!r}: {error}") from error
        return model.to(self._device, self._dtype).eval()


@torch.no_grad()
def apply_updates(model: TokenScorer, updates: dict[str, Tensor]) -> None:
    """Add `updates` to the weights of `model`: `NAME.A` (r, in) and `NAME.B` (out, r) for a matrix, which becomes W + B A, and whole
    tensors for all others. Raises `KeyError` for an unknown name, `RuntimeError` for a wrong shape."""
    weights = dict(model.named_parameters())
    for name, update in updates.items():
        if name.endswith(".A"):
            matrix = name.removesuffix(".A")
            weights[matrix].add_(updates[f"{matrix}.B"].float() @ update.float())
        elif not name.endswith(".B"):
            weights[name].copy_(update)


def sentence_tokens(encoding: Any, sentences: Spans) -> list[NDArray[np.int64]]:
    """Return the positions of each sentence's tokens in a row of tokens; none for a sentence that was not read."""
    passage = np.flatnonzero((np.array(encoding.type_ids) == 1) & (np.array(encoding.special_tokens_mask) == 0))
    starts, ends = np.array(encoding.offsets, np.int64).reshape(-1, 2)[passage].T
    return [passage[(ends > start) & (starts < end)] for start, end in sentences]


def _means(encoding: Any, scores: NDArray[np.float32], sentences: Spans) -> NDArray[np.float32]:
    """Return the mean score of the tokens of each sentence. `scores`: of the row's tokens."""
    places = sentence_tokens(encoding, sentences)
    return np.array([scores[tokens].mean() if len(tokens) else _UNREAD for tokens in places], np.float32)
