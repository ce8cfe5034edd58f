"""`MemoryState`: a model's memory as named tensors of fixed size, and its binary format.

A blob is `MAGIC | version u32 | payload length u64 | SHA-256 of the payload | payload`, little endian. The payload is a
safetensors file whose metadata holds the model's fingerprint. The header tells damage apart: a short blob is truncated,
a blob whose checksum differs is altered. A damaged blob is never decoded in part.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from safetensors import SafetensorError
from safetensors.torch import load as safetensors_load
from safetensors.torch import save as safetensors_save
from torch import Tensor

from everlong_models.errors import (
    StateAltered,
    StateError,
    StateNotFinite,
    StateOfOtherModel,
    StateShape,
    StateTruncated,
    StateVersion,
)

__all__ = ["FORMAT_VERSION", "MemoryState", "decode_state", "encode_state"]

MAGIC = b"EVLSTATE"
FORMAT_VERSION = 1
_HEADER = struct.Struct("<8sIQ32s")


@dataclass(frozen=True, slots=True)
class MemoryState:
    """The memory of one or more rows.

    `tensors` maps a name to a tensor whose first dimension is the row (batch first). A state is an immutable value:
    models return new states and never write into the tensors of an old one.
    """

    tensors: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        if not self.tensors:
            raise StateShape("a state needs at least one tensor")
        rows = {name: tensor.shape[0] for name, tensor in self.tensors.items() if tensor.dim() > 0}
        if len(rows) != len(self.tensors) or len(set(rows.values())) != 1:
            raise StateShape(f"every tensor of a state is batch first with the same number of rows, got {rows}")
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))

    def __reduce__(self) -> tuple[type[MemoryState], tuple[dict[str, Tensor]]]:
        return MemoryState, (dict(self.tensors),)  # pickle cannot write the mapping

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    @property
    def rows(self) -> int:
        """How many rows (sessions) the state holds."""
        return next(iter(self.tensors.values())).shape[0]

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return next(iter(self.tensors.values())).device

    @property
    def nbytes(self) -> int:
        """Total bytes of all tensors, over all rows."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @staticmethod
    def stack(states: Sequence[MemoryState]) -> MemoryState:
        """Return one state with the rows of `states`, in order.

        Raises `StateShape` if the states do not have the same tensors.
        """
        if not states:
            raise StateShape("stack needs at least one state, got none")
        first = states[0]
        for other in states[1:]:
            other.require_like(first)
        return MemoryState({name: torch.cat([state[name] for state in states]) for name in first})

    def split(self) -> list[MemoryState]:
        """Return one state per row. Each is a copy, so that it does not keep the other rows' memory alive."""
        if self.rows == 1:
            return [self]
        return [
            MemoryState({name: tensor[row : row + 1].clone() for name, tensor in self.tensors.items()})
            for row in range(self.rows)
        ]

    def to(self, device: torch.device | str) -> MemoryState:
        """Return the same state on `device`."""
        return MemoryState({name: tensor.to(device) for name, tensor in self.tensors.items()})

    def digest(self) -> str:
        """Return the SHA-256 (hexadecimal) of the tensors' names, types, shapes and bytes, in order of their names."""
        total = hashlib.sha256()
        for name in sorted(self.tensors):
            tensor = self.tensors[name].detach().cpu().contiguous()
            total.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
            total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
        return total.hexdigest()

    def require_finite(self) -> MemoryState:
        """Return this state. Raises `StateNotFinite`, naming the tensor, if one holds NaN or infinity."""
        for name, tensor in self.tensors.items():
            if tensor.is_floating_point() and tensor.element_size() == 1:
                tensor = tensor.float()  # torch has no isfinite for float8  # noqa: PLW2901
            if (tensor.is_floating_point() or tensor.is_complex()) and not bool(torch.isfinite(tensor).all()):
                raise StateNotFinite(f"state tensor {name!r} holds NaN or infinity")
        return self

    def require_like(self, other: MemoryState) -> MemoryState:
        """Return this state. Raises `StateShape` unless names, types and shapes (except rows) equal those of `other`."""
        mine = {name: (tensor.dtype, tuple(tensor.shape[1:])) for name, tensor in self.tensors.items()}
        theirs = {name: (tensor.dtype, tuple(tensor.shape[1:])) for name, tensor in other.tensors.items()}
        if mine != theirs:
            raise StateShape(f"the state has tensors {mine}, the model needs {theirs}")
        return self


def encode_state(state: MemoryState, fingerprint: str) -> bytes:
    """Encode `state` as bytes that belong to the model with this `fingerprint`."""
    # Copies: safetensors refuses tensors that share memory, and two names of a state may be views of one tensor.
    tensors = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in state.tensors.items()
    }
    payload = safetensors_save(tensors, metadata={"model": fingerprint})
    return _HEADER.pack(MAGIC, FORMAT_VERSION, len(payload), hashlib.sha256(payload).digest()) + payload


def decode_state(blob: bytes, fingerprint: str) -> MemoryState:
    """Decode the state in `blob`, onto the CPU.

    Raises `StateTruncated`, `StateAltered`, `StateVersion`, `StateOfOtherModel`, `StateShape` or `StateNotFinite`, each
    with the found and the expected value; `StateError` if the payload is not a state.
    """
    if len(blob) < _HEADER.size:
        raise StateTruncated(f"a state has a header of {_HEADER.size} bytes, got {len(blob)} bytes in all")
    magic, version, length, checksum = _HEADER.unpack_from(blob)
    if magic != MAGIC:
        raise StateAltered(f"not an everlong state: starts with {magic!r}, expected {MAGIC!r}")
    if version != FORMAT_VERSION:
        raise StateVersion(f"the state has format version {version}; this library reads version {FORMAT_VERSION} only")
    payload = blob[_HEADER.size :]
    if len(payload) != length:
        raise StateTruncated(f"the header announces {length} bytes of payload, found {len(payload)}")
    if hashlib.sha256(payload).digest() != checksum:
        raise StateAltered("the checksum of the state does not match its bytes")
    try:
        tensors = safetensors_load(payload)
        found = _metadata(payload).get("model")
    except (SafetensorError, ValueError, KeyError) as error:
        raise StateError(f"the state's payload is not readable as safetensors: {error}") from error
    if found != fingerprint:
        raise StateOfOtherModel(f"the state belongs to model {found}, this model is {fingerprint}")
    return MemoryState(tensors).require_finite()


def _metadata(payload: bytes) -> dict[str, str]:
    # safetensors' in-memory reader does not return the metadata, so parse the header: u64 length + JSON.
    (header_length,) = struct.unpack_from("<Q", payload)
    metadata = json.loads(payload[8 : 8 + header_length]).get("__metadata__", {})
    if not isinstance(metadata, dict):
        raise ValueError("metadata is not an object")
    return metadata
