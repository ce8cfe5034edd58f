"""What a group of RTF inherits, and where its text goes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Sink:
    """The text of one destination."""

    kind: str
    parts: list[str] = field(default_factory=list)
    details: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """Return the text, with pairs of surrogates joined."""
        text = "".join(self.parts)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@dataclass(frozen=True, slots=True)
class State:
    """What a group inherits. `listens`: whether text is collected; `silent`: whether inner destinations are, too."""

    sink: Sink
    listens: bool = True
    silent: bool = False
    skip: int = 1
    font: int = -1
    hidden: str = ""
    in_table: bool = False
    markup: bool = False
    properties: str = ""
    is_raised: bool = False
    is_struck: bool = False
    is_link: bool = False
