"""`ToolUse`: the tools of a request, and whether the answer must call them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from everlong_models import Tool

ToolChoice = Literal["auto", "none", "required"]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that an answer may call.

    `choice`: "auto": text, calls or both; "required": at least one call; "none": text alone. `parallel`: whether an answer may have
    several calls. `named`: the only tool that it may call. `allowed`: the only tools that it may call, though the model is told of all.
    None: any of them.
    """

    tools: tuple[Tool, ...]
    choice: ToolChoice = "auto"
    parallel: bool = True
    named: str | None = None
    allowed: tuple[str, ...] | None = None

    @property
    def shown(self) -> tuple[Tool, ...]:
        """The tools that the model is told of: none if it must not call any."""
        return () if self.choice == "none" else self.tools

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that the answer may call."""
        names = self.allowed if self.named is None else (self.named,)
        return tuple(tool for tool in self.shown if names is None or tool.name in names)

    def only(self, name: str) -> ToolUse:
        """Return the use in which exactly the tool `name` must be called, once. Raises `KeyError` for an unknown name."""
        self._require(name)
        return replace(self, choice="required", parallel=False, named=name)

    def among(self, names: Sequence[str]) -> ToolUse:
        """Return the use in which only the tools `names` may be called. Raises `KeyError` for an unknown name."""
        for name in names:
            self._require(name)
        return replace(self, allowed=tuple(names))

    def _require(self, name: str) -> None:
        if name not in {tool.name for tool in self.tools}:
            raise KeyError(name)

    def json(self) -> dict[str, Any]:
        """Return it as JSON. Omits `allowed` if it is None, because servers of version 0.1 do not know the field."""
        stored = asdict(self)
        if self.allowed is None:
            del stored["allowed"]
        return stored

    @staticmethod
    def of(stored: dict[str, Any] | None) -> ToolUse | None:
        """Decode `json`."""
        if stored is None:
            return None
        allowed = {} if stored.get("allowed") is None else {"allowed": tuple(stored["allowed"])}
        return ToolUse(**stored | allowed | {"tools": tuple(Tool(**tool) for tool in stored["tools"])})
