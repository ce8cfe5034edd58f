"""The long-term memory of the ∞-former (Martins et al. 2022, section 3): what each layer keeps and how it is read.

A layer's memory is a continuous signal B̄(t) = Bᵀψ(t) on [0, 1] of the hidden states that entered the layer. For query
q_i of head h

    K_h = B W^K_h,   V_h = B W^V_h                                                                     (Eq. 8)
    μ_hi = sigmoid(affine(K_h q_i / √d)),   σ²_hi = softplus(affine(K_h q_i / √d))                   (Eq. 9, 10)
    z_hi = V_hᵀ E_p[ψ],  p = N(μ_hi, σ²_hi)                                                           (Eq. 11)
    Z_LTM = [Z_1 … Z_H] W^O                                                                            (Eq. 11)

and the memory takes in a segment X through the gate sigmoid(conv(X)) ⊙ X (Eq. 18) by contraction and regression
(Eq. 13-15, see `continuous`). X is detached: gradients reach the gate and the projections, never the past.

The N scores K_h q are needed only under an affine map, so the map is applied to the keys first, aᵀ(K q) = (Kᵀa) q, and
a query costs d instead of N·d multiplications.

Beyond the paper: `tau` "k/(k+1)" gives every segment the same share of the signal, where a constant τ forgets
exponentially; stratified sticky draws; a depthwise gate; memories of normalised inputs; W^O starting at zero.
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
    """The paper's settings for GPT-2 are the defaults (appendices C.2 and C.3).

    `basis`: N, how many Gaussians. `widths`: their standard deviations, each at N / len(widths) centres.
    `samples`: M, points of the past at which the signal is read before each regression. `ridge`: λ.
    `tau`: the share of the signal that the past keeps, or "k/(k+1)" for the k-th update (beyond the paper).
    `sticky`: how the M points are chosen: "off" evenly; "independent" by draws from the attention (the paper's);
    "stratified" by one draw from each M-th of the probability (beyond the paper: less noise). `bins`: D.
    `gate`: "full" convolution over all dimensions (the paper's), or "depthwise", 1/D of its cost.
    `source`: "raw" layer inputs (the paper's), or "normed", as the layer's own attention sees them: the raw ones of a
    Llama grow with depth, to coefficients of 5,000 in SmolLM2's upper layers where normed ones stay at 1.
    `output`: how W^O starts: at "zero", so that an untrained memory leaves a pretrained backbone's answers as they
    were, or "random"; "none" is a control: the memory is written and never read. `rank`: of W^K, W^V and W^O, each the
    product of two thin matrices; None is full, the paper's. `prior`: σ0 of the KL term, where
    untrained densities start. `min_variance`: least σ². `seed`: of the initial weights and of sticky draws.
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
        """τ of the update after `segments` earlier ones; 0 for the first, which has no past to make room for."""
        if segments == 0:
            return 0.0
        return segments / (segments + 1) if isinstance(self.tau, str) else self.tau

    def require_workable(self) -> None:
        """Raises `ConfigError` naming the field and its limit."""
        if not self.widths:
            raise ConfigError("widths", self.widths, "needs at least one width")
        for width in self.widths:
            if not (0 < width < math.inf):
                raise ConfigError("widths", self.widths, "every width must be positive and finite")
        if self.basis < 1 or self.basis % len(self.widths):
            raise ConfigError(
                "basis", self.basis, f"must be a positive multiple of the number of widths, {len(self.widths)}"
            )
        for field in ("samples", "bins"):
            if getattr(self, field) < 1:
                raise ConfigError(field, getattr(self, field), "must be at least 1")
        if self.rank is not None and self.rank < 1:
            raise ConfigError("rank", self.rank, "must be at least 1, or null")
        for field in ("ridge", "prior", "min_variance"):
            if not 0 < getattr(self, field) < math.inf:
                raise ConfigError(field, getattr(self, field), "must be positive and finite")
        if not isinstance(self.tau, str) and not 0 < self.tau < 1:
            raise ConfigError("tau", self.tau, "must be in ]0, 1[, or 'k/(k+1)'")


class ProjectedMemory(NamedTuple):
    """What queries need of one layer's memory; computed once a segment, as the memory does not change within it."""

    values: Tensor  # (B, H, N, d) = V_h
    directions: Tensor  # (B, H, 2, d): the keys under the affine maps of Eq. 9 and 10


class GaussianDensity(NamedTuple):
    """p = N(μ, σ²) of every head and query."""

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
        """The product (out, in)."""
        return self.after.weight @ self.before.weight

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) to (…, out)."""
        return cast(Tensor, self.after(self.before(x)))


def without_autocast(method: Callable[Concatenate[L, P], T]) -> Callable[Concatenate[L, P], T]:
    """Computes without autocast: a signal adds up thousands of segments, by operators of a badly conditioned regression."""

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
        # Untrained heads look at different regions of the memory, each as sharply as the prior asks.
        centre = (torch.arange(heads) + 0.5) / heads
        spread = torch.full((heads,), config.prior**2)
        self.bias = nn.Parameter(torch.stack([centre.logit(), spread.expm1().log()], dim=1))
        self.convolution = nn.Conv1d(width, width, 3, padding=1, groups=width if config.gate == "depthwise" else 1)

    def _map(self, width: int, out: int) -> nn.Linear | LowRankLinear:
        rank = self.config.rank
        return nn.Linear(width, out, bias=False) if rank is None else LowRankLinear(width, out, rank)

    @without_autocast
    def gate(self, x: Tensor) -> Tensor:
        """sigmoid(conv(X)) ⊙ X (B, T, D), with X detached and zeros beyond the segment's borders (Eq. 18)."""
        x = x.detach().to(self.bias.dtype)
        return torch.sigmoid(self.convolution(x.transpose(1, 2)).transpose(1, 2)) * x

    @without_autocast
    def project(self, coefficients: Tensor) -> ProjectedMemory:
        """Keys (under their affine maps) and values of `coefficients` (B, N, D) (Eq. 8)."""
        B, N, D = coefficients.shape
        H, d = self.heads, self.head_dim
        values = self.value(coefficients).view(B, N, H, d).transpose(1, 2)
        pooled = (self.affine.flatten(0, 1) @ coefficients).view(B, H, 2, D)
        return ProjectedMemory(values, pooled @ self.key.weight.view(H, d, D).transpose(1, 2))

    @without_autocast
    def density(self, projected: ProjectedMemory, queries: Tensor) -> GaussianDensity:
        """Where `queries` (B, H, T, d) look (Eq. 9, 10)."""
        scores = queries.to(self.bias.dtype) @ projected.directions.transpose(2, 3) * self.head_dim**-0.5
        mean, variance = (scores + self.bias[:, None]).unbind(-1)  # (B, H, T) each
        return GaussianDensity(torch.sigmoid(mean), F.softplus(variance).clamp_min(self.config.min_variance))

    @without_autocast
    def attend(self, projected: ProjectedMemory, queries: Tensor) -> tuple[Tensor, GaussianDensity]:
        """Z_LTM (B, T, D), in the queries' type, and the densities it was read with (Eq. 9-11). Zero for no memory."""
        density = self.density(projected, queries)
        weights = expectation(density.mean, density.variance, self.centres, self.widths)  # (B, H, T, N)
        context = (weights @ projected.values).transpose(1, 2).flatten(2)  # (B, T, H·d)
        if self.config.output == "none":
            context = context * 0  # all weights keep a gradient, of zero: an optimizer treats them as ever
        return cast(Tensor, self.output(context)).to(queries.dtype), density

    @without_autocast
    def extend(self, past: Tensor, new: Tensor, counts: list[int], positions: Tensor | None = None) -> Tensor:
        """The coefficients (B, N, D) after `past` (B, N, D) takes in gated vectors `new` (B, T, D) (Eq. 13-15).

        `counts`: how many segments each row's memory already holds. `positions` (B, M): where to sample the past;
        default evenly.
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
        """The coefficients before each of n segments `entering` (B, n, T, D), as (B, n, N, D), and after the last.

        A linear recurrence, as evenly spaced samples do not depend on what is attended to.
        """
        new = self.gate(entering.flatten(0, 1)).view(entering.shape)
        before = []
        for n, segment in enumerate(new.unbind(1)):
            before.append(past)
            past = self.extend(past, segment, [count + n for count in counts])
        return torch.stack(before, dim=1), past


class LongTermMemory(nn.Module):
    """The memories of all layers, and their state.

    State: `coefficients` (rows, layers, N, D); `segments` (rows,), how many were taken in; and if sticky, `seed`
    (rows,), which with `segments` is the whole state of the draws; `histogram` (rows, layers, bins), the attention
    that the last segment gave to the signal it met: that by which its update has drawn its samples; and `places`
    (rows, layers, M + 2), float64, which tokens the signal is of (see `space`).
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
        config.require_workable()
        self.config, self.width = config, width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)  # replicas must make the same untrained memory
            self.layers = nn.ModuleList(LayerMemory(config, width, heads, head_dim) for _ in range(layers))
        # The signal's weights add up thousands of segments: float32 at least, whatever the backbone's type.
        self.to(device, torch.promote_types(dtype, torch.float32))

    def __getitem__(self, layer: int) -> LayerMemory:
        return cast(LayerMemory, self.layers[layer])

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def is_sticky(self) -> bool:
        """Whether samples are drawn by attention."""
        return self.config.sticky != "off"

    @property
    def names(self) -> tuple[str, ...]:
        """The state's tensors."""
        return ("coefficients", "segments", *(("histogram", "seed", "places") if self.is_sticky else ()))

    def empty(self, rows: int) -> dict[str, Tensor]:
        """The state before anything was read: an empty signal, which reads as zero."""
        like, layers = self[0].bias, len(self)
        state = {
            # Views of one zero: every check of a state asks for these, and a signal may have tens of megabytes.
            "coefficients": like.new_zeros(()).expand(rows, layers, self.config.basis, self.width),
            "segments": torch.zeros(rows, dtype=torch.int64, device=like.device),
        }
        if self.is_sticky:
            state["histogram"] = like.new_zeros(rows, layers, self.config.bins)
            state["seed"] = torch.full((rows,), self.config.seed, dtype=torch.int64, device=like.device)
            # A million tokens and a fraction of one: too much for float32.
            shape = (rows, layers, self.config.samples + 2)
            state["places"] = torch.zeros(shape, dtype=torch.float64, device=like.device)
        return state

    def project(self, state: Mapping[str, Tensor], layer: int) -> ProjectedMemory:
        """What queries need of `layer`'s memory."""
        return self[layer].project(state["coefficients"][:, layer])

    def histogram(self, densities: list[GaussianDensity], segments: Tensor) -> Tensor:
        """Attention given to each bin (B, layers, bins), Eq. 16 before normalisation; zero for rows without memory."""
        layers = [sticky.histogram(p.mean.detach(), p.variance.detach(), self.config.bins) for p in densities]
        return torch.stack(layers, dim=1) * (segments > 0)[:, None, None]

    def divergence(self, densities: list[GaussianDensity], segments: Tensor, lengths: Tensor) -> Tensor:
        """L_KL (B,) of Eq. 21, summed over layers, heads and the first `lengths` (B,) queries; zero for rows without memory."""
        each = sum((divergence(p.variance, self.config.prior).sum(dim=1) for p in densities), torch.zeros(()))  # (B, T)
        counted = torch.arange(each.shape[1], device=each.device) < lengths[:, None]
        return (each * counted).sum(dim=1) * (segments > 0)

    def update(
        self, state: Mapping[str, Tensor], entering: Tensor, histogram: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The state after a segment whose layer inputs are `entering` (B, layers, T, D).

        `histogram` (B, layers, bins): the segment's attention, for sticky memories.
        """
        counts = state["segments"].tolist()
        signal, drawn = [], []
        for layer in range(len(self)):
            memory, positions = self[layer], None
            if histogram is not None:
                uniform = sticky.uniforms(state["seed"], state["segments"], layer, self.config.samples)
                if self.config.sticky == "stratified":
                    uniform = sticky.stratify(uniform)
                positions = sticky.draw(histogram[:, layer], uniform)
                drawn.append(positions)
            new = memory.gate(entering[:, layer])
            signal.append(memory.extend(state["coefficients"][:, layer], new, counts, positions))
        after = {"coefficients": torch.stack(signal, dim=1), "segments": state["segments"] + 1}
        if histogram is not None:
            places = self._places(state["places"], counts, torch.stack(drawn, dim=1), entering.shape[2])
            after |= {"histogram": histogram, "seed": state["seed"], "places": places}
        return after

    def _places(self, places: Tensor, counts: list[int], drawn: Tensor, length: int) -> Tensor:
        """The state's `places` after an update that samples at `drawn` (B, layers, M) and takes in `length` tokens."""
        before = places[..., -1:]
        came = interpolate(drawn.to(places), *corners_of_samples(places, self._contracted(counts)))
        return torch.cat([came, before, before + length], dim=-1)

    def _contracted(self, counts: list[int]) -> Tensor:
        """τ of the last of `counts` updates of each row (B,), float64; 0 where there was none."""
        taus = [self.config.contraction(count - 1) if count else 0.0 for count in counts]
        return torch.tensor(taus, dtype=torch.float64)

    def voronoi_cells(self, state: Mapping[str, Tensor], taken: int) -> list[VoronoiCells]:
        """Which tokens own which part of each layer's signal, in a state of one row whose segments had `taken` tokens.

        All but the first must have been full, unless the memory is sticky: then the state tells. Empty before the first.
        """
        count, S = int(state["segments"]), self.config.segment_length
        if not count:
            return []
        if self.is_sticky:
            at, tokens = corners_of_samples(state["places"].cpu(), self._contracted([count]))
            return [VoronoiCells(*corners) for corners in zip(at[0], tokens[0], strict=True)]
        tau = None if isinstance(self.config.tau, str) else self.config.tau
        return [VoronoiCells.even(count, taken - (count - 1) * S, S, tau)] * len(self)
