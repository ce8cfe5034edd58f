"""The numba kernel for a whole decode step of a decoder on a CPU.

Calling PyTorch's operations takes a third of a decode step, and its four-bit products run at half the speed of these
(docs/research/lab-notes.md). So `thread_pool` runs one function, `step`, on all threads from beginning to end. Threads take parts of each
phase until none is left. Within a step no thread waits for a thread that has not started, whose core may be busy elsewhere.

Activations that are multiplied by weights have 16 bits, and so do keys and values; everything else is float32. One thread computes
each output, in a fixed order of summation, so results do not depend on other rows or on the number of threads, to the bit.

Arrays are passed as addresses, in tables of int64. All compiled code is in the modules of this folder that `thread_pool.compiled`
lists: it hashes their source to recognise stored machine code of another version.

Shapes: B rows, T of which may be successive positions of one cache; D width, H query heads and G key heads of dimension d, F the MLP's width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import carray

from everlong_models.kernels.cpu import experts
from everlong_models.kernels.cpu.decode import ends
from everlong_models.kernels.cpu.decode.attention import attend, store
from everlong_models.kernels.cpu.job import (
    FIELDS,
    LAYER_ROWS,
    LINE,
    MATRIX_FIELDS,
    DecodeJob,
    Detail,
    Layer,
    Matrix,
)
from everlong_models.kernels.cpu.matrix_product import low_rank_input, part_size, product, quantise_input
from everlong_models.kernels.cpu.primitives import (
    activate_columns,
    address,
    compiled,
    compiled_as,
    fetch_add,
    floats,
    gate_columns,
    int_pointer,
    normed,
    wait,
)
from everlong_models.kernels.cpu.simd import GROUP


class Kernel(NamedTuple):
    """A kernel of a decode step, and its number of phases of a layer."""

    run: Callable[[Any], None]
    phases: int


_STORE, _ATTEND, _ADD_ATTENTION, _ADD_MLP = range(len(Layer), len(Layer) + 4)
"""Phases without a matrix. The first stores the keys and values of rows that attend to each other's. The last two add to the residual stream
what attention and MLP computed, if it is normalised first."""
_EXPERTS = _ADD_MLP + 1
"""The first phase of a mixture of experts. A layer has these phases, or `GATE` and `DOWN`."""
_BEFORE_MLP, _MLP = (int(Layer.QKV), _STORE, _ATTEND, int(Layer.O), _ADD_ATTENTION), (int(Layer.GATE), int(Layer.DOWN))
_PHASES = (*_BEFORE_MLP, *_MLP, _ADD_MLP)
_PARALLEL_PHASES = (int(Layer.QKV), int(Layer.GATE), _STORE, _ATTEND, int(Layer.O), int(Layer.DOWN))
"""Of layers whose attention and MLP have the same input: both read it before one of them adds to it."""
_PHASES_WITH_EXPERTS = (*_BEFORE_MLP, *_MLP, *range(_EXPERTS, _EXPERTS + experts.PHASES), _ADD_MLP)


@compiled
def _phase_input(job, own, phase):
    """Return the buffers for a phase's input: x (B, K), its 16-bit copy, the groups' scales and sums, and x Aᵀ of two updates."""
    B, D, F, wide, rank = (
        job[DecodeJob.ROWS],
        job[DecodeJob.WIDTH],
        job[DecodeJob.MLP_WIDTH],
        job[DecodeJob.WIDEST],
        job[DecodeJob.RANK],
    )
    x = floats(own, B, D)
    if phase == Layer.O:
        x = floats(job[DecodeJob.MIXED], B, job[DecodeJob.HEADS] * job[DecodeJob.HEAD_DIM])
    elif phase == Layer.DOWN:
        x = floats(job[DecodeJob.GATE], B, F)
    quantised = own + 4 * B * wide
    sums = quantised + 2 * B * wide
    reduced = sums + 8 * B * (wide // GROUP)
    return x, quantised, floats(sums, B, x.shape[1] // GROUP * 2), (reduced, reduced + 4 * B * rank)


@compiled
def _prepare_input(job, own, layers, layer, phase):
    """Fill the buffers of `_phase_input`."""
    x, quantised, sums, reduced = _phase_input(job, own, phase)
    if phase in (Layer.QKV, Layer.GATE):
        B, D = x.shape
        h, weight = (
            floats(job[DecodeJob.X], B, D),
            layers[layer, Layer.DETAILS, Detail.BEFORE if phase == Layer.QKV else Detail.BETWEEN],
        )
        if weight:
            normed(h, floats(weight, 1, D)[0], floats(job[DecodeJob.EPS], 1, 1)[0, 0], x)
        else:
            for m in range(B):  # `x[:] = h` takes numba four seconds more: it compiles the message of an error, too
                for i in range(D):
                    x[m, i] = h[m, i]
    quantise_input(x, quantised, sums)
    for n in range(2 if phase in (Layer.QKV, Layer.GATE) else 1):
        matrix = layers[layer, Layer.V if n and phase == Layer.QKV else phase + n]
        low_rank_input(matrix, x, floats(reduced[n], x.shape[0], matrix[Matrix.RANK]))


@compiled
def _outputs(layers, layer, phase):
    """Return the number of a phase's outputs."""
    return layers[layer, phase, Matrix.N] + (layers[layer, Layer.V, Matrix.N] if phase == Layer.QKV else 0)


@compiled
def _norm_after(layers, layer, phase):
    """Return the address of the weight of the norm of what `O` or `DOWN` computes; 0 without one."""
    attention = phase == Layer.O or phase == _ADD_ATTENTION  # noqa: PLR1714 - numba compiles no tuple of both types
    return layers[layer, Layer.DETAILS, Detail.AFTER_ATTENTION if attention else Detail.AFTER_MLP]


def _computing(name, activate):
    """Make the function that computes outputs `start` … `end` of a phase's matrices, and applies them: the activation, or the residual sum."""

    @compiled_as(name)
    def compute_part(job, own, layers, layer, phase, start, end):
        x, quantised, sums, reduced = _phase_input(job, own, phase)
        B, F, N = x.shape[0], job[DecodeJob.MLP_WIDTH], _outputs(layers, layer, phase)
        out = floats(
            job[DecodeJob.Y]
            if phase == Layer.QKV
            else job[DecodeJob.GATE]
            if phase == Layer.GATE
            else job[DecodeJob.OUT],
            B,
            N,
        )
        up = floats(job[DecodeJob.UP], B, F)
        for n in range(2 if phase in (Layer.QKV, Layer.GATE) else 1):
            values = n > 0 and phase == Layer.QKV  # `V` has no outputs if `QKV` has all
            matrix, first = (
                layers[layer, Layer.V if values else phase + n],
                layers[layer, phase, Matrix.N] if values else 0,
            )
            to, low_rank = up if n > 0 and not values else out, floats(reduced[n], B, matrix[Matrix.RANK])
            rows = max(start - first, 0), min(end - first, matrix[Matrix.N])
            product(matrix, B, quantised, sums, low_rank, address(to) + 4 * first, to.shape[1], *rows)
        if phase == Layer.GATE:
            activate(job[DecodeJob.GELU], out, up, start, end)
        elif phase != Layer.QKV and not _norm_after(layers, layer, phase):
            h, factor = floats(job[DecodeJob.X], B, N), floats(job[DecodeJob.RESIDUAL], 1, 1)[0, 0]
            for m in range(B):
                for i in range(start, end):
                    h[m, i] += out[m, i] * factor

    return compute_part


_compute_gated, _compute_ungated = _computing("gated", gate_columns), _computing("ungated", activate_columns)


@compiled
def _add_normed(job, weight, row):
    """Add the norm of a row of `OUT` to the residual stream."""
    D = job[DecodeJob.WIDTH]
    out = floats(job[DecodeJob.OUT] + 4 * row * D, 1, D)
    normed(out, floats(weight, 1, D)[0], floats(job[DecodeJob.EPS], 1, 1)[0, 0], out)
    h = floats(job[DecodeJob.X] + 4 * row * D, 1, D)[0]
    for i in range(D):
        h[i] += out[0, i]


@compiled
def _parts(job, layers, layer, phase):
    """Return the number of parts of a phase, and the number of outputs of a part."""
    if phase == _STORE:
        return job[DecodeJob.ROWS] * job[DecodeJob.KV_HEADS] if job[DecodeJob.STEPS] > 1 else 0, 1
    if phase == _ATTEND:
        return job[DecodeJob.ROWS] * job[DecodeJob.HEADS] // job[DecodeJob.HEADS_PER_PART], 1
    if phase >= _ADD_ATTENTION:
        return job[DecodeJob.ROWS] if _norm_after(layers, layer, phase) else 0, 1
    if phase in (Layer.GATE, Layer.DOWN) and layers[layer, Layer.DETAILS, Detail.EXPERTS]:
        return 0, 1
    N = _outputs(layers, layer, phase)
    size = part_size(N)
    return (N + size - 1) // size, size


def _step(
    name: str, phases: tuple[int, ...], compute_part: Any, *, with_experts: bool = False, centred: bool = False
) -> Callable[[Any], None]:
    """Make the function that computes all layers and the last norm, for T positions of each row (`DecodeJob.STEPS`). Every thread runs it.

    Each thread takes parts of a phase until none is left. A thread that starts late finds earlier phases done. There are several functions, since
    experts take six seconds to compile. `centred`: norms are layer norms, and `O` and `DOWN` compute rows with mean 0.
    """
    first, last = (ends.begin_centred, ends.end_centred) if centred else (ends.begin, ends.end)

    @compiled_as(name)
    def step(data):  # noqa: PLR0912 - a kernel: one branch for each phase
        job = carray(data, FIELDS)
        me = fetch_add(job[DecodeJob.COUNTERS])
        own = job[DecodeJob.SCRATCH] + 4 * me * job[DecodeJob.SCRATCH_SIZE]
        layers = carray(int_pointer(job[DecodeJob.TABLE]), (job[DecodeJob.LAYERS], LAYER_ROWS, MATRIX_FIELDS))
        next_part, done = job[DecodeJob.COUNTERS] + LINE, job[DecodeJob.COUNTERS] + 2 * LINE
        offset = 2 * LINE * first(job, next_part, done)
        next_part, done = next_part + offset, done + offset
        for layer in range(job[DecodeJob.LAYERS]):
            for phase in phases:
                parts, size, prepared = 0, 1, False
                if with_experts and phase >= _EXPERTS:
                    parts = experts.layer_parts(job, layers, layer, phase - _EXPERTS)
                else:
                    parts, size = _parts(job, layers, layer, phase)
                if not parts:
                    continue
                while True:
                    part = fetch_add(next_part)
                    if part >= parts:
                        break
                    if with_experts and phase >= _EXPERTS:
                        experts.compute_layer(job, own, layers, layer, phase - _EXPERTS, part)
                    elif phase == _STORE:
                        store(job, own, layers, layer, part)
                    elif phase == _ATTEND:
                        attend(job, own, layers, layer, part)
                    elif phase >= _ADD_ATTENTION:
                        _add_normed(job, _norm_after(layers, layer, phase), part)
                    else:
                        if not prepared:
                            _prepare_input(job, own, layers, layer, phase)
                            prepared = True
                        end = min(_outputs(layers, layer, phase), (part + 1) * size)
                        compute_part(job, own, layers, layer, phase, part * size, end)
                    fetch_add(done)
                wait(done, parts)
                next_part, done = next_part + 2 * LINE, done + 2 * LINE
        last(job, next_part)

    return step


_gated, _ungated = _step("gated", _PHASES, _compute_gated), _step("ungated", _PHASES, _compute_ungated, centred=True)
_with_experts = _step("experts", _PHASES_WITH_EXPERTS, _compute_gated, with_experts=True)
_parallel = _step("parallel", _PARALLEL_PHASES, _compute_ungated, centred=True)


# numba stores the code of a kernel only for functions of a module: it finds that of a closure under another name in each process.
def step(data):
    """Compute layers whose MLPs have gates."""
    _gated(data)


def step_with_experts(data):
    """Compute layers some of whose MLPs are mixtures of experts."""
    _with_experts(data)


def step_with_layer_norms(data):
    """Compute layers with layer norms, and MLPs without gates."""
    _ungated(data)


def step_in_parallel(data):
    """Compute such layers, if attention and MLP have the same input."""
    _parallel(data)


STEP, STEP_WITH_LAYER_NORMS = Kernel(step, len(_PHASES)), Kernel(step_with_layer_norms, len(_PHASES))
STEP_WITH_EXPERTS = Kernel(step_with_experts, len(_PHASES_WITH_EXPERTS) - len(_MLP))
STEP_IN_PARALLEL = Kernel(step_in_parallel, len(_PARALLEL_PHASES))
KERNELS = (STEP, STEP_WITH_EXPERTS, STEP_WITH_LAYER_NORMS, STEP_IN_PARALLEL)
