"""SplitMix64 (Steele, Lea, Flood 2014) on tensors: random numbers that are a function of a counter.

Output n ≥ 1 of the generator with the state s is `splitmix64(s + n * GOLDEN)`. So numbers can be computed in any order, on any device.
PyTorch has no unsigned 64-bit arithmetic: all numbers are held in int64, and products wrap around.
"""

from __future__ import annotations

from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
"""2⁶⁴ divided by the golden ratio: the step between two states."""
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


def splitmix64(x: Tensor) -> Tensor:
    """Return 64 random bits for each state in `x` (…), int64."""
    x = (x ^ shift_right(x, 30)) * _MIX_1
    x = (x ^ shift_right(x, 27)) * _MIX_2
    return x ^ shift_right(x, 31)


def shift_right(x: Tensor, by: int) -> Tensor:
    """Shift the 64 bits of each number right, and fill with zeros. PyTorch's own shift repeats the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)
