"""`ToolFormat`: how a chat template shows tools, calls and results, as text of the system, the assistant and the user.

Templates in the style of Hermes (Qwen, Hermes, SmolLM3) put all three into ordinary messages:

    system     … definitions of the tools …
    assistant  text  lead  open name middle arguments close  separator  open name middle arguments close
    user       result_open result result_separator result result_close

Every piece comes from rendering the template, so that the model sees what it was trained on. A template that does not have this form has
no tool format here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from everlong_models.text.chat_format import split_at
from everlong_models.text.tokenizer import Tokenizer

_A, _B, _C, _D = "\x01a\x01", "\x01b\x01", "\x01c\x01", "\x01d\x01"
_NAMES = ("\x01n\x01", "\x01m\x01")
_ARGUMENTS = {"k": "\x02"}
_ID = "\x01i\x01"


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters`: the JSON Schema of its arguments, which are an object.

    `strict`: a schema that cannot be enforced is an error; otherwise the arguments are then any JSON object.
    """

    name: str
    description: str | None
    parameters: dict[str, Any]
    strict: bool = False

    def definition(self) -> dict[str, Any]:
        """Return the definition that chat templates expect."""
        described = {} if self.description is None else {"description": self.description}
        return {"type": "function", "function": {"name": self.name, **described, "parameters": self.parameters}}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool. `arguments`: a JSON object as text, exactly as the model wrote it. `id`: names it in its result."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """The pieces of a template's tool format, in the order of the module's docstring.

    `system_end`: the text between a system message and the user's. `system_begin`: the text before a system message.
    """

    tokenizer: Tokenizer
    system_begin: str
    system_end: str
    lead: str
    open: str
    middle: str
    close: str
    separator: str
    result_open: str
    result_separator: str
    result_close: str

    @property
    def writes_json(self) -> bool:
        """Whether a call is a JSON object with `name` and `arguments` between its markers."""
        return self.open.endswith('{"name": "') and self.middle == '", "arguments": '

    @staticmethod
    def of(tokenizer: Tokenizer) -> ToolFormat | None:
        """Return the tool format of the tokenizer's chat template; None if it has none of the supported form."""
        if not tokenizer.chat_template or "tools" not in tokenizer.chat_template:
            return None
        try:
            return _derive(tokenizer)
        except (TemplateError, TypeError, ValueError, AttributeError):
            return None

    def system_text(self, system: str | None, tools: Sequence[Tool]) -> str:
        """Return the text of the system message that defines `tools`. `system`: the client's; None: the template's own."""
        messages = [] if system is None else [{"role": "system", "content": _A}]
        rendered = _render(self.tokenizer, [*messages, {"role": "user", "content": _B}], tools)
        text = rendered.partition(_B)[0].removeprefix(self.system_begin).removesuffix(self.system_end)
        return text if system is None else text.replace(_A, system, 1)

    def definitions(self, tools: Sequence[Tool]) -> str:
        """Return the part of `system_text` that defines `tools`."""
        return self.system_text(_A, tools).partition(_A)[2].strip()

    def answer_text(self, content: str, calls: Sequence[ToolCall]) -> str:
        """Return the text of an answer with calls."""
        texts = [f"{self.open}{call.name}{self.middle}{call.arguments}{self.close}" for call in calls]
        lead = self.lead if content and texts else ""
        return f"{content}{lead}{self.separator.join(texts)}"

    def results_text(self, results: Sequence[str]) -> str:
        """Return the text of a user message with the results of calls, in the order of the calls."""
        return f"{self.result_open}{self.result_separator.join(results)}{self.result_close}"

    def question_of(self, text: str) -> str:
        """Return the words of the user in a user message: the text after the results, or all of it if it has none."""
        if not text.startswith(self.result_open) or self.result_close not in text:
            return text
        return text.rpartition(self.result_close)[2].strip()


def _derive(tokenizer: Tokenizer) -> ToolFormat | None:
    """Return the format, from what the template makes of placeholders. Raises `ValueError` if a piece is missing."""
    tool = Tool(_NAMES[0], None, {"type": "object"})
    question, answer = {"role": "user", "content": _A}, {"role": "assistant", "content": _B}
    system_begin, system_end = split_at(
        _render(tokenizer, [{"role": "system", "content": _A}, {"role": "user", "content": _B}]), _A, _B
    )[:2]
    plain = _render(tokenizer, [question, answer, {"role": "user", "content": _C}])
    _, ask, turn, _ = split_at(plain, _A, _B, _C)
    calls = [{"type": "function", "id": _ID, "function": {"name": name, "arguments": _ARGUMENTS}} for name in _NAMES]
    called = _render(tokenizer, [question, answer | {"tool_calls": calls}, {"role": "user", "content": _C}])
    arguments = json.dumps(_ARGUMENTS)
    _, asked, lead_open, middle, rest = split_at(called, _A, _B, _NAMES[0], arguments)
    between, same_middle, after = split_at(rest, _NAMES[1], arguments)
    close, turned, _ = after.partition(turn + _C)
    open = lead_open.lstrip()
    separator = between.removeprefix(close).removesuffix(open)
    results = [{"role": "tool", "tool_call_id": _ID, "content": text} for text in (_C, _D)]
    silent = _render(
        tokenizer, [question, {"role": "assistant", "content": "", "tool_calls": calls}, *results], answer=True
    )
    before_results, result_separator, after_results = split_at(silent, _C, _D)
    format = ToolFormat(
        tokenizer, system_begin, system_end, lead_open[: len(lead_open) - len(open)], open, middle, close, separator,
        before_results.rpartition(turn)[2], result_separator, after_results.removesuffix(ask),
    )  # fmt: skip
    written = format.answer_text("", [ToolCall(_ID, name, arguments) for name in _NAMES])
    fits = (
        asked == ask
        and same_middle == middle
        and bool(turned and open and close and format.result_open and format.result_close)
        and between == f"{close}{separator}{open}"
        and not (separator + format.lead).strip()
        and f"{ask}{written}{turn}{format.results_text([_C, _D])}{ask}" in silent
        and _ID not in silent + called
        and format.system_text("x", [tool]).startswith("x")
        and "function" in format.definitions([tool])
    )
    return format if fits else None


def _render(
    tokenizer: Tokenizer, messages: list[dict[str, Any]], tools: Sequence[Tool] = (), *, answer: bool = False
) -> str:
    return tokenizer.render(messages, answer=answer, tools=[tool.definition() for tool in tools] or None)
