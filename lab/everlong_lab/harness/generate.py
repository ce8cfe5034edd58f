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


class _Stamps:
    """A streamer that records the times of tokens; the first is that of the prompt."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.at.append(time.perf_counter())

    def end(self) -> None:
        pass


class _Model:
    """The model of `folder` as transformers runs it. `way`: see `Transformers`."""

    def __init__(self, folder: Path, way: str) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache  # noqa: PLC0415

        self._way, self._new_cache = way, DynamicCache
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model.generation_config.pad_token_id = self._tokenizer.eos_token_id
        self._cache, self._read = DynamicCache(), torch.empty(1, 0, dtype=torch.int64)
        self._index = sqlite3.connect(":memory:")
        self._index.execute("CREATE VIRTUAL TABLE pieces USING fts5(text, tokenize='porter unicode61')")

    def read(self, text: str) -> tuple[int, float]:
        """Read or index a text; return its tokens, or words if it is indexed, and the seconds."""
        began = time.perf_counter()
        if self._way == "passages":
            words = text.split()
            pieces = (" ".join(words[at : at + _PASSAGE_WORDS]) for at in range(0, len(words), _PASSAGE_WORDS))
            self._index.executemany("INSERT INTO pieces VALUES (?)", ((piece,) for piece in pieces))
            return len(words), time.perf_counter() - began
        self._cache, self._read = self._new_cache(), self._ids(text)
        if self._way == "sampled":
            return self._read.shape[1], _estimated_seconds(self._model, self._read, self._cache)
        self._model(self._read, past_key_values=self._cache, logits_to_keep=1)
        return self._read.shape[1], time.perf_counter() - began

    def ask(self, question: str) -> tuple[float, float, float]:
        """Return the seconds until the first token, for each further one, and of the longest pause between two."""
        began, stamps = time.perf_counter(), _Stamps()
        if self._way == "passages":
            prompt, cached = self._ids("\n\n".join(self._passages(question)) + ask_prompt(question)), {}
        else:
            prompt = torch.cat([self._read, self._ids(ask_prompt(question))], dim=1)
            cached = {"past_key_values": self._cache}
        self._model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, streamer=stamps,
            max_new_tokens=WRITTEN, min_new_tokens=WRITTEN, **cached,
        )  # fmt: skip
        if cached:
            self._cache.crop(self._read.shape[1] - self._cache.get_seq_length())
        tokens = stamps.at[1:]
        return tokens[0] - began, (tokens[-1] - tokens[0]) / (len(tokens) - 1), longest(tokens)

    def _ids(self, text: str) -> torch.Tensor:
        ids: torch.Tensor = self._tokenizer(text, return_tensors="pt").input_ids
        return ids

    def _passages(self, question: str) -> list[str]:
        query = " OR ".join(re.findall(r"\w+", question))
        sql = "SELECT text FROM pieces WHERE pieces MATCH ? ORDER BY rank LIMIT ?"
        return [text for (text,) in self._index.execute(sql, (query, _PASSAGES))]


def generate(pipe: Connection, folder: Path, way: str, threads: int) -> None:
    """Answer ("read", text) and ("ask", question) from `pipe` with the results of `_Model`, forever."""
    torch.set_num_threads(threads)
    model = _Model(folder, way)
    pipe.send("ready")
    with torch.inference_mode():
        while True:
            what, text = pipe.recv()
            pipe.send(model.read(text) if what == "read" else model.ask(text))
