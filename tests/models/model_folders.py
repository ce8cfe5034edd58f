"""Tiny model folders, made once a test run and copied for tests that damage them."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from everlong_models.weights import MANIFEST, WEIGHTS
from tests.tinymodel import make_tokenizer

RMT = {"name": "rmt", "segment_length": 16, "memory_tokens": 2}
VOCAB = 300
_ROOM = tempfile.TemporaryDirectory(prefix="everlong-tests-")  # removed when the process ends


@functools.cache
def backbone(family: str = "llama") -> Path:
    """Return a tiny backbone's folder in Hugging Face format. Tests must not write to it."""
    folder = Path(_ROOM.name) / family
    torch.manual_seed(3)
    if family == "llama":
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
        model = LlamaForCausalLM(
            LlamaConfig(vocab_size=VOCAB, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, **sizes)
        )
    else:
        config = GPT2Config(
            vocab_size=VOCAB, n_embd=16, n_layer=2, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=2
        )
        model = GPT2LMHeadModel(config)
    model.save_pretrained(folder)
    make_tokenizer(VOCAB).save_pretrained(folder)
    return folder


def manifest(folder: Path, **changes: Any) -> Path:
    """Write the `everlong.json` of an RMT around the tiny Llama, with `changes`. Returns the folder."""
    folder.mkdir(exist_ok=True)
    fields = {"format": "everlong.model", "version": 1, "backbone": str(backbone()), "memory": RMT} | changes
    (folder / MANIFEST).write_text(json.dumps(fields))
    return folder


def change_weights(folder: Path, **changes: Tensor | None) -> None:
    """Replace, add or (None) remove tensors of `memory.safetensors`; `__` in a name means a dot."""
    file = folder / WEIGHTS
    tensors = load_file(file) if file.exists() else {}
    tensors |= {name.replace("__", "."): tensor for name, tensor in changes.items()}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, file)
