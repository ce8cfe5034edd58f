"""The long-term memory of the ∞-former (Martins et al. 2022, section 3): its state, how it is read and updated.

A layer's memory is a continuous signal B̄(t) = Bᵀψ(t) on [0, 1] of the hidden states that entered the layer. It is read
for query q_i of head h by

    K_h = B W^K_h,   V_h = B W^V_h                                                                     (Eq. 8)
    μ_hi = sigmoid(affine(K_h q_i / √d)),   σ²_hi = softplus(affine(K_h q_i / √d))                   (Eq. 9, 10)
    z_hi = V_hᵀ E_p[ψ],  p = N(μ_hi, σ²_hi)                                                           (Eq. 11)
    Z_LTM = [Z_1 … Z_H] W^O                                                                            (Eq. 11)

A segment X enters the memory through the gate sigmoid(conv(X)) ⊙ X (Eq. 18), by contraction and regression (Eq. 13-15,
see `continuous_attention`). X is detached: gradients reach the gate and the projections, never the past.

The N scores K_h q are only needed under an affine map. So the map is applied to the keys first, aᵀ(K q) = (Kᵀa) q, and
a query costs d instead of N·d multiplications.

Beyond the paper: `tau` "k/(k+1)" gives every segment the same share of the signal, where a constant τ forgets
exponentially; stratified sticky samples; a depthwise gate; memories of normalised inputs; W^O starting at zero.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Concatenate, Literal, NamedTuple, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from everlong_models.backbone.precision import in_full
from everlong_models.errors import ConfigError
from everlong_models.memories.base import MemoryConfig
from everlong_models.memories.infinite import sticky
from everlong_models.memories.infinite.continuous_attention import (
    Basis,
    Regression,
    divergence,
    expectation,
    stored_operators,
)
from everlong_models.memories.infinite.voronoi import VoronoiCells, corners_of_samples, interpolate

Contraction = float | Literal["k/(k+1)"]
P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L", bound="LayerMemory")


class LongTermConfig(MemoryConfig):
    """Settings of the long-term memory. The defaults are the paper's for GPT-2 (appendices C.2 and C.3).

    - `basis`: N, the number of Gaussians. `widths`: their standard deviations, each at N / len(widths) centres.
    - `samples`: M, points of the past at which the signal is read before each regression. `ridge`: λ.
    - `tau`: the share of the signal that the past keeps, or "k/(k+1)" for the k-th update (beyond the paper).
    - `sticky`: how the M points are chosen. "off": evenly. "independent": sampled from the attention (the paper's).
      "stratified": one sample from each M-th of the probability (beyond the paper; less noise). `bins`: D.
    - `gate`: "full" convolution over all dimensions (the paper's), or "depthwise", at 1/D of its cost.
    - `source`: "raw" layer inputs (the paper's), or "normed", as the layer's own attention sees them. Raw inputs of a
      Llama grow with depth, to coefficients of 5,000 in SmolLM2's upper layers, where normed ones stay at 1.
    - `output`: how W^O is initialised. "zero": an untrained memory does not change a pretrained backbone's answers.
      "random". "none" is a control: the memory is written and never read.
    - `rank`: rank of W^K, W^V and W^O, each the product of two thin matrices; None is full rank, as in the paper.
    - `prior`: σ0 of the KL term, and the initial σ. `min_variance`: the least σ². `seed`: for the initial weights and
      the sticky samples.
    """

    basis: int = 512
    widths: tuple[float, ...] = (0.005, 0.01)
    samples: int = 512
    ridge: float = 0.5
    tau: Contraction = 0.5
    sticky: Literal["off", "independent", "stratified"] = "off"
    bins: int = 128
    gate: Literal["full", "depthwise"] = "full"
    source: Literal["raw", "normed"] = "raw"
    output: Literal["zero", "random", "none"] = "zero"
    rank: int | None = None
    prior: float = 0.05
    min_variance: float = 1e-6
    seed: int = 0

    def contraction(self, segments: int) -> float:
        """Return τ of the update after `segments` earlier ones; 0 for the first, which has no past."""
        if segments == 0:
            return 0.0
        return segments / (segments + 1) if isinstance(self.tau, str) else self.tau

    def check(self) -> None:
        """Raise `ConfigError`, naming the field and its limit, if a memory cannot be built from these settings."""
        if not self.widths:
            raise ConfigError("widths", self.widths, "needs at least one width")
        for width in self.widths:
            if not (0 < width < math.inf):
                raise ConfigError("widths", self.widths, "every width must be positive and finite")
        if self.basis < 1 or self.basis % len(self.widths):
            raise ConfigError(
                "basis", self.basis, f"must be a positive multiple of the number of widths, {len(self.widths)}"
            )
        self.at_least(samples=1, bins=1)
        if self.rank is not None and self.rank < 1:
            raise ConfigError("rank", self.rank, "must be at least 1, or null")
        for field in ("ridge", "prior", "min_variance"):
            if not 0 < getattr(self, field) < math.inf:
                raise ConfigError(field, getattr(self, field), "must be positive and finite")
        if not isinstance(self.tau, str) and not 0 < self.tau < 1:
            raise ConfigError("tau", self.tau, "must be in ]0, 1[, or 'k/(k+1)'")


class ProjectedMemory(NamedTuple):
    """One layer's memory, projected for queries. Computed once per segment: the memory does not change within it."""

    values: Tensor  # (B, H, N, d) = V_h
    directions: Tensor  # (B, H, 2, d): the keys under the affine maps of Eq. 9 and 10


class GaussianDensity(NamedTuple):
    """The density p = N(μ, σ²) with which each head and query reads the signal."""

    mean: Tensor  # (B, H, T), in ]0, 1[
    variance: Tensor  # (B, H, T)


class LowRankLinear(nn.Module):
    """A linear map without bias of rank `rank`: `after` (out, rank) times `before` (rank, in)."""

    def __init__(self, width: int, out: int, rank: int) -> None:
        super().__init__()
        self.before = nn.Linear(width, rank, bias=False)
        self.after = nn.Linear(rank, out, bias=False)

    @property
    def weight(self) -> Tensor:
        """The product of both matrices (out, in)."""
        return self.after.weight @ self.before.weight

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, in) to (…, out)."""
        return cast(Tensor, self.after(self.before(x)))


def without_autocast(method: Callable[Concatenate[L, P], T]) -> Callable[Concatenate[L, P], T]:
    """Run the method without autocast: a signal sums thousands of segments, with ill-conditioned regression operators."""

    @functools.wraps(method)
    def run(self: L, *args: P.args, **kwargs: P.kwargs) -> T:
        with in_full(self.bias.device):
            return method(self, *args, **kwargs)

    return cast(Callable[Concatenate[L, P], T], run)


class LayerMemory(nn.Module):
    """One layer's long-term memory. B rows, N basis functions, D width, H heads of dimension d, T positions."""

    centres: Tensor
    widths: Tensor

    def __init__(self, config: LongTermConfig, width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        N = config.basis
        self.config, self.heads, self.head_dim = config, heads, head_dim
        basis = Basis(N, config.widths)
        self.regression = Regression(basis, config.samples, config.ridge)
        self.register_buffer("centres", basis.centres(), persistent=False)
        self.register_buffer("widths", basis.deviations(), persistent=False)
        self.key = self._map(width, heads * head_dim)
        self.value = self._map(width, heads * head_dim)
        self.output = self._map(heads * head_dim, width)
        if config.output == "zero":
            nn.init.zeros_((self.output.after if isinstance(self.output, LowRankLinear) else self.output).weight)
        self.affine = nn.Parameter(torch.empty(heads, 2, N).uniform_(-(N**-0.5), N**-0.5))
        # Untrained heads attend to different regions of the memory, each with the prior's deviation.
        centre = (torch.arange(heads) + 0.5) / heads
        spread = torch.full((heads,), config.prior**2)
        self.bias = nn.Parameter(torch.stack([centre.logit(), spread.expm1().log()], dim=1))
        self.convolution = nn.Conv1d(width, width, 3, padding=1, groups=width if config.gate == "depthwise" else 1)

    def _map(self, width: int, out: int) -> nn.Linear | LowRankLinear:
        rank = self.config.rank
        return nn.Linear(width, out, bias=False) if rank is None else LowRankLinear(width, out, rank)

    @without_autocast
    def gate(self, x: Tensor) -> Tensor:
        """Return sigmoid(conv(X)) ⊙ X (B, T, D), with X detached and zero padding at the segment's borders (Eq. 18)."""
        x = x.detach().to(self.bias.dtype)
        return torch.sigmoid(self.convolution(x.transpose(1, 2)).transpose(1, 2)) * x

    @without_autocast
    def project(self, coefficients: Tensor) -> ProjectedMemory:
        """Return keys (under their affine maps) and values of `coefficients` (B, N, D) (Eq. 8)."""
        B, N, D = coefficients.shape
        H, d = self.heads, self.head_dim
        values = self.value(coefficients).view(B, N, H, d).transpose(1, 2)
        pooled = (self.affine.flatten(0, 1) @ coefficients).view(B, H, 2, D)
        return ProjectedMemory(values, pooled @ self.key.weight.view(H, d, D).transpose(1, 2))

    @without_autocast
    def density(self, projected: ProjectedMemory, queries: Tensor) -> GaussianDensity:
        """Return the densities with which `queries` (B, H, T, d) attend (Eq. 9, 10)."""
        scores = queries.to(self.bias.dtype) @ projected.directions.transpose(2, 3) * self.head_dim**-0.5
        mean, variance = (scores + self.bias[:, None]).unbind(-1)  # (B, H, T) each
        return GaussianDensity(torch.sigmoid(mean), F.softplus(variance).clamp_min(self.config.min_variance))

    @without_autocast
    def attend(self, projected: ProjectedMemory, queries: Tensor) -> tuple[Tensor, GaussianDensity]:
        """Return Z_LTM (B, T, D), in the queries' dtype, and the densities (Eq. 9-11). An empty memory gives zero."""
        density = self.density(projected, queries)
        weights = expectation(density.mean, density.variance, self.centres, self.widths)  # (B, H, T, N)
        context = (weights @ projected.values).transpose(1, 2).flatten(2)  # (B, T, H·d)
        if self.config.output == "none":
            context = context * 0  # all weights still get a gradient (zero), so the optimizer runs unchanged
        return cast(Tensor, self.output(context)).to(queries.dtype), density

    @without_autocast
    def extend(self, past: Tensor, new: Tensor, counts: list[int], positions: Tensor | None = None) -> Tensor:
        """Return the coefficients (B, N, D) after adding gated vectors `new` (B, T, D) to `past` (B, N, D) (Eq. 13-15).

        `counts`: how many segments each row's memory already holds. `positions` (B, M): where to sample the past;
        default: evenly.
        """
        groups: dict[float, list[int]] = {}
        for row, count in enumerate(counts):
            groups.setdefault(self.config.contraction(count), []).append(row)
        if len(groups) == 1:
            return self._extend(past, new, next(iter(groups)), positions)
        parts: dict[int, Tensor] = {}
        for tau, rows in groups.items():
            part = self._extend(past[rows], new[rows], tau, None if positions is None else positions[rows])
            parts |= zip(rows, part, strict=True)
        return torch.stack([parts[row] for row in range(len(counts))])

    def _extend(self, past: Tensor, new: Tensor, tau: float, positions: Tensor | None) -> Tensor:
        maps = stored_operators(self.regression, new.shape[1], tau, new.device, new.dtype)
        fresh = maps.new @ new
        if tau == 0:
            return fresh
        if positions is None:
            return maps.contract @ past + fresh
        positions = positions.to(past.dtype)
        samples = expectation(positions, torch.zeros_like(positions), self.centres, self.widths) @ past  # (B, M, D)
        return maps.past @ samples + fresh

    @without_autocast
    def scan(self, past: Tensor, entering: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
        """Return the coefficients before each of n segments `entering` (B, n, T, D), as (B, n, N, D), and after the last.

        This is a linear recurrence: evenly spaced samples do not depend on the attention.
        """
        new = self.gate(entering.flatten(0, 1)).view(entering.shape)
        before = []
        for n, segment in enumerate(new.unbind(1)):
            before.append(past)
            past = self.extend(past, segment, [count + n for count in counts])
        return torch.stack(before, dim=1), past


class LongTermMemory(nn.Module):
    """The memories of all layers, and their state.

    State: `coefficients` (rows, layers, N, D) and `segments` (rows,), the number of segments in the signal. If sticky,
    also `seed` (rows,), which together with `segments` determines the random numbers; `histogram` (rows, layers, bins),
    the attention of the last segment, by which the last update sampled; and `places` (rows, layers, M + 2), float64,
    which tokens own which part of the signal (see `voronoi`).
    """

    def __init__(
        self,
        config: LongTermConfig,
        *,
        layers: int,
        width: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        config.check()
        self.config, self.width = config, width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)  # all replicas must start from the same untrained memory
            self.layers = nn.ModuleList(LayerMemory(config, width, heads, head_dim) for _ in range(layers))
        # The signal sums thousands of segments: at least float32, whatever the backbone's dtype.
        self.to(device, torch.promote_types(dtype, torch.float32))

    def __getitem__(self, layer: int) -> LayerMemory:
        return cast(LayerMemory, self.layers[layer])

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def is_sticky(self) -> bool:
        """Whether the past is sampled by attention."""
        return self.config.sticky != "off"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the state's tensors."""
        return ("coefficients", "segments", *(("histogram", "seed", "places") if self.is_sticky else ()))

    def empty(self, rows: int) -> dict[str, Tensor]:
        """Return the state before anything was read: an empty signal, which reads as zero."""
        like, layers = self[0].bias, len(self)
        state = {
            # Views of one zero: every check of a state builds these, and a signal may have tens of megabytes.
            "coefficients": like.new_zeros(()).expand(rows, layers, self.config.basis, self.width),
            "segments": torch.zeros(rows, dtype=torch.int64, device=like.device),
        }
        if self.is_sticky:
            state["histogram"] = like.new_zeros(rows, layers, self.config.bins)
            state["seed"] = torch.full((rows,), self.config.seed, dtype=torch.int64, device=like.device)
            # Fractions of a token at positions beyond a million: too precise for float32.
            shape = (rows, layers, self.config.samples + 2)
            state["places"] = torch.zeros(shape, dtype=torch.float64, device=like.device)
        return state

    def project(self, state: Mapping[str, Tensor], layer: int) -> ProjectedMemory:
        """Return `layer`'s memory, projected for queries."""
        return self[layer].project(state["coefficients"][:, layer])

    def histogram(self, densities: list[GaussianDensity], segments: Tensor) -> Tensor:
        """Return the attention to each bin (B, layers, bins), Eq. 16 before normalisation; zero for rows without memory."""
        layers = [sticky.histogram(p.mean.detach(), p.variance.detach(), self.config.bins) for p in densities]
        return torch.stack(layers, dim=1) * (segments > 0)[:, None, None]

    def divergence(self, densities: list[GaussianDensity], segments: Tensor, lengths: Tensor) -> Tensor:
        """Return L_KL (B,) of Eq. 21, summed over layers, heads and the first `lengths` (B,) queries.

        Zero for rows without memory.
        """
        each = sum((divergence(p.variance, self.config.prior).sum(dim=1) for p in densities), torch.zeros(()))  # (B, T)
        counted = torch.arange(each.shape[1], device=each.device) < lengths[:, None]
        return (each * counted).sum(dim=1) * (segments > 0)

    def update(
        self, state: Mapping[str, Tensor], entering: Tensor, histogram: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return the state after a segment whose layer inputs are `entering` (B, layers, T, D).

        `histogram` (B, layers, bins): the segment's attention, for sticky memories.
        """
        counts = state["segments"].tolist()
        signal, sampled = [], []
        for layer in range(len(self)):
            memory, positions = self[layer], None
            if histogram is not None:
                uniform = sticky.uniforms(state["seed"], state["segments"], layer, self.config.samples)
                if self.config.sticky == "stratified":
                    uniform = sticky.stratify(uniform)
                positions = sticky.sample_positions(histogram[:, layer], uniform)
                sampled.append(positions)
            new = memory.gate(entering[:, layer])
            signal.append(memory.extend(state["coefficients"][:, layer], new, counts, positions))
        after = {"coefficients": torch.stack(signal, dim=1), "segments": state["segments"] + 1}
        if histogram is not None:
            places = self._places(state["places"], counts, torch.stack(sampled, dim=1), entering.shape[2])
            after |= {"histogram": histogram, "seed": state["seed"], "places": places}
        return after

    def _places(self, places: Tensor, counts: list[int], sampled: Tensor, length: int) -> Tensor:
        """Return the state's `places` after an update that samples at `sampled` (B, layers, M) and adds `length` tokens."""
        before = places[..., -1:]
        at_samples = interpolate(sampled.to(places), *corners_of_samples(places, self._contracted(counts)))
        return torch.cat([at_samples, before, before + length], dim=-1)

    def _contracted(self, counts: list[int]) -> Tensor:
        """Return τ of the last of `counts` updates of each row (B,), float64; 0 where there was none."""
        taus = [self.config.contraction(count - 1) if count else 0.0 for count in counts]
        return torch.tensor(taus, dtype=torch.float64)

    def voronoi_cells(self, state: Mapping[str, Tensor], in_signal: int) -> list[VoronoiCells]:
        """Return which tokens own which part of each layer's signal, for a state of one row with `in_signal` tokens in it.

        Unless the memory is sticky, all segments but the first must have been full. Empty before the first segment.
        """
        count, S = int(state["segments"]), self.config.segment_length
        if not count:
            return []
        if self.is_sticky:
            at, tokens = corners_of_samples(state["places"].cpu(), self._contracted([count]))
            return [VoronoiCells(*corners) for corners in zip(at[0], tokens[0], strict=True)]
        tau = None if isinstance(self.config.tau, str) else self.config.tau
        return [VoronoiCells.even(count, in_signal - (count - 1) * S, S, tau)] * len(self)
