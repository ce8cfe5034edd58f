"""The process of the transformers peers of `bench peers`: prefill with the forward pass, answers with `generate`."""

from __future__ import annotations

import re
import sqlite3
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from everlong_lab.harness.sse_timing import longest

WRITTEN = 32
"""Tokens of an answer."""
_PASSAGE_WORDS = 80
_PASSAGES = 12
_SAMPLES = 9
_SAMPLED = 512
"""Tokens of each sample."""


def ask_prompt(question: str) -> str:
    """Return the question as it follows a text."""
    return f"\n\nQuestion: {question}\nAnswer:"


def _estimated_seconds(model: Any, tokens: torch.Tensor, cache: Any) -> float:
    """Estimate the prefill time of `tokens` (1, N) from `_SAMPLES` pieces spread evenly over it.

    Each piece follows a `cache` of random keys and values; only their number matters. The time of a piece grows linearly
    with its position, so the integral over a linear interpolation estimates the total. Leaves N positions in `cache`.
    """
    heads, width = model.config.num_key_value_heads, model.config.head_dim

    def fill(until: int) -> None:
        more = torch.randn(1, heads, until - cache.get_seq_length(), width)
        for layer in range(model.config.num_hidden_layers):
            cache.update(more, more, layer)

    length = tokens.shape[1]
    places = torch.linspace(0, length - _SAMPLED, _SAMPLES).long().tolist()
    seconds = []
    for place in places:
        if place:
            fill(place)
        took = []
        for _ in range(2):
            began = time.perf_counter()
            model(tokens[:, place : place + _SAMPLED], past_key_values=cache, logits_to_keep=1)
            took.append(time.perf_counter() - began)
            cache.crop(place - cache.get_seq_length())
        seconds.append(min(took))
    fill(length)
    return float(torch.trapezoid(torch.tensor(seconds), torch.tensor(places))) / _SAMPLED * length / places[-1]


def generate(pipe: Connection, folder: Path, way: str, threads: int) -> None:
    """Hears ("read", text) and ("ask", question); says (tokens, seconds), and seconds until the first token, for each further
    one, and of the longest pause between two. `way`: see `Transformers`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache  # noqa: PLC0415
    from transformers.generation.streamers import BaseStreamer  # noqa: PLC0415

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model.generation_config.pad_token_id = tokenizer.eos_token_id

    class Stamps(BaseStreamer):  # type: ignore[misc] # untyped
        def __init__(self) -> None:
            self.at: list[float] = []

        def put(self, value: torch.Tensor) -> None:
            self.at.append(time.perf_counter())

        def end(self) -> None:
            pass

    passages = way == "passages"
    cache, read = DynamicCache(), torch.empty(1, 0, dtype=torch.int64)
    index = sqlite3.connect(":memory:")
    index.execute("CREATE VIRTUAL TABLE pieces USING fts5(text, tokenize='porter unicode61')")
    pipe.send("ready")
    while True:
        what, text = pipe.recv()
        began = time.perf_counter()
        if what == "read" and passages:
            words = text.split()
            starts = range(0, len(words), _PASSAGE_WORDS)
            index.executemany(
                "INSERT INTO pieces VALUES (?)", ((" ".join(words[at : at + _PASSAGE_WORDS]),) for at in starts)
            )
            pipe.send((len(words), time.perf_counter() - began))
            continue
        if what == "read":
            cache, read = DynamicCache(), tokenizer(text, return_tensors="pt").input_ids
            with torch.inference_mode():
                if way == "sampled":
                    seconds = _estimated_seconds(model, read, cache)
                else:
                    model(read, past_key_values=cache, logits_to_keep=1)
                    seconds = time.perf_counter() - began
            pipe.send((read.shape[1], seconds))
            continue
        if passages:
            query = " OR ".join(re.findall(r"\w+", text))
            found = index.execute(
                "SELECT text FROM pieces WHERE pieces MATCH ? ORDER BY rank LIMIT ?", (query, _PASSAGES)
            ).fetchall()
            prompt = tokenizer(
                "\n\n".join(piece for (piece,) in found) + ask_prompt(text), return_tensors="pt"
            ).input_ids
        else:
            prompt = torch.cat([read, tokenizer(ask_prompt(text), return_tensors="pt").input_ids], dim=1)
        stamps = Stamps()
        with torch.inference_mode():
            model.generate(
                prompt, attention_mask=torch.ones_like(prompt), do_sample=False, streamer=stamps,
                max_new_tokens=WRITTEN, min_new_tokens=WRITTEN, **({} if passages else {"past_key_values": cache}),
            )  # fmt: skip
        if not passages:
            cache.crop(read.shape[1] - cache.get_seq_length())
        given = stamps.at[1:]  # the prompt is put first
        pipe.send((given[0] - began, (given[-1] - given[0]) / (len(given) - 1), longest(given)))
