"""Tensor parallelism: one model spread over several processes, for a model larger than one GPU.

transformers' plans (`tp_plan`) split the matrices of each layer, and the sums between the processes are inside its layers. Each process
computes its own share of the attention heads, and keeps their keys and values only. Everything else, such as hidden states, logits
and memory states, is whole in every process. So all processes must make the same calls in the same order.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers.distributed import DistributedConfig

from everlong_models.errors import ConfigError

_TIMEOUT = timedelta(hours=2)
"""How long a process waits for the others. Loading from a slow disk takes tens of minutes, and not equally long in all."""
_FOUND = "found"
"""Key of the store: the first process has found the model's files, and checked that they can be split."""
_KEY_MATRICES = ("k_proj", "qkv_proj", "query_key_value")
"""Names of the matrices that compute keys, in transformers' plans."""


def device_of(rank: int, size: int, kind: str) -> str:
    """Return the device of the process `rank` of `size`. `kind`: `cpu` or `cuda`. Raises `ConfigError` if the machine has too few."""
    available = torch.cuda.device_count()
    if kind == "cpu" and not available:
        return "cpu"  # for tests: all processes share it
    if kind != "cuda":
        raise ConfigError("device", kind, "with tensor_parallel_size, must be cuda on a machine with GPUs")
    if size > available:
        raise ConfigError(
            "tensor_parallel_size", size, f"must be at most {available}, the number of GPUs of this machine"
        )
    return f"cuda:{rank}"


class Ranks:
    """The processes that share a model. `rank`: the number of this one; the first, 0, leads. `size`: how many there are."""

    def __init__(self, rank: int, size: int, meeting: Path) -> None:
        """`meeting`: a file that does not exist yet, in a folder that all processes can write to. On GPUs, the environment variable
        LOCAL_RANK must be `rank` in each process: transformers takes the GPU of this number, by default 0."""
        self.rank, self.size = rank, size
        self._store = dist.FileStore(str(meeting), size)  # type: ignore[attr-defined]

    def wait_for_first(self) -> None:
        """Wait until the first process has found the model, which only one of them may download or convert."""
        self._store.wait([_FOUND], timedelta(days=30))

    def join(self, config: PretrainedConfig, device: torch.device) -> dict[str, Any]:
        """Connect the processes, and return the arguments for transformers' `from_pretrained`.

        Raises `ConfigError` if transformers cannot split a model with this `config` into this many parts.
        """
        config = config.get_text_config()
        self._require_divisible(config)
        if not self.rank:
            self._store.set(_FOUND, "")
        on_gpu = device.type == "cuda"
        dist.init_process_group(
            "nccl" if on_gpu else "gloo", store=self._store, rank=self.rank, world_size=self.size, timeout=_TIMEOUT,
            device_id=device if on_gpu else None,
        )  # fmt: skip
        return {"distributed_config": DistributedConfig(tp_size=self.size)}

    def _require_divisible(self, config: PretrainedConfig) -> None:
        field = "tensor_parallel_size"
        if not config.base_model_tp_plan:
            raise ConfigError(field, self.size, f"transformers has no plan to split models of type {config.model_type}")
        heads = config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        if heads % self.size or kv_heads % self.size:
            raise ConfigError(
                field, self.size, f"must divide the model's {heads} attention heads and {kv_heads} key/value heads"
            )

    def own_kv_heads(self, model: PreTrainedModel, count: int) -> int:
        """Return how many of the model's `count` key/value heads this process computes: some plans split only other matrices."""
        split = any(
            style == "colwise" and name.rpartition(".")[2] in _KEY_MATRICES for name, style in model.tp_plan.items()
        )
        return count // self.size if split else count

    def own_heads(self, tensor: Tensor, count: int) -> Tensor:
        """Return this process's `count` heads of those in `tensor` (B, L, kv heads, …); a view."""
        return tensor if tensor.shape[2] == count else tensor.narrow(2, self.rank * count, count)

    def all_heads(self, part: Tensor) -> Tensor:
        """Return the heads of all processes. `part` (B, L, own heads, …) has those of this one."""
        parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(self.size)]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, 2)


def whole(tensor: Tensor) -> Tensor:
    """Return a weight of which each process may have a part. All processes must call this."""
    if not isinstance(tensor, DTensor):
        return tensor
    with torch.cuda.device_of(tensor.to_local()):  # each thread has a current GPU of its own
        return tensor.full_tensor()


def own_bytes(model: nn.Module) -> int:
    """Return the size in bytes of the weights that this process holds."""
    tensors = (each.to_local() if isinstance(each, DTensor) else each for each in model.parameters())
    return sum(each.nbytes for each in tensors)
