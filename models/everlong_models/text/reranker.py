"""`Reranker`: how well each sentence of some passages answers a question, by an encoder that reads both together.

A passage's vector is made before the question is known. This model reads the question with the passage (a cross-encoder: Nogueira & Cho,
2019, arXiv 1901.04085), so it tells an answer from a sentence with the same words. It gives each token a score, and a sentence has the
mean of its tokens: one pass ranks all sentences of a passage (as in Provence: Chirkova et al., 2025, arXiv 2501.16214).

The packaged weights are updates of the packaged embedder: pairs of low rank for its matrices, and new biases and norms
(`everlong train-reranker`, docs/research/data.md).
"""

from __future__ import annotations

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

PACKAGED = Path(__file__).parent.parent / "trained" / "reranker" / "updates.safetensors"
MAX_TOKENS = 224
"""Maximum number of tokens of a question and a passage. The end of a longer passage is not read."""
_QUESTION_TOKENS = 64
_ROWS = 32
_UNREAD = -20.0
"""Score of a sentence without a token that was read."""

Spans = Sequence[tuple[int, int]]
"""Start and end of each sentence of a passage, in characters."""


class TokenScorer(nn.Module):
    """An encoder of BERT's kind, and a linear layer that gives each token a score."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """`folder`: the encoder, in Hugging Face format."""
        super().__init__()
        with without_progress_bars():
            # Rows are short: plain attention is several times faster here than PyTorch's fused one on a CPU.
            self.encoder = AutoModel.from_pretrained(
                folder, dtype=dtype, local_files_only=True, attn_implementation="eager"
            )
        self.encoder.pooler = None
        self.head = nn.Linear(self.encoder.config.hidden_size, 1, dtype=dtype)

    def forward(self, tokens: Tensor, inside: Tensor, kinds: Tensor) -> Tensor:
        """Return the score of each token, (rows, length). `inside`: 0 at padding. `kinds`: 0 in the question, 1 in the passage."""
        hidden = self.encoder(input_ids=tokens, attention_mask=inside, token_type_ids=kinds).last_hidden_state
        scores: Tensor = self.head(hidden)[..., 0]
        return scores


def pair_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of `folder` for pairs of a question and a passage."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS, strategy="only_second")
    return tokenizer


def batch(rows: Sequence[Any]) -> Tensor:
    """Return the arguments of `TokenScorer.forward` for encoded pairs: [3, rows, length]."""
    made = torch.zeros(3, len(rows), max(map(len, rows)), dtype=torch.long)
    for n, row in enumerate(rows):
        made[:, n, : len(row)] = torch.tensor([row.ids, row.attention_mask, row.type_ids])
    return made


class Reranker:
    """Loads its weights when it is first used. May be used by several threads, one at a time.

    `folder`: the encoder; `updates`: what was trained. `device`: a PyTorch device; `dtype`: of the weights.
    """

    def __init__(self, folder: Path, updates: Path, *, device: torch.device, dtype: torch.dtype) -> None:
        self._folder = folder
        self._updates = updates
        self._device = device
        self._dtype = dtype
        self._lock = threading.Lock()

    def scores(self, question: str, passages: Sequence[str], sentences: Sequence[Spans]) -> list[NDArray[np.float32]]:
        """Return the score of each sentence of each passage, any number: larger is better. Blocks.

        Only the beginning of a long question counts, and of a passage as much as `MAX_TOKENS` hold with it. Raises `BackboneError`
        if the weights cannot be loaded.
        """
        question = self._shortened(question)
        encoded = self._tokenizer.encode_batch([(question, passage) for passage in passages])
        found: list[NDArray[np.float32]] = [np.zeros(0, np.float32)] * len(passages)
        order = sorted(range(len(encoded)), key=lambda n: len(encoded[n]))  # rows of one length need no padding
        with self._lock, torch.inference_mode():
            for start in range(0, len(order), _ROWS):
                rows = order[start : start + _ROWS]
                for n, scores in zip(rows, self._token_scores([encoded[n] for n in rows]), strict=True):
                    found[n] = _means(encoded[n], scores, sentences[n])
        return found

    def _shortened(self, question: str) -> str:
        """Return the question, cut after its first tokens, so that every passage has room beside it."""
        tokens = self._question_tokenizer.encode(question, add_special_tokens=False)
        return question[: tokens.offsets[-1][1]] if tokens.overflowing else question

    def _token_scores(self, rows: Sequence[Any]) -> NDArray[np.float32]:
        scores: NDArray[np.float32] = self._model(*batch(rows).to(self._device)).float().cpu().numpy()
        return scores

    @cached_property
    def _tokenizer(self) -> Any:
        return pair_tokenizer(self._folder)

    @cached_property
    def _question_tokenizer(self) -> Any:
        tokenizer = Tokenizer.from_file(str(self._folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(_QUESTION_TOKENS)
        return tokenizer

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
    """Return the places in a row of the tokens of each sentence; none for a sentence behind `MAX_TOKENS`."""
    passage = np.flatnonzero((np.array(encoding.type_ids) == 1) & (np.array(encoding.special_tokens_mask) == 0))
    starts, ends = np.array(encoding.offsets, np.int64).reshape(-1, 2)[passage].T
    return [passage[(ends > start) & (starts < end)] for start, end in sentences]


def _means(encoding: Any, scores: NDArray[np.float32], sentences: Spans) -> NDArray[np.float32]:
    """Return the mean score of the tokens of each sentence. `scores`: of the row's tokens."""
    places = sentence_tokens(encoding, sentences)
    return np.array([scores[tokens].mean() if len(tokens) else _UNREAD for tokens in places], np.float32)
