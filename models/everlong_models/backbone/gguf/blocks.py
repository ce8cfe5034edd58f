"""Matrices of a GGUF file as `Codes`, on the grid of their own blocks.

llama.cpp stores a matrix in blocks of 32 or 256 weights of a row. Within a block, groups of 16 or 32 weights share a step, and some a
minimum. The codes are taken over as they are. Steps and minima of K-quants are products of a float16 and an integer of six or eight bits: they
are rounded to float16, which moves a weight by at most a fiftieth of its group's step.
"""

from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import Q4_K
from torch import Tensor

from everlong_models.kernels.cpu.quantised_matrix import Codes
from everlong_models.kernels.cpu.simd import GROUP, LANES, PANEL

_ROWS = 4096
"""Rows that are unpacked at once. It bounds memory."""
_Grid = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Codes (blocks, weights), and steps and minima (blocks, groups); with signed codes the steps alone, twice as many, and nothing."""


def codes_of(rows: np.ndarray, kind: Kind) -> Codes:
    """Return the matrix whose rows are `rows` (N, bytes of a row), of a kind in `KINDS`. Pads N to a multiple of `PANEL`, with zeros.

    Raises `ValueError` if a step or minimum exceeds float16.
    """
    rows = np.pad(rows, ((0, -len(rows) % PANEL), (0, 0)))
    parts = [_codes(rows[first : first + _ROWS], kind) for first in range(0, len(rows), _ROWS)]
    return Codes(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def floats_of(rows: np.ndarray, kind: Kind) -> Tensor:
    """Return the weights of `rows` (N, bytes of a row) as float32 (N, K)."""
    return torch.from_numpy(gguf.quants.dequantize(rows, kind))


def stackable(*kinds: Kind) -> bool:
    """Return whether matrices of these kinds can be rows of one `Codes`."""
    return len({_layout(kind) for kind in kinds}) == 1


def _layout(kind: Kind) -> str:
    if kind in (Kind.Q4_0, Kind.Q4_1, Kind.Q4_K):
        return "4 bits"
    return "signed" if kind in (Kind.Q5_0, Kind.Q8_0, Kind.Q6_K) else "8 bits"


def _codes(rows: np.ndarray, kind: Kind) -> Codes:
    """Return the codes of some rows, a multiple of `PANEL`."""
    codes, steps, least = KINDS[kind](rows.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1]))
    N = len(rows)
    pairs = torch.from_numpy(codes.reshape(N, -1)).view(N // PANEL, PANEL, -1, 2)
    halves = pairs.shape[2]
    if _layout(kind) == "4 bits":
        pairs = pairs[:, :LANES] | pairs[:, LANES:] << 4
    # Two codes move as one number.
    moved = pairs.contiguous().view(torch.int16)[..., 0].transpose(1, 2).contiguous()[..., None].view(pairs.dtype)
    if _layout(kind) != "4 bits":
        moved = moved.view(N // PANEL, halves, 2, LANES, 2)
    scales = np.stack([steps, least], -1) if least.size else steps
    stored = torch.from_numpy(scales.astype(np.float16)).view(N // PANEL, PANEL, -1, 2).permute(0, 2, 3, 1).contiguous()
    if not stored.isfinite().all():
        raise ValueError(f"the steps of its blocks exceed float16 (largest: {np.abs(scales).max():g})")
    return Codes(moved, stored)


def _halves(blocks: np.ndarray, at: int) -> np.ndarray:
    """Return the float16 at byte `at` of each block, as float32 (blocks, 1)."""
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _whole(
    blocks: np.ndarray, kind: Kind, ones: slice, zeros: slice = slice(0), *, sixes: slice = slice(0)
) -> np.ndarray:
    """Return a block's codes: its weights with other scales. The bytes `ones` become float16 1, `zeros` 0 and `sixes` integers 1."""
    unit = blocks.copy()
    unit[:, ones] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    unit[:, zeros], unit[:, sixes] = 0, 1
    return gguf.quants.dequantize(unit, kind)


def _q4_0(blocks: np.ndarray) -> _Grid:
    step = _halves(blocks, 0)
    return (_whole(blocks, Kind.Q4_0, slice(2)) + 8).astype(np.uint8), step, -8 * step


def _q4_1(blocks: np.ndarray) -> _Grid:
    codes = _whole(blocks, Kind.Q4_1, slice(2), slice(2, 4)).astype(np.uint8)
    return codes, _halves(blocks, 0), _halves(blocks, 2)


def _q5_1(blocks: np.ndarray) -> _Grid:
    codes = _whole(blocks, Kind.Q5_1, slice(2), slice(2, 4)).astype(np.uint8)
    return codes, _halves(blocks, 0), _halves(blocks, 2)


def _q5_0(blocks: np.ndarray) -> _Grid:
    step = _halves(blocks, 0)
    return _whole(blocks, Kind.Q5_0, slice(2)).astype(np.int8), np.repeat(step, 2, 1), step[:, :0]


def _q8_0(blocks: np.ndarray) -> _Grid:
    step = _halves(blocks, 0)
    return blocks[:, 2:].view(np.int8), np.repeat(step, 2, 1), step[:, :0]


def _q6_k(blocks: np.ndarray) -> _Grid:
    scales = blocks[:, 192:208].view(np.int8)
    codes = _whole(blocks, Kind.Q6_K, slice(208, 210), sixes=slice(192, 208)).astype(np.int8)
    return codes, _halves(blocks, 208) * scales, codes[:, :0]


def _q4_k(blocks: np.ndarray) -> _Grid:
    return _with_minima(blocks, _nibbles(blocks[:, 16:]))


def _q5_k(blocks: np.ndarray) -> _Grid:
    fifth = blocks[:, 16:48, None] >> np.arange(8, dtype=np.uint8) & 1  # (blocks, 32, 8): weight of a group, group
    return _with_minima(blocks, _nibbles(blocks[:, 48:]) | fifth.swapaxes(1, 2).reshape(-1, 256) << 4)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """Return the codes (blocks, 256) of bytes (blocks, 128): 32 bytes hold one group in their low and one in their high halves."""
    bytes_of_two = packed.reshape(-1, 4, 1, GROUP)
    return np.concatenate([bytes_of_two & 15, bytes_of_two >> 4], 2).reshape(-1, 256)


def _with_minima(blocks: np.ndarray, codes: np.ndarray) -> _Grid:
    steps, least = Q4_K.get_scale_min(blocks[:, 4:16])
    return codes, _halves(blocks, 0) * steps, -_halves(blocks, 2) * least


KINDS: dict[Kind, Callable[[np.ndarray], _Grid]] = {
    Kind.Q4_0: _q4_0, Kind.Q4_1: _q4_1, Kind.Q5_0: _q5_0, Kind.Q5_1: _q5_1, Kind.Q8_0: _q8_0,
    Kind.Q4_K: _q4_k, Kind.Q5_K: _q5_k, Kind.Q6_K: _q6_k,
}  # fmt: skip
"""The supported kinds of blocks."""
