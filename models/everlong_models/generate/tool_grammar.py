"""The grammar of an answer that may call tools, in llguidance's variant of Lark.

The markers around a call can be tokens of their own, which no text can spell (Qwen's `<tool_call>`), or ordinary text. In both cases text
that is not a call cannot contain the first marker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from everlong_models.text.tool_format import Tool, ToolFormat

_MARKER = re.compile(r"(<[^<>\s]+>)")


def tool_grammar(
    format: ToolFormat,
    tools: Sequence[Tool],
    choice: Literal["auto", "none", "required"],
    special: Callable[[str], int | None],
    options: Mapping[str, Any],
    *,
    parallel: bool,
    text: dict[str, Any] | None = None,
) -> str:
    """Return the grammar of text, calls of `tools`, or text and then calls.

    `choice`: "none": text alone; "required": at least one call, and no text. `special`: returns the id of a token that llguidance treats
    as special. `options`: how JSON is written. `parallel`: more than one call. `text`: a JSON Schema that text follows.
    """

    def literal(words: str) -> str:
        """Return the expression that matches `words` exactly."""
        pieces = [piece for piece in _MARKER.split(words) if piece]
        return " ".join(json.dumps(piece) if (id := special(piece)) is None else f"<[{id}]>" for piece in pieces)

    def follows(schema: dict[str, Any]) -> str:
        return f"%json {json.dumps({'x-guidance': dict(options), **schema})}"

    marker = format.open.split()[0]
    is_token = special(marker) is not None
    anything = r"/(.|\n)*/" if is_token else rf"/(.|\n)*/ & ~/(.|\n)*{re.escape(marker)}(.|\n)*/"
    lines = ["%llguidance {}", f"text: {follows(text) if text else 'TEXT'}", f"TEXT: {anything}"]
    if choice == "none":
        return "\n".join(["%llguidance {}", "start: text", *lines[1:]])
    more = f"({literal(format.separator)} call)*" if parallel else ""
    lines += [
        f"calls: call {more}",
        f"call: {literal(marker)} rest",
        f"rest: {literal(format.open[len(marker) :])} named {literal(format.close)}",
    ]
    names = []
    for number, tool in enumerate(tools):
        names.append(f"tool_{number}")
        lines += [
            f"tool_{number}: {literal(tool.name + format.middle)} arguments_{number}",
            f"arguments_{number}: {follows(tool.parameters)}",
        ]
    lines.append(f"named: {' | '.join(names)}")
    if choice == "required":
        return "\n".join([lines[0], "start: calls", *lines[1:]])
    bare = ""
    if format.writes_json and not text:
        lines += [*_bare_calls(tools, dict(options)), f"bare_calls: bare {'next*' if parallel else ''} FENCE?"]
        bare = " | bare_calls"
    if is_token or text:
        start = [f"start: {'text' if text else 'TEXT'} | calls{bare}" + ("" if text else " | TEXT calls")]
    else:
        marked = f"marked[lazy]: ANYTHING {json.dumps(marker)}"
        start = [f"start: TEXT | marked rest {more}{bare}", marked, r"ANYTHING: /(.|\n)*/"]
    return "\n".join([lines[0], *start, *lines[1:]])


def _bare_calls(tools: Sequence[Tool], options: dict[str, Any]) -> list[str]:
    """Return the rules of calls without their marker, alone or in a fence, after any text.

    Models that were trained on code (Qwen2.5-Coder) write calls like this, whatever their template says.
    """
    flexible = {"x-guidance": options | {"whitespace_flexible": True, "item_separator": ",", "key_separator": ":"}}
    lines = [r'BARE_MIDDLE: /\s*,\s*"arguments"\s*:\s*/', r"BARE_CLOSE: /\s*\}/", r"FENCE: /\s*```/"]
    for number, tool in enumerate(tools):
        name, rest = rf'\{{\s*"name"\s*:\s*"{tool.name}"', f"BARE_MIDDLE bare_arguments_{number} BARE_CLOSE"
        lines += [
            rf"bare_open_{number}[lazy]: /(.|\n)*{name}/",
            rf"next_open_{number}[lazy]: /\s*(```\s*)?(```(json)?\s*)?{name}/",
            f"bare_{number}: bare_open_{number} {rest}",
            f"next_{number}: next_open_{number} {rest}",
            f"bare_arguments_{number}: %json {json.dumps({**flexible, **tool.parameters})}",
        ]
    for kind in ("bare", "next"):
        lines.append(f"{kind}: " + " | ".join(f"{kind}_{number}" for number in range(len(tools))))
    return lines
