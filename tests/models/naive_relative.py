"""Naive Transformer-XL, Compressive Transformer and LaMemo: the papers' equations as loops, one row at a time.

They share only the parameters with the fast models. Memories are lists that grow as they fill: no masks, no right
alignment, no logarithms of sums, no shifts. Everything is float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from everlong_models.memories.relative.decoder import RelativeDecoder

SMALL = {"vocab_size": 41, "width": 12, "layers": 2, "heads": 2, "feed_forward": 16, "segment_length": 8}


def random_weights(model: RelativeDecoder, seed: int = 0) -> RelativeDecoder:
    """Return `model` in float64 and eval mode, with weights so large that attention is not uniform, and non-zero biases."""
    generator = torch.Generator().manual_seed(seed)
    model = model.double().eval()
    for name, parameter in model.named_parameters():
        centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = centre + (0.8 if "positions" in name else 0.4) * noise
    return model


def gradients(model: RelativeDecoder, loss: Tensor) -> dict[str, Tensor]:
    """Return the gradient of every parameter, zero where there is none."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for name, parameter, gradient in zip(names, parameters, found, strict=True)
    }


def sinusoid(distance: int, width: int) -> Tensor:
    """Return R of one distance (D,)."""
    rates = [10000.0 ** (-2 * k / width) for k in range(width // 2)]
    angles = [distance * rate for rate in rates]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)


def score(model: RelativeDecoder, layer: int, head: int, xi: Tensor, i: int, xj: Tensor, j: int) -> Tensor:
    """A_ij/√d, term by term: xᵢᵀW_qᵀW_k xⱼ + xᵢᵀW_qᵀW_r R + uᵀW_k xⱼ + vᵀW_r R."""
    attention, positions = model.blocks[layer].attention, model.positions
    rows = slice(head * attention.dim, (head + 1) * attention.dim)
    W_q, W_k, W_r = (getattr(attention, name).weight[rows] for name in ("query", "key", "position"))
    u, v = positions.content[head, 0], positions.behind[head, 0]
    if positions.form == "disentangled":
        R = sinusoid(abs(i - j), xi.shape[0])
        if i < j:
            v = positions.ahead[head, 0]
    else:
        R = sinusoid(i - j, xi.shape[0])
    A = (W_q @ xi) @ (W_k @ xj) + (W_q @ xi) @ (W_r @ R) + u @ (W_k @ xj) + v @ (W_r @ R)
    return A / math.sqrt(attention.dim)


def attend(
    model: RelativeDecoder, layer: int, xi: Tensor, i: int, keys: list[tuple[int, Tensor]]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return position i's contexts (d,) and sums of exponentials, head by head, over keys [(j, xⱼ)]."""
    attention = model.blocks[layer].attention
    contexts, sums = [], []
    for head in range(attention.heads):
        W_v = attention.value.weight[head * attention.dim : (head + 1) * attention.dim]
        weights = [torch.exp(score(model, layer, head, xi, i, xj, j)) for j, xj in keys]
        sums.append(sum(weights))
        contexts.append(sum(w * (W_v @ xj) for w, (_, xj) in zip(weights, keys, strict=True)) / sums[-1])
    return contexts, sums


def finish(model: RelativeDecoder, layer: int, x: Tensor, contexts: list[Tensor]) -> Tensor:
    """The rest of the layer: LN(h + FFN(h)), h = LN(x + W_o C)."""
    block = model.blocks[layer]

    def norm(z: Tensor, weights: torch.nn.LayerNorm) -> Tensor:
        return (z - z.mean()) / torch.sqrt(z.var(unbiased=False) + weights.eps) * weights.weight + weights.bias

    h = norm(x + block.attention.output.weight @ torch.cat(contexts), block.attention_norm)
    inner = F.relu(block.expand.weight @ h + block.expand.bias)
    return norm(h + block.contract.weight @ inner + block.contract.bias, block.norm)


def embed(model: RelativeDecoder, token: int) -> Tensor:
    """√D E(token)."""
    E = model.embedding.weight
    return E[token] * math.sqrt(E.shape[1])


def causal_segment(
    model: RelativeDecoder, tokens: list[int], past: list[list[tuple[int, Tensor]]]
) -> tuple[Tensor, list[list[Tensor]]]:
    """Return logits (T, V) and every position's layer inputs. In layer l, token t has position t and sees `past[l]`, at j < 0."""
    xs, inputs = [embed(model, token) for token in tokens], []
    for layer in range(len(model.blocks)):
        inputs.append(xs)
        xs = [
            finish(model, layer, x, attend(model, layer, x, t, past[layer] + list(enumerate(xs[: t + 1])))[0])
            for t, x in enumerate(xs)
        ]
    return torch.stack(xs) @ model.embedding.weight.T, [list(position) for position in zip(*inputs, strict=True)]


@dataclass
class NaiveTransformerXL:
    """`memory`: the inputs of every layer at the last M positions, oldest first."""

    model: RelativeDecoder
    memory: list[list[Tensor]]

    def segment(self, tokens: list[int]) -> Tensor:
        """Return logits (T, V), and update the memory."""
        m = len(self.memory)
        past = [[(j - m, at[layer].detach()) for j, at in enumerate(self.memory)] for layer in _layers(self.model)]
        logits, inputs = causal_segment(self.model, tokens, past)
        M = self.model.config.memory_length
        self.memory = (self.memory + inputs)[-M:] if M else []
        return logits


@dataclass
class NaiveCompressive:
    """Like `NaiveTransformerXL`, plus `compressed`: while the memory exceeds M, its c oldest positions move there as one."""

    model: RelativeDecoder
    memory: list[list[Tensor]]
    compressed: list[list[Tensor]]
    loss: Tensor | None = None

    def segment(self, tokens: list[int]) -> Tensor:
        """Return logits (T, V), update both memories, and set `loss` to the attention-reconstruction loss."""
        config, model = self.model.config, self.model
        M, C, c = config.memory_length, config.compressed_length, config.compression_rate
        past = []
        for layer in _layers(model):
            long = [(j - len(self.compressed) - M, at[layer].detach()) for j, at in enumerate(self.compressed)]
            short = [(j - len(self.memory), at[layer].detach()) for j, at in enumerate(self.memory)]
            past.append(long + short)
        logits, inputs = causal_segment(model, tokens, past)
        self.memory, left = self.memory + inputs, []
        while len(self.memory) > M:
            left, self.memory = left + self.memory[:c], self.memory[c:]
        compressed_groups = [self._compress(left[n : n + c]) for n in range(0, len(left), c)]
        self.compressed = (self.compressed + compressed_groups)[-C:]
        self.loss = self._loss(inputs, left, compressed_groups) if left else torch.zeros((), dtype=torch.float64)
        return logits

    def _compress(self, group: list[list[Tensor]]) -> list[Tensor]:
        """Conv over a group of c positions: bias + Σ_k W[:, :, k] x_k."""
        return [
            conv.bias + sum(conv.weight[:, :, k] @ at[layer].detach() for k, at in enumerate(group))
            for layer, conv in enumerate(self.model.compress)
        ]

    def _loss(
        self, inputs: list[list[Tensor]], left: list[list[Tensor]], compressed_groups: list[list[Tensor]]
    ) -> Tensor:
        """Σ over layers of the mean square between content attention over `left` and over `compressed_groups`."""
        total = torch.zeros((), dtype=torch.float64)
        for layer in _layers(self.model):
            errors = []
            for at in inputs:
                wanted = self._recall(layer, at[layer].detach(), [m[layer].detach() for m in left])
                found = self._recall(layer, at[layer].detach(), [m[layer] for m in compressed_groups])
                errors += [(w - f) ** 2 for w, f in zip(wanted, found, strict=True)]
            total = total + torch.cat(errors).mean()
        return total

    def _recall(self, layer: int, h: Tensor, memory: list[Tensor]) -> list[Tensor]:
        """softmax(hW_q (mW_k)ᵀ/√d) mW_v, head by head."""
        attention, found = self.model.blocks[layer].attention, []
        for head in range(attention.heads):
            rows = slice(head * attention.dim, (head + 1) * attention.dim)
            W_q, W_k, W_v = (getattr(attention, n).weight[rows].detach() for n in ("query", "key", "value"))
            weights = [torch.exp((W_q @ h) @ (W_k @ m) / math.sqrt(attention.dim)) for m in memory]
            found.append(sum(w * (W_v @ m) for w, m in zip(weights, memory, strict=True)) / sum(weights))
        return found


@dataclass
class Remembered:
    """A position of LaMemo's memory: its token, and its contexts C and sums s, layer by layer and head by head."""

    token: int
    C: list[list[Tensor]]
    s: list[list[Tensor]]


@dataclass
class NaiveLaMemo:
    """`memory`: the last M positions, oldest first. `fresh`: how many tokens the last segment had."""

    model: RelativeDecoder
    memory: list[Remembered]
    fresh: int = 0

    def segment(self, tokens: list[int]) -> Tensor:
        """Return logits (T, V), and refresh and update the memory."""
        model, m = self.model, len(self.memory)
        line = [embed(model, at.token).detach() for at in self.memory] + [embed(model, token) for token in tokens]
        new = [Remembered(token, [], []) for token in tokens]
        for layer in _layers(model):
            keys, contexts = list(enumerate(line)), []
            for i, at in enumerate(self.memory):
                # Eq. 7: the newest positions, up to the segment's first token; eq. 9: only those on the right of i.
                window = [(j, x) for j, x in keys[: m + 1] if j > max(i, m - self.fresh)]
                ahead, sums = attend(model, layer, line[i], i, window)
                for head, (C_ahead, s_ahead) in enumerate(zip(ahead, sums, strict=True)):
                    C_old, s_old = at.C[layer][head].detach(), at.s[layer][head].detach()
                    alpha = s_old / (s_old + s_ahead)  # eq. 11
                    at.C[layer][head] = alpha * C_old + (1 - alpha) * C_ahead  # eq. 10
                    at.s[layer][head] = s_old + s_ahead
                contexts.append(list(at.C[layer]))
            for t, at in enumerate(new):
                C, s = attend(model, layer, line[m + t], m + t, keys[: m + t + 1])
                at.C.append(C)
                at.s.append(s)
                contexts.append(C)
            line = [finish(model, layer, x, C) for x, C in zip(line, contexts, strict=True)]
        self.memory = (self.memory + new)[-model.config.memory_length :]
        self.fresh = len(tokens)
        return torch.stack(line[m:]) @ model.embedding.weight.T


def _layers(model: RelativeDecoder) -> range:
    return range(len(model.blocks))
