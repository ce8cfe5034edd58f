"""Let transformers' recurrent layers read several tokens from a state that is not empty.

transformers' Mamba reads a chunk as if nothing came before it, and its RecurrentGemma keeps its state inside the modules. The functions
here replace the `forward` of such a layer. They use the layer's own weights, and take the state from the cache that is passed along.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

_BLOCK = 64
"""Tokens whose decays are computed at once: (block, B, D, N) numbers in float32."""


def scan_from_state(model: PreTrainedModel) -> None:
    """Let every Mamba-1 mixer of `model` read several tokens from a state (Gu and Dao 2023, algorithm 2)."""
    for mixer in model.modules():
        if hasattr(mixer, "A_log") and hasattr(mixer, "x_proj"):
            mixer.forward = partial(_selective_scan, mixer, mixer.forward)


def _selective_scan(
    mixer: Any, transformers_forward: Any, hidden_states: Tensor, cache_params: Any = None, **rest: Any
) -> Tensor:
    """Return what the mixer's own `forward` does (B, T, d), and continue from the recurrent state in `cache_params`.

    h_t = exp(Δ_t A) h_{t-1} + Δ_t B_t x_t,    y_t = C_t h_t + D x_t.    Without a state, and for one token, it calls transformers' own.
    """
    T, layer = hidden_states.shape[1], mixer.layer_idx
    state = None if cache_params is None else cache_params.get_recurrent_state(layer)
    if state is None or T == 1:
        out: Tensor = transformers_forward(hidden_states, cache_params=cache_params, **rest)
        return out
    x, gate = mixer.in_proj(hidden_states).transpose(1, 2).chunk(2, dim=1)  # (B, D, T)
    conv = mixer.conv1d
    x = cache_params.update_conv_state(x, layer, conv_kernel_size=mixer.conv_kernel_size)
    x = mixer.act(functional.conv1d(x, conv.weight, conv.bias, groups=conv.groups)[..., -T:]).transpose(1, 2)
    N = mixer.ssm_state_size
    step, B, C = mixer.x_proj(x).split([mixer.time_step_rank, N, N], dim=-1)
    if hasattr(mixer, "dt_layernorm"):  # Falcon-Mamba and Jamba
        step, B, C = mixer.dt_layernorm(step), mixer.b_layernorm(B), mixer.c_layernorm(C)
    step = functional.softplus(mixer.dt_proj(step).float())  # (B, T, D)
    A = -mixer.A_log.float().exp()  # (D, N)
    ys = []
    for at in range(0, T, _BLOCK):
        block = slice(at, at + _BLOCK)
        delta = step[:, block].transpose(0, 1)[..., None]  # (block, B, D, 1)
        decay = (delta * A).exp()
        added = delta * B[:, block].transpose(0, 1)[:, :, None] * x[:, block].transpose(0, 1)[..., None].float()
        states = []
        for t in range(len(decay)):
            state = torch.addcmul(added[t], decay[t], state.float())
            states.append(state)
        ys.append(torch.stack(states, dim=1).to(C.dtype) @ C[:, block, :, None])  # (B, block, D, 1)
    cache_params.update_recurrent_state(state, layer)
    y = torch.cat(ys, dim=1)[..., 0] + x * mixer.D.float()
    return mixer.out_proj((y * functional.silu(gate.transpose(1, 2))).to(hidden_states.dtype))


def rg_lru_from_cache(model: PreTrainedModel) -> None:
    """Let every recurrent block of a RecurrentGemma keep its state in the cache that it is called with (Griffin, De et al. 2024)."""
    for index, layer in enumerate(model.base_model.layers):
        if hasattr(block := layer.temporal_block, "rg_lru"):
            block.forward = partial(_recurrent_block, block, index)


def _recurrent_block(
    block: Any, layer: int, input_states: Tensor, position_ids: Tensor, *_: Any, past_key_values: Any = None, **__: Any
) -> tuple[Tensor, None]:
    """Return what the block's own `forward` does (B, T, d). Without a cache it starts from an empty state."""
    T, lru = input_states.shape[1], block.rg_lru
    x = block.linear_x(input_states).transpose(1, 2)
    state = None
    if past_key_values is None:
        x = functional.pad(x, (block.conv1d_width - 1, 0))
    else:
        state = past_key_values.get_recurrent_state(layer)
        x = past_key_values.update_conv_state(x, layer, conv_kernel_size=block.conv1d_width)
        x = functional.pad(x, (max(0, T + block.conv1d_width - 1 - x.shape[-1]), 0))
    conv = block.conv_1d
    x = functional.conv1d(x, conv.weight, conv.bias, groups=conv.groups)[..., -T:]
    try:
        lru.recurrent_states = state
        x = lru(x.transpose(1, 2), position_ids)
        if past_key_values is not None:
            past_key_values.update_recurrent_state(lru.recurrent_states, layer)
    finally:
        lru.recurrent_states = None
    return block.linear_out(x * block.act_fn(block.linear_y(input_states))), None


@torch.no_grad()
def half_life(layer: nn.Module) -> float | None:
    """Return after how many tokens half of what a token wrote into the layer's recurrent state is left; None without a decay.

    It depends on the text. This is the median over channels at the layer's bias: exp(-Δ A) with Δ = softplus(bias) for state spaces and
    the delta rule, and a half-open gate, exp(-4 softplus(Λ)), for an RG-LRU.
    """
    module: Any
    for module in layer.modules():
        if hasattr(module, "A_log"):
            bias, A = module.dt_bias if hasattr(module, "dt_bias") else module.dt_proj.bias, module.A_log.float().exp()
            rate = functional.softplus(bias.float()).reshape(-1, *[1] * (A.dim() - 1)) * A
        elif hasattr(module, "recurrent_param"):
            rate = 4 * functional.softplus(module.recurrent_param.float())
        else:
            continue
        return float(math.log(2) / rate.median())
    return None


def call_before_each_layer(model: PreTrainedModel, callback: Any) -> None:
    """Call `callback()` before every decoder layer of `model`."""

    def hook(module: nn.Module, arguments: Any) -> None:
        callback()

    for layer in model.base_model.layers:
        layer.register_forward_pre_hook(hook)
