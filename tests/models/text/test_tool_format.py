"""The tool format: the pieces put together are what the template itself renders."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everlong_models import Tokenizer, Tool, ToolCall, ToolFormat
from tests.tinymodel import CHAT, DATA, HERMES, make_tokenizer

WEATHER = Tool(
    "get_weather",
    "Tells the weather.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
CLOCK = Tool("get_time", None, {"type": "object", "properties": {}})
QWEN = (DATA / "qwen2.5-template.jinja").read_text()
"""The chat template of Qwen2.5-Coder (Apache-2.0)."""


def tokenizer_with(template: str) -> Tokenizer:
    fast = make_tokenizer()
    fast.chat_template = template
    return Tokenizer(fast)


@pytest.mark.parametrize("template", [QWEN, HERMES])
@pytest.mark.parametrize("system", [None, "Be brief."])
@pytest.mark.parametrize("content", ["", "I will look."])
def test_the_pieces_make_what_the_template_renders(template: str, system: str | None, content: str) -> None:
    tokenizer = tokenizer_with(template)
    format = ToolFormat.of(tokenizer)
    assert format is not None
    calls = [ToolCall("1", "get_weather", '{"city": "Zürich \\"old\\""}'), ToolCall("2", "get_time", "{}")]
    results = ["12 °C\n</tool_response>", '{"hour": 3}']
    messages: list[dict[str, Any]] = [
        *([] if system is None else [{"role": "system", "content": system}]),
        {"role": "user", "content": "How is it?"},
        {
            "role": "assistant", "content": content,
            "tool_calls": [
                {"type": "function", "id": c.id, "function": {"name": c.name, "arguments": json.loads(c.arguments)}} for c in calls
            ],
        },
        *({"role": "tool", "tool_call_id": c.id, "content": r} for c, r in zip(calls, results, strict=True)),
        {"role": "assistant", "content": "Cold."},
        {"role": "user", "content": "And there?"},
    ]  # fmt: skip
    said = [
        ("system", format.system_text(system, [WEATHER, CLOCK])),
        ("user", "How is it?"),
        ("assistant", format.answer_text(content, calls)),
        ("user", format.results_text(results)),
        ("assistant", "Cold."),
        ("user", "And there?"),
    ]
    rendered = tokenizer.render(messages, answer=True, tools=[WEATHER.definition(), CLOCK.definition()])
    parts = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in said) + "<|im_start|>assistant\n"
    assert parts == rendered


@pytest.mark.parametrize("template", [QWEN, HERMES])
def test_definitions_are_the_part_about_the_tools(template: str) -> None:
    format = ToolFormat.of(tokenizer_with(template))
    assert format is not None
    definitions = format.definitions([WEATHER])
    assert json.dumps(WEATHER.definition()) in definitions
    assert definitions in format.system_text("Be brief.", [WEATHER])
    assert definitions in format.system_text(None, [WEATHER])


def test_the_words_of_the_user_beside_results() -> None:
    format = ToolFormat.of(tokenizer_with(QWEN))
    assert format is not None
    results = format.results_text(["1", "2"])
    assert format.question_of(results) == ""
    assert format.question_of(f"{results}\n\nAnd now?") == "And now?"
    assert format.question_of("What is <tool_response>?") == "What is <tool_response>?"


@pytest.mark.parametrize(
    "template",
    [
        CHAT,
        "",
        "{% if tools %}{% endif %}" + CHAT,
        QWEN.replace("message.role == \"tool\"", "message.role == \"other\""),
        QWEN.replace("tool_call.name", "'x'"),
        QWEN.replace("'<|im_start|>user' }}\n        {%- endif %}\n        {{- '\\n<tool_response>", "'<|im_start|>ipython' }}\n        {%- endif %}\n        {{- '\\n<tool_response>"),
        "{{ raise_exception('no') }}{{ tools }}",
    ],
)  # fmt: skip
def test_other_templates_have_no_tool_format(template: str) -> None:
    assert ToolFormat.of(tokenizer_with(template)) is None
