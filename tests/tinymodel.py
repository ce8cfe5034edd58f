"""A tiny model folder with random weights: a Llama of two layers, a byte-level tokenizer trained on the test data, RMT."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from everlong_models.backbone.backbone import Backbone
from everlong_models.memories.rmt import RMT, RMTConfig
from everlong_models.weights import Manifest, save_weights

DATA = Path(__file__).parent / "data"
NOVEL = DATA / "valley-of-fear.md"
STORY = DATA / "looking-glass.md"

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

HERMES = (
    "{% if tools %}<|im_start|>system\n"
    "{{ messages[0]['content'] + '\n\n' if messages[0]['role'] == 'system' else '' }}Tools:"
    "{% for t in tools %}{{ '\n' + (t | tojson) }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{% if m['role'] == 'tool' %}"
    "{% if messages[loop.index0 - 1]['role'] != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n<tool_response>\n' + m['content'] + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% elif m['tool_calls'] %}<|im_start|>assistant{% if m['content'] %}{{ '\n' + m['content'] }}{% endif %}"
    "{% for c in m['tool_calls'] %}"
    """{{ '\n<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' + (c.function.arguments | tojson) + '}\n</tool_call>' }}"""
    "{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif not (tools and loop.first and m['role'] == 'system') %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""A template with tools, in the style of Hermes and Qwen."""


def make_tokenizer(vocab: int = 512, template: str = CHAT, marks: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer with chat markup on the test data. `marks`: further tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(NOVEL)], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", bos_token="<|im_start|>")
    fast.chat_template = template
    fast.add_tokens([AddedToken(mark, special=False) for mark in marks])
    return fast


def make_model(
    folder: Path,
    *,
    segment_length: int = 64,
    memory_tokens: int = 4,
    name: str = "tiny-rmt",
    seed: int = 0,
) -> Path:
    """Write a model folder for `--model`, with backbone, tokenizer and random memory weights, and return its path."""
    target = folder / name
    backbone = target / "backbone"
    language_model = _save_backbone(backbone, make_tokenizer(), positions=256, seed=seed)
    memory = RMT(RMTConfig(segment_length=segment_length, memory_tokens=memory_tokens), Backbone(language_model))
    spec = {"name": "rmt", "segment_length": segment_length, "memory_tokens": memory_tokens}
    save_weights(
        target,
        Manifest(backbone="backbone", memory=spec, trained=False, description="random weights, for tests"),
        memory,
    )
    assert json.loads((target / "everlong.json").read_text())["memory"]["name"] == "rmt"
    return target


def make_tool_model(folder: Path) -> Path:
    """Write the folder of a plain backbone whose chat template has tools, and return it. Served with the window memory."""
    target = folder / "tiny-tools"
    marks = ("<tool_call>", "</tool_call>")
    _save_backbone(target, make_tokenizer(template=HERMES, marks=marks), positions=4096, seed=0)
    return target


def _save_backbone(folder: Path, tokenizer: PreTrainedTokenizerFast, *, positions: int, seed: int) -> LlamaForCausalLM:
    """Save a Llama with random weights and its tokenizer, and return the model."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        bos_token_id=1,
        eos_token_id=2,
    )
    language_model = LlamaForCausalLM(config).eval()
    # Larger weights than usual make the random model's distributions sharp, so that different states give different answers.
    with torch.no_grad():
        for parameter in language_model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    language_model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return language_model
