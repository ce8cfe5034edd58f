"""A tiny model with random weights, for measurements that do not depend on what a model answers."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, Mamba2Config, Mamba2ForCausalLM, PreTrainedTokenizerFast

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.recurrent.model import Recurrent
from everlong_models.memories.base import SegmentReader
from everlong_models.memories.rmt import RMT, RMTConfig
from everlong_models.model import MEMORIES
from everlong_models.weights import Manifest, save_weights

SEGMENT, MEMORY_TOKENS = 512, 16


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each byte, and an end-of-text mark."""
    vocabulary = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")  # noqa: S106 - a token of text


def tiny_backbone(device: torch.device | str = "cpu") -> Backbone:
    """Return a Llama of 2 layers and width 128, in float32."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=256,
    )
    return Backbone(LlamaForCausalLM(config).eval().requires_grad_(False).to(device))


def tiny_recurrent(device: torch.device | str = "cpu") -> Recurrent:
    """Return a Mamba-2 of 2 layers and width 128, in float32."""
    torch.manual_seed(0)
    config = Mamba2Config(
        vocab_size=257, hidden_size=128, num_hidden_layers=2, num_heads=8, head_dim=32, n_groups=1, bos_token_id=None, eos_token_id=256
    )  # fmt: skip
    return Recurrent(Mamba2ForCausalLM(config).eval().requires_grad_(False).to(device))


def tiny_memory(name: str, backbone: Backbone | Recurrent | None, segment: int = SEGMENT) -> SegmentReader:
    """Return the memory `name` around `backbone`, or from scratch with 4 layers of width 256; the rest as in its paper."""
    kind = MEMORIES[name]
    options: dict[str, object] = {"segment_length": segment}
    if name == "infinite":
        options |= {"source": "normed"}
    if not kind.around:
        options |= {"vocab_size": 257, "layers": 4, "heads": 4, "width": 256}
    config = kind.config.model_validate(options)
    module = kind.build(config, backbone) if kind.around else kind.build(config)
    return module.eval().requires_grad_(False)


def tiny_rmt(segment: int = SEGMENT) -> RMT:
    """Return an RMT with 16 memory tokens around the tiny backbone."""
    return RMT(RMTConfig(segment_length=segment, memory_tokens=MEMORY_TOKENS), tiny_backbone()).eval()


def save_tiny(folder: Path, segment: int = SEGMENT) -> Path:
    """Save `tiny_rmt` as a model folder for `--model`; return its path."""
    memory = tiny_rmt(segment)
    memory.backbone.model.save_pretrained(folder / "backbone")
    tiny_tokenizer().save_pretrained(folder / "backbone")
    spec = {"name": "rmt", "segment_length": segment, "memory_tokens": MEMORY_TOKENS}
    save_weights(folder, Manifest(backbone="backbone", memory=spec, trained=False), memory)
    return folder
