"""`FakeCUDAGraph`: a CUDA graph on a CPU. It records operations and replays them on the same tensors, at the same addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

T = TypeVar("T")


class FakeCUDAGraph(TorchDispatchMode):
    """Records the operations within its context. Restores what they wrote, as capturing a graph executes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        self._written: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for at, argument in enumerate(operation._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                tensor = args[at] if at < len(args) else kwargs[argument.name]
                self._written.append((tensor, tensor.clone()))
        result = operation(*args, **kwargs)
        self.operations.append((operation, args, kwargs, result))
        return result

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for tensor, before in reversed(self._written):
            tensor.copy_(before)

    def replay(self) -> None:
        """Run the operations again, with the results at the same addresses. Views and in-place results need no copy."""
        for operation, args, kwargs, result in self.operations:
            again = operation(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def record(run: Callable[[], T]) -> tuple[Callable[[], None], T]:
    """Like `CUDAGraphs.__call__`: capture `run`, which returns tensors. Returns the replay function and the result."""
    with FakeCUDAGraph() as graph:
        result = run()
    for tensor in tree_leaves(result):
        tensor.fill_(float("nan") if tensor.is_floating_point() else -1)  # undefined until the first replay
    return graph.replay, result
