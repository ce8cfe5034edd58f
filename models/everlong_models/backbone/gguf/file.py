"""`GGUFFile`: the metadata and tensors of a GGUF file, mapped, without reading its vocabulary.

The `gguf` package's reader keeps an object for every string of the vocabulary: half a gigabyte and ten seconds for 150,000 tokens. The
format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from everlong_models.errors import BackboneError

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor is in a file. `shape`: (rows, columns), or (numbers,) for a vector. `start`: of its bytes."""

    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    start: int

    @property
    def row_bytes(self) -> int:
        """The size of a row in bytes."""
        numbers, size = GGML_QUANT_SIZES[self.kind]
        return self.shape[-1] // numbers * size

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return math.prod(self.shape[:-1]) * self.row_bytes


class GGUFFile:
    """A GGUF file of version 2 or 3. Raises `BackboneError`, which names the file, if it cannot be read or is damaged.

    `metadata`: numbers and strings by name; arrays are left out. `tensors`: by name.
    """

    def __init__(self, file: Path) -> None:
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, StoredTensor] = {}
        try:
            with file.open("rb") as stream:
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            self._read()
        except (OSError, ValueError, ArithmeticError, LookupError, struct.error) as error:
            raise BackboneError(f"cannot read {file} as GGUF: {error}") from error

    def rows(self, name: str) -> np.ndarray:
        """Return the bytes of a tensor, uint8 (rows, bytes of a row), mapped from the file. A vector is one row."""
        tensor = self.tensors[name]
        flat = np.frombuffer(self._map, np.uint8, tensor.nbytes, tensor.start)
        return flat.reshape(-1, tensor.row_bytes)

    def _read(self) -> None:
        if self._map[:4] != b"GGUF":
            raise ValueError("it does not begin with 'GGUF'")
        version, tensors, fields = struct.unpack_from("<IQQ", self._map, 4)
        if version not in _VERSIONS:
            raise ValueError(f"its version is {version}, supported are {_VERSIONS}")
        at = 24
        for _ in range(fields):
            name, at = self._string(at)
            (kind,) = struct.unpack_from("<I", self._map, at)
            value, at = self._value(kind, at + 4)
            if kind != _ARRAY:
                self.metadata[name] = value
        found = []
        for _ in range(tensors):
            name, at = self._string(at)
            (axes,) = struct.unpack_from("<I", self._map, at)
            *shape, kind, offset = struct.unpack_from(f"<{axes}QIQ", self._map, at + 4)
            at += 16 + 8 * axes
            found.append((name, GGMLQuantizationType(kind), tuple(reversed(shape)), offset))
        alignment = int(self.metadata.get("general.alignment", 32))
        start = at + -at % alignment
        self.tensors = {name: StoredTensor(kind, shape, start + offset) for name, kind, shape, offset in found}
        lacking = max((tensor.start + tensor.nbytes for tensor in self.tensors.values()), default=0) - len(self._map)
        if lacking > 0:
            raise ValueError(f"its last {lacking} bytes are missing")

    def _string(self, at: int) -> tuple[str, int]:
        (length,) = struct.unpack_from("<Q", self._map, at)
        return self._map[at + 8 : at + 8 + length].decode(), at + 8 + length

    def _value(self, kind: int, at: int) -> tuple[Any, int]:
        """Return a value and where it ends. Skips the items of an array."""
        if kind == _STRING:
            return self._string(at)
        if kind != _ARRAY:
            form = f"<{_NUMBERS[kind]}"
            return struct.unpack_from(form, self._map, at)[0], at + struct.calcsize(form)
        of, count = struct.unpack_from("<IQ", self._map, at)
        at += 12
        if of in _NUMBERS:
            return None, at + count * struct.calcsize(f"<{_NUMBERS[of]}")
        for _ in range(count):
            if of == _STRING:
                at += 8 + struct.unpack_from("<Q", self._map, at)[0]
            else:
                at = self._value(of, at)[1]
        return None, at
