"""`VectorStore`: a named set of documents to search. `StoredFile`: a document in a set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from everlong_server.store.records import Hash

_RECORD_BYTES = 512
"""What an empty set or a reference counts towards the tenant's stored bytes."""

Attributes = Mapping[str, str | float | bool]


@dataclass(frozen=True, slots=True)
class VectorStore:
    """A set of documents. `files`: how many; `bytes`: the size of their texts. `active_at`: when a document was last added."""

    id: str
    created_at: float
    name: str | None = None
    description: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    active_at: float = 0.0
    files: int = 0
    bytes: int = 0

    def changeable(self) -> dict[str, str]:
        """Return the fields of its hash that an update changes."""
        return {"label": json.dumps([self.name, self.description, dict(self.metadata)])}

    @property
    def counted(self) -> int:
        """The bytes that the set counts towards its tenant's stored bytes, without its files."""
        return _RECORD_BYTES + _size(self.changeable())

    @staticmethod
    def of(stored: Hash, files: int) -> VectorStore:
        """Decode a hash."""
        name, description, metadata = json.loads(stored[b"label"])
        created_at, active_at = float(stored[b"created_at"]), float(stored[b"active_at"])
        bytes = int(stored[b"bytes"])
        return VectorStore(stored[b"id"].decode(), created_at, name, description, metadata, active_at, files, bytes)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A document in a set. `bytes`: the size of its text."""

    document: str
    store: str
    created_at: float
    bytes: int
    attributes: Attributes = field(default_factory=dict)

    def changeable(self) -> dict[str, str]:
        """Return the fields of its hash that an update changes."""
        return {"attributes": json.dumps(dict(self.attributes))}

    @property
    def counted(self) -> int:
        """The bytes that the reference counts towards its tenant's stored bytes."""
        return _RECORD_BYTES + _size(self.changeable())

    @staticmethod
    def of(document: str, store: str, stored: Hash) -> StoredFile:
        """Decode a hash."""
        attributes = json.loads(stored[b"attributes"])
        return StoredFile(document, store, float(stored[b"created_at"]), int(stored[b"bytes"]), attributes)


@dataclass(frozen=True, slots=True)
class FileBatch:
    """Documents that were added to a set at once."""

    id: str
    store: str
    created_at: float
    documents: tuple[str, ...]


def _size(fields: Mapping[str, str]) -> int:
    return sum(len(value.encode()) for value in fields.values())
