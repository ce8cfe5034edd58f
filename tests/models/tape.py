"""`Tape`: on a CPU, what a CUDA graph is on a GPU. The same operations on the same tensors again, their results where they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tape(TorchDispatchMode):
    """Records the operations within it."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        self.operations.append((operation, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        """A view is where it was, and what is changed in place is its own result."""
        for operation, args, kwargs, result in self.operations:
            again = operation(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def record(
    places: Callable[[], dict[str, Tensor]],
) -> Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]:
    """As `CUDAGraphs`. `places`: what the recorded changes, which is put back, since recording alone does nothing."""

    def on(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        tensors = places()
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        with Tape() as tape:
            result = run()
        for name, tensor in tensors.items():
            tensor.copy_(before[name])
        result.fill_(float("nan"))  # until it is replayed
        return tape.replay, result

    return on
