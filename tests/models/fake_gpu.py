"""`gpu()`: a stand-in for a GPU. Within it there is a device "cuda:0" that computes on the CPU.

On a machine with a GPU the real one is used (`REAL`), and nothing is counted. Code for a GPU can be wrong in two ways that
a CPU does not show: an operation mixes tensors of two devices, or a CUDA graph captures an operation that waits for the
device (`_WAIT`). The stand-in raises the errors that a GPU raises for both. It does not show what CUDA's own kernels
refuse, how they round, or how long they take.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves, tree_map_only

from everlong_models.generate.cuda_graphs import CUDAGraphs
from tests.models.fake_cuda_graph import FakeCUDAGraph, T, record

DEVICE = torch.device("cuda", 0)
REAL = torch.cuda.is_available()

aten = torch.ops.aten
_BRING = {aten._to_copy, aten.copy_}
"""Operations that may move a tensor between devices."""
_PLACE = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
"""Operations that accept CPU tensors as indices."""
_WAIT = {
    aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten._unique2, aten.unique_consecutive, aten.unique_dim, aten.equal,
    aten.bincount,
}  # fmt: skip
"""Operations whose result, or its shape, is known only when the device is done: they wait for it."""


class OnGPU(Tensor):
    """A tensor of the stand-in device. `held`: the CPU tensor with its values."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnGPU:
        with torch.inference_mode(held.is_inference()):  # a view of what is no inference tensor is none either
            made = Tensor._make_wrapper_subclass(
                cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype, device=DEVICE
            )  # fmt: skip
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return _do(operation, args, kwargs or {})

    def tolist(self) -> Any:
        _wait("tolist")
        return self.held.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def __repr__(self, **_: Any) -> str:
        return f"OnGPU({self.held})"


class GPU(TorchDispatchMode):
    """Enables the device in one thread. `waits`: how often threads waited for the device; not allowed while `recording`."""

    waits = 0
    recording = False

    def __enter__(self) -> Any:
        if REAL:
            return self
        self._lifts = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # so that `torch.tensor` takes its numbers there by `_to_copy`
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        if REAL:
            return
        super().__exit__(*error)
        torch._C._set_only_lift_cpu_tensors(self._lifts)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return _do(operation, args, kwargs or {})


class Interpreted:
    """A Triton kernel that is interpreted on the tensors that those of the stand-in hold. A graph that is being captured replays it."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            with _disable_current_modes():
                self._kernel[grid](*tree_map_only(OnGPU, lambda tensor: tensor.held, args), **options)

        def recorded(*args: Any, **options: Any) -> None:
            launch(*args, **options)
            for mode in _get_current_dispatch_mode_stack():
                if isinstance(mode, FakeCUDAGraph):
                    mode.operations.append((launch, args, options, None))

        return recorded


class Graphs:
    """Replaces `CUDAGraphs`. `made`: how many graphs all instances have captured."""

    made = 0

    def __init__(self, device: torch.device) -> None:
        assert device == DEVICE
        self._record = CUDAGraphs(device) if REAL else record

    def __call__(self, run: Callable[[], T]) -> tuple[Callable[[], None], T]:
        assert not gc.isenabled(), "an old graph that is freed meanwhile spoils this one"
        GPU.recording = True
        try:
            replay, result = self._record(run)
        finally:
            GPU.recording = False
        Graphs.made += 1
        return replay, result


@contextmanager
def gpu() -> Iterator[None]:
    """Enable the device in this thread; other threads must enter `GPU`."""
    Graphs.made = GPU.waits = 0
    if REAL:
        yield
        return
    # PyTorch calls a device guard before it dispatches. CPU builds have none for CUDA; use that of "meta", which does nothing.
    guards = (ctypes.c_void_p * 16).in_dll(ctypes.CDLL(torch._C.__file__), "_ZN3c104impl26device_guard_impl_registryE")
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    with ExitStack() as stack:
        there = {
            "_lazy_init": None,
            "synchronize": None,
            "mem_get_info": (1 << 36, 1 << 36),
            "_exchange_device": 0,
            "_maybe_exchange_device": 0,
        }
        for name, value in there.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, lambda *_, value=value: value))
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swaps)
        torch.__future__.set_swap_module_params_on_conversion(True)  # a parameter that two modules share stays one
        stack.callback(guards.__setitem__, _CUDA, guards[_CUDA])
        guards[_CUDA] = guards[_META]
        stack.enter_context(GPU())
        yield


_CUDA, _META = 1, 14
"""Values of `c10::DeviceType`."""


def _wait(what: object) -> None:
    if GPU.recording:
        raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({what})")
    GPU.waits += 1


def _do(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if torch.is_inference_mode_enabled() and operation._can_decompose():  # what consists of others comes whole there
        with GPU():
            return operation.decompose(*args, **kwargs)
    of = operation.overloadpacket
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = [tensor for tensor in tensors if isinstance(tensor, OnGPU)]
    device = kwargs.get("device")
    device = torch.device(device) if device is not None else DEVICE if there else torch.device("cpu")
    if of in _BRING:
        if bool(there) != (device == DEVICE) or 0 < len(there) < len(tensors):
            _wait(operation)
    elif there:
        here = [tensor for tensor in tensors if not isinstance(tensor, OnGPU)]
        places = [place for place in args[1] if place is not None] if of in _PLACE else []
        strange = [tensor for tensor in here if tensor.dim() and not any(tensor is place for place in places)]
        if strange or (of in _PLACE and not isinstance(args[0], OnGPU)):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
                f"{here[0].device}! ({operation})"
            )
        if of in _WAIT or any(place.dtype == torch.bool or not isinstance(place, OnGPU) for place in places):
            _wait(operation)
    if "device" in kwargs and device == DEVICE:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    known = {id(tensor.held): tensor for tensor in there}
    args, kwargs = tree_map_only(OnGPU, lambda tensor: tensor.held, (args, kwargs))
    result = operation(*args, **kwargs)
    if device != DEVICE or of is aten._local_scalar_dense:
        return result
    return tree_map_only(Tensor, lambda tensor: known[id(tensor)] if id(tensor) in known else OnGPU(tensor), result)
