"""Calls are separated from text, in pieces of any size."""

from __future__ import annotations

import pytest

from everlong_models import Tokenizer, Tool, ToolFormat
from everlong_models.generate.sampling import StopStringFilter
from everlong_server.engine.answering.events import TextDelta, ToolArgumentsDelta, ToolCallStarted
from everlong_server.engine.answering.tool_calls import CallParser
from tests.tinymodel import HERMES, make_tokenizer

TOOLS = [Tool("add", None, {}), Tool("get_weather", None, {})]
PRETTY = '{\n    "a": [1, {"b": "}\\""}]\n  }'
CASES: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "text": ("Plain {text} with `code` and ```json fences```. ", "Plain {text} with `code` and ```json fences```. ", []),
    "a call": ('<tool_call>\n{"name": "add", "arguments": {"a": "<tool_call>"}}\n</tool_call>', "", [("add", '{"a": "<tool_call>"}')]),
    "text and calls": (
        'Let me see.\n<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"x": {"y": 1}}}\n</tool_call>',
        "Let me see.", [("add", "{}"), ("get_weather", '{"x": {"y": 1}}')],
    ),
    "bare": ('{"name": "add", "arguments": {"a": 1}}', "", [("add", '{"a": 1}')]),
    "in a fence": (f'Sure:\n```json\n{{\n  "name": "add",\n  "arguments": {PRETTY}\n}}\n```', "Sure:", [("add", PRETTY)]),
    "several bare ones": (
        '{"name": "add", "arguments": {"a": 1}}\n```\n{"name":"get_weather","arguments":{}}\n```', "",
        [("add", '{"a": 1}'), ("get_weather", "{}")],
    ),
    "with a second brace": ('{{"name": "add", "arguments": {"a": 1}}', "", [("add", '{"a": 1}')]),
    "with a second brace in a fence": ('See:\n```json\n{{\n"name": "add", "arguments": {}}', "See:", [("add", "{}")]),
    "a brace of the text": ("Use {{ twice.", "Use {{ twice.", []),
    "another object": ('{"name": "other", "arguments": {}}', '{"name": "other", "arguments": {}}', []),
    "an object that is no call": ('{"na me": "add"}', '{"na me": "add"}', []),
    "almost a marker": ("a <tool_cal", "a <tool_cal", []),
    "cut in the name": ('Hm. <tool_call>\n{"name": "ad', "Hm.", []),
    "cut in the arguments": ('<tool_call>\n{"name": "add", "arguments": {"a": ', "", [("add", '{"a": ')]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_text_and_calls(case: str, size: int) -> None:
    text, content, calls = CASES[case]
    format = ToolFormat.of(Tokenizer(make_tokenizer(template=HERMES)))
    assert format is not None
    parser = CallParser(format, TOOLS, "msg_0123")
    events = [event for at in range(0, len(text), size) for event in parser.feed(text[at : at + size], [])]
    if rest := parser.finish():
        events.append(TextDelta("msg_0123", rest, []))
    assert parser.content == content
    assert [(call.name, call.arguments) for call in parser.calls] == calls
    assert [call.id for call in parser.calls] == [f"call_0123_{n}" for n in range(len(calls))]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == content
    assert [event.name for event in events if isinstance(event, ToolCallStarted)] == [name for name, _ in calls]
    for index, (_, arguments) in enumerate(calls):
        pieces = [event.arguments for event in events if isinstance(event, ToolArgumentsDelta) and event.index == index]
        assert "".join(pieces) == arguments


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_stop_strings_end_text_but_no_call(case: str, size: int) -> None:
    """A line break, a brace or a fence is a part of most calls."""
    text, content, calls = CASES[case]
    format = ToolFormat.of(Tokenizer(make_tokenizer(template=HERMES)))
    assert format is not None
    parser = CallParser(format, TOOLS, "msg_0123")
    stop = ("name", "\n  ", "},", "_call>", "code")
    stops = StopStringFilter(stop, parser.call_start)
    shown = "".join(stops.feed(text[at : at + size]) for at in range(0, len(text), size)) + stops.finish()
    list(parser.feed(shown, []))
    parser.finish()
    ends = [at for each in stop if (at := content.find(each)) >= 0]
    assert stops.found == bool(ends)
    assert parser.content == content[: min(ends, default=len(content))]
    assert [(call.name, call.arguments) for call in parser.calls] == calls
