"""`ToolUse`: the tools of a request, and whether the answer must call them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from everlong_models import Tool

ToolChoice = Literal["auto", "none", "required"]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that an answer may call.

    `choice`: "auto": text, calls or both; "required": at least one call; "none": text alone. `parallel`: whether an answer may have
    several calls. `named`: the only tool that it may call; None: any of them.
    """

    tools: tuple[Tool, ...]
    choice: ToolChoice = "auto"
    parallel: bool = True
    named: str | None = None

    @property
    def shown(self) -> tuple[Tool, ...]:
        """The tools that the model is told of: none if it must not call any."""
        return () if self.choice == "none" else self.tools

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that the answer may call."""
        return tuple(tool for tool in self.shown if self.named in (None, tool.name))

    def only(self, name: str) -> ToolUse:
        """Return the use in which exactly the tool `name` must be called, once. Raises `KeyError` for an unknown name."""
        if name not in {tool.name for tool in self.tools}:
            raise KeyError(name)
        return replace(self, choice="required", parallel=False, named=name)

    def json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    @staticmethod
    def of(stored: dict[str, Any] | None) -> ToolUse | None:
        """Decode `json`."""
        return (
            None if stored is None else ToolUse(**stored | {"tools": tuple(Tool(**tool) for tool in stored["tools"])})
        )
