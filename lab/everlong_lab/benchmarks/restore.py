"""`everlong bench restore`: a hybrid model reads a text, its server is killed, and the next question is asked.

The same random weights everywhere: an LFM2, two thirds of whose layers are short convolutions, the rest attention. everlong serves it
with the memory `native`. llama.cpp's server saves its slot to a file before the kill and restores it afterwards: once after the text,
and once after an answer, when the next question is about the same text and not about the answer. transformers keeps nothing and reads
again.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFWriter
from transformers import AutoModelForCausalLM, Lfm2Config, Lfm2ForCausalLM, PreTrainedModel

from everlong_lab.harness.process import Process
from everlong_lab.harness.report import Report, Target
from everlong_lab.harness.sse_timing import StreamTimer
from everlong_lab.harness.tiny import tiny_tokenizer
from everlong_models.backbone.loading import load_tokenizer

_QUESTIONS = "And then?", "Who rows the boat?"
_WRITTEN = 16
_TEXT = "All in the golden afternoon, full leisurely we glide; for both our oars, with little skill, by little arms are plied. "


def run(*, tokens: int, width: int, layers: int, quick: bool, progress: Callable[[str], None]) -> Report:
    """Read `tokens` tokens into a model of `layers` layers of `width`, kill each server, and ask. `quick`: a tenth of the tokens."""
    tokens = tokens // 10 if quick else tokens
    with tempfile.TemporaryDirectory(prefix="evl") as made:
        folder = Path(made)
        model = _save_model(folder / "model", width, layers)
        text = (_TEXT * (tokens // len(_TEXT) + 1))[:tokens]  # one token for each byte
        progress("everlong: reading")
        rows = [_everlong(folder, text, progress)]
        progress("transformers: reading again")
        rows.append(_transformers(folder / "model", text))
        notes = list(_NOTES)
        if importlib.util.find_spec("xllamacpp") is None:
            notes.append("llama.cpp was not measured: pip install xllamacpp")
        else:
            progress("llama.cpp: reading")
            rows += _llama_cpp(model, folder, text, progress)
    ours = rows[0]["first_token_ms"]
    targets = [
        Target(
            "everlong: the same tokens, to the bit of their log-probabilities (1 = yes)",
            float(rows[0]["same"]),
            1.0,
            at_most=False,
        )
    ]
    targets += [
        Target(
            f"{row['server']}: first token after the kill ÷ everlong's",
            row["first_token_ms"] / ours,
            100,
            at_most=False,
        )
        for row in rows[1:]
    ]
    parameters = sum(p.numel() for p in model.parameters())
    return Report(
        "restore",
        rows,
        targets,
        [
            f"LFM2 with random weights: {layers} layers of width {width}, {parameters / 1e6:.0f} million parameters",
            *notes,
        ],
    )


_NOTES = [
    "first_token_ms: from the question to its first token, in a new process that is ready; with llama.cpp, restoring the slot counts",
    "read_again: tokens that were computed again before the first new one; with everlong those of the open segment and the question",
    "everlong's attention sees the first 32 and the last 1,024 tokens and the open segment, the others' all tokens",
    "same: whether the answer is that of the same server without a kill; None where it was not compared",
]  # fmt: skip


def _everlong(folder: Path, text: str, progress: Callable[[str], None]) -> dict[str, Any]:
    # Without passages, so that all servers get the same prompt.
    server = Process.everlong(
        folder / "data", "--model", str(folder / "model"), "--memory", "native", "--device", "cpu", "--recall-passages", "0"
    )  # fmt: skip
    try:
        server.start()
        began = time.perf_counter()
        document = server.read(text)
        read = time.perf_counter() - began
        before, after = (
            server.http.post("/v1/sessions", json={"documents": [document["id"]]}).json() for _ in range(2)
        )
        expected, _, _ = _ask(server, before["id"])
        server.kill()
        progress(f"everlong: restarted in {server.start():.1f} s")
        found, first, prompt = _ask(server, after["id"])
        return {
            "server": "everlong, native", "tokens": document["tokens"], "read_s": read, "first_token_ms": first * 1e3,
            "read_again": prompt, "same": found == expected, "kept_mb": after["state_bytes"] / 1e6,
        }  # fmt: skip
    finally:
        server.kill()


def _ask(server: Process, session: str) -> tuple[Any, float, int]:
    """Return an answer's tokens with their log-probabilities, the seconds until its first token, and the tokens computed before it."""
    body = {
        "content": _QUESTIONS[0], "stream": True, "max_tokens": _WRITTEN, "ignore_eos": True, "temperature": 0, "logprobs": True,
    }  # fmt: skip
    began, timer = time.perf_counter(), StreamTimer()
    with server.http.stream("POST", f"/v1/sessions/{session}/messages", json=body) as response:
        for line in response.iter_lines():
            timer.feed(line)
    message = timer.message or {}
    usage = message["usage"]
    return message["logprobs"], timer.stamps[0] - began, usage["prompt_tokens"] - usage["reused_tokens"]


def _prompt(folder: Path, text: str, question: str = _QUESTIONS[0]) -> list[int]:
    return load_tokenizer(folder).encode(f"{text}\n{question}\n")


@torch.inference_mode()
def _transformers(folder: Path, text: str) -> dict[str, Any]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = torch.tensor([_prompt(folder, text)])
    model(prompt[:, :64])  # warm up
    began = time.perf_counter()
    model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=1, pad_token_id=0)
    seconds = time.perf_counter() - began
    return {
        "server": "transformers", "tokens": len(text), "read_s": seconds, "first_token_ms": seconds * 1e3,
        "read_again": prompt.shape[1], "same": None, "kept_mb": 0.0,
    }  # fmt: skip


def _llama_cpp(
    model: PreTrainedModel, folder: Path, text: str, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Measure the slot saved after the text, then the slot saved after an answer, when the next question is another one."""
    file, slots = folder / "model.gguf", folder / "slots"
    _write_gguf(model, file)
    slots.mkdir()
    program = [sys.executable, "-m", "everlong_lab.benchmarks.llama", str(file), "{port}", str(len(text) + 256)]
    server = Process(
        [*program, str(torch.get_num_threads()), str(slots)], ready="/health", what="llama.cpp's server", fresh=True
    )
    rows = []
    try:
        server.start()
        began = time.perf_counter()
        asked, other = (_prompt(folder / "model", text, question) for question in _QUESTIONS)
        _complete(server, asked[: len(text)], 1)
        read = time.perf_counter() - began
        _slot(server, "save", "text")
        expected, _, _ = _complete(server, asked, _WRITTEN)
        _slot(server, "save", "answer")
        for slot, ids in (("text", asked), ("answer", other)):
            server.kill()
            progress(f"llama.cpp: restarted in {server.start():.1f} s; restoring the slot saved after the {slot}")
            restored = _slot(server, "restore", slot)
            found, first, again = _complete(server, ids, _WRITTEN)
            rows.append({
                "server": f"llama.cpp, slot saved after the {slot}", "tokens": len(text), "read_s": read,
                "first_token_ms": (restored + first) * 1e3, "read_again": again, "same": found == expected if ids is asked else None,
                "kept_mb": (slots / slot).stat().st_size / 1e6,
            })  # fmt: skip
    finally:
        server.kill()
    return rows


def _slot(server: Process, action: str, name: str) -> float:
    """Save or restore the server's slot; return the seconds."""
    began = time.perf_counter()
    server.http.post(f"/slots/0?action={action}", json={"filename": name}).raise_for_status()
    return time.perf_counter() - began


def _complete(server: Process, ids: Sequence[int], written: int) -> tuple[list[int], float, int]:
    """Return the tokens that llama.cpp's server writes after `ids`, the seconds until the first, and the tokens it computed before it."""
    body = {
        "prompt": list(ids), "n_predict": written, "temperature": 0, "top_k": 1, "ignore_eos": True, "id_slot": 0, "cache_prompt": True,
        "stream": True, "return_tokens": True,
    }  # fmt: skip
    began, first, tokens, again = time.perf_counter(), 0.0, [], 0
    with server.http.stream("POST", "/completion", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                piece = json.loads(line.removeprefix("data: "))
                tokens += piece.get("tokens", [])
                if not first and tokens:
                    first = time.perf_counter() - began
                again = piece.get("timings", {}).get("prompt_n", again)
    return tokens, first or time.perf_counter() - began, again


def _save_model(folder: Path, width: int, layers: int) -> PreTrainedModel:
    """Save an LFM2 with random weights and a tokenizer of bytes."""
    torch.manual_seed(0)
    kinds = ["full_attention" if layer % 3 == 2 else "conv" for layer in range(layers)]
    config = Lfm2Config(
        vocab_size=257, hidden_size=width, intermediate_size=3 * width, block_auto_adjust_ff_dim=False, num_hidden_layers=layers,
        num_attention_heads=width // 64, num_key_value_heads=max(1, width // 128), layer_types=kinds, max_position_embeddings=128_000,
        bos_token_id=None, eos_token_id=256, pad_token_id=None,
    )  # fmt: skip
    model = Lfm2ForCausalLM(config).eval()
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return model


_GGUF_NAMES = {
    "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "feed_forward.w1": "ffn_gate", "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up", "conv.conv": "shortconv.conv", "conv.in_proj": "shortconv.in_proj", "conv.out_proj": "shortconv.out_proj",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
}  # fmt: skip
"""The names of a layer's tensors: transformers' → llama.cpp's."""


def _write_gguf(model: PreTrainedModel, file: Path) -> None:
    """Write the LFM2 in float32 with a vocabulary of bytes, for llama.cpp."""
    config = model.config
    writer = GGUFWriter(file, "lfm2")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv([config.num_key_value_heads * (kind == "full_attention") for kind in config.layer_types])
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_shortconv_l_cache(config.conv_L_cache)
    writer.add_vocab_size(config.vocab_size)
    tokens = sorted(tiny_tokenizer().get_vocab().items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([token for token, _ in tokens])
    writer.add_token_types([1] * 256 + [3])
    writer.add_token_merges(["a b"])  # llama.cpp requires one; prompts are sent as token ids
    writer.add_eos_token_id(256)
    writer.add_add_bos_token(False)
    for name, tensor in model.state_dict().items():
        values = tensor.float().numpy()
        parts = name.removeprefix("model.").removesuffix(".weight").split(".", 2)
        if parts[0] == "layers":
            values = np.squeeze(values, 1) if values.ndim == 3 else values
            writer.add_tensor(f"blk.{parts[1]}.{_GGUF_NAMES[parts[2]]}.weight", values)
        elif parts[0] != "lm_head":  # tied to the embeddings
            writer.add_tensor(
                {"embed_tokens": "token_embd", "embedding_norm": "token_embd_norm"}[parts[0]] + ".weight", values
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
