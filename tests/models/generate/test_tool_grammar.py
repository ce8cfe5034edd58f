"""Answers with tools: text, calls whose arguments follow their schema, and nothing else, whatever the model's logits are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import torch
from tokenizers import AddedToken

from everlong_models import (
    Grammar,
    GrammarCompiler,
    GrammarError,
    Sampler,
    SamplingParams,
    Tokenizer,
    Tool,
    ToolCall,
    ToolFormat,
)
from tests.tinymodel import HERMES, make_tokenizer

VOCAB = 530
WEATHER = Tool(
    "get_weather",
    "Tells the weather.",
    {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}, "unit": {"enum": ["C", "F"]}},
        "required": ["city"],
    },
)
COUNT = Tool(
    "count", None, {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, strict=True
)
TOOLS = {tool.name: tool for tool in (WEATHER, COUNT)}
CALL = re.compile(r'<tool_call>\n\{"name": "(\w+)", "arguments": (.*)\}\n</tool_call>')


@pytest.fixture(scope="module", params=["text", "tokens"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """A tokenizer whose markers of a call are text, or tokens of their own."""
    fast = make_tokenizer(template=HERMES)
    if request.param == "tokens":
        fast.add_tokens([AddedToken("<tool_call>", special=False), AddedToken("</tool_call>", special=False)])
    return Tokenizer(fast)


@pytest.fixture(scope="module")
def format(tokenizer: Tokenizer) -> ToolFormat:
    found = ToolFormat.of(tokenizer)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, VOCAB)


def answers(
    tokenizer: Tokenizer, grammars: GrammarCompiler, format: ToolFormat, choice: Any, **how: Any
) -> Iterator[str]:
    """Sample answers from random logits that like the beginning of a call, and the end."""
    chance = torch.Generator().manual_seed(1)
    marks = [tokenizer.encode(mark) for mark in ("<tool_call>", "\n<tool_call>")]
    for seed in range(12):
        grammar = grammars.tools(format, [WEATHER, COUNT], choice, **{"parallel": True, **how})
        sampler, tokens = Sampler(SamplingParams(temperature=1, top_p=1), seed, [], VOCAB, grammar), list[int]()
        ended = False
        while not ended and len(tokens) < 400:
            logits = torch.randn(VOCAB, generator=chance) * 3
            for mark in marks:  # the next token of a marker that has begun
                begun = max(n for n in range(len(mark)) if tokens[len(tokens) - n :] == mark[:n])
                logits[mark[begun]] += 6 if not begun else 12
            logits[tokenizer.eos_ids[0]] += 5
            token = sampler.sample(logits)
            if token not in tokenizer.eos_ids:
                tokens.append(token)
            ended = token in tokenizer.eos_ids or grammar.finished
        if ended:
            yield tokenizer.decode(tokens, skip_special=False)


def calls_of(answer: str) -> list[tuple[str, str]]:
    found = CALL.findall(answer)
    for name, arguments in found:
        schema = TOOLS[name].parameters | {"additionalProperties": False}
        jsonschema.validate(json.loads(arguments), schema)
    return found


def test_a_required_call_is_nothing_but_calls(
    tokenizer: Tokenizer, grammars: GrammarCompiler, format: ToolFormat
) -> None:
    found = list(answers(tokenizer, grammars, format, "required"))
    assert len(found) > 6
    for answer in found:
        assert calls_of(answer)
        assert not CALL.sub("", answer).strip()
    assert {name for answer in found for name, _ in calls_of(answer)} == set(TOOLS)
    assert any(len(calls_of(answer)) > 1 for answer in found)


def test_without_parallel_calls_there_is_one(
    tokenizer: Tokenizer, grammars: GrammarCompiler, format: ToolFormat
) -> None:
    found = list(answers(tokenizer, grammars, format, "required", parallel=False))
    assert len(found) > 6
    assert {len(calls_of(answer)) for answer in found} == {1}


def test_an_answer_may_be_text_or_calls(tokenizer: Tokenizer, grammars: GrammarCompiler, format: ToolFormat) -> None:
    found = list(answers(tokenizer, grammars, format, "auto"))
    with_calls = [answer for answer in found if calls_of(answer)]
    assert len(found) > 6
    assert with_calls
    for answer in found:
        assert "<tool_call>" not in CALL.sub("", answer), "a call that is not one"
    for answer in with_calls:
        assert answer.endswith("</tool_call>"), "nothing follows a call"
    assert not grammar_of(grammars, format, "required").free_text
    assert grammar_of(grammars, format, "auto").free_text


def grammar_of(grammars: GrammarCompiler, format: ToolFormat, choice: Any) -> Grammar:
    return grammars.tools(format, [WEATHER], choice, parallel=True)


def test_text_alone_has_no_call(tokenizer: Tokenizer, grammars: GrammarCompiler, format: ToolFormat) -> None:
    found = list(answers(tokenizer, grammars, format, "none"))
    assert len(found) > 6
    assert all("<tool_call>" not in answer for answer in found)


def test_text_follows_a_schema_and_so_do_calls(
    tokenizer: Tokenizer, grammars: GrammarCompiler, format: ToolFormat
) -> None:
    found = list(answers(tokenizer, grammars, format, "auto", schema={"type": "array", "items": {"type": "boolean"}}))
    assert len(found) > 6
    for answer in found:
        assert calls_of(answer) or isinstance(json.loads(answer), list)


def test_a_schema_that_cannot_be_enforced(grammars: GrammarCompiler, format: ToolFormat) -> None:
    """A strict tool is refused by its name; the arguments of another follow the rest of the schema."""
    odd = {"type": "object", "properties": {"x": {"type": "string"}}, "not": {"required": ["y"]}}
    with pytest.raises(GrammarError, match="the parameters of 'odd'"):
        grammars.tools(format, [Tool("odd", None, odd, strict=True)], "auto", parallel=True)
    assert grammars.tools(format, [Tool("odd", None, odd)], "auto", parallel=True)


SET = {"type": "array", "items": {"type": "integer", "format": "int32"}, "uniqueItems": True, "maxItems": 2}
LOOSE: list[tuple[dict[str, Any], str, str]] = [
    # The set of Pydantic. A decimal of Pydantic, whose pattern looks ahead.
    (SET, "[1, 1]", '["a"]'),
    ({"type": "string", "pattern": "^(?!^$)[0-9]*$", "maxLength": 3}, '"x"', "7"),
    ({"oneOf": [{"type": "object"}, {"type": "object", "properties": {"b": {}}}]}, '{"b": 1}', "[]"),
    ({"type": "object", "patternProperties": {"^(?=a)": {}}, "additionalProperties": False}, '{"a": 1}', "1"),
]


@pytest.mark.parametrize(("schema", "right", "wrong"), LOOSE)
def test_the_rest_of_a_schema_is_enforced(
    tokenizer: Tokenizer, grammars: GrammarCompiler, format: ToolFormat, schema: dict[str, Any], right: str, wrong: str
) -> None:
    """One keyword that cannot be enforced does not free all arguments."""
    tool = Tool("odd", None, {"type": "object", "properties": {"x": schema}, "required": ["x"]})
    fits = []
    for arguments in (f'{{"x": {right}}}', f'{{"x": {wrong}}}', f'{{"y": {right}}}'):
        answer = format.answer_text("", [ToolCall("", "odd", arguments)])
        fits.append(follows(grammars.tools(format, [tool], "required", parallel=False), tokenizer, answer))
    assert fits == [True, False, False]


def test_properties_that_only_a_condition_names_stay_possible(
    tokenizer: Tokenizer, grammars: GrammarCompiler, format: ToolFormat
) -> None:
    """The condition itself cannot be enforced."""
    card = {"if": {"properties": {"kind": {"const": "card"}}}, "then": {"required": ["number"]}}
    tool = Tool("pay", None, {"type": "object", "properties": {"kind": {"type": "string"}}, **card})
    answer = format.answer_text("", [ToolCall("", "pay", '{"kind": "card", "number": 7}')])
    assert follows(grammars.tools(format, [tool], "required", parallel=False), tokenizer, answer)


def follows(grammar: Grammar, tokenizer: Tokenizer, text: str) -> bool:
    for token in tokenizer.encode(text):
        if not grammar.allowed_tokens()[token]:
            return False
        grammar.accept(token)
    return True


def test_a_strict_tool_may_combine_schemas(grammars: GrammarCompiler, format: ToolFormat) -> None:
    parts = {"properties": {}, "anyOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}]}
    assert grammars.tools(format, [Tool("parts", None, parts, strict=True)], "required", parallel=True)


BARE = {
    '{"name": "count", "arguments": {"n": 2}}': True,
    'Sure:\n```json\n{\n  "name": "count",\n  "arguments": {\n    "n": 2\n  }\n}\n```': True,
    '{"name": "count", "arguments": {"n": 2}}\n{"name": "get_weather", "arguments": {"city": "Rome"}}': True,
    '```json\n{"name": "count", "arguments": {"n": 2}}\n```\n```json\n{"name": "count", "arguments": {"n": 3}}\n```': True,
    '{"name": "count", "arguments": {"m": 2}}': False,
    '{"name": "count", "x": 2}': False,
    '{"name": "count", "arguments": {"n": 2}} and then': False,
    '{"name": "other", "arguments": {"m": 2}} and then': True,
}


@pytest.mark.parametrize("answer", BARE)
def test_calls_without_their_markers(
    tokenizer: Tokenizer, grammars: GrammarCompiler, format: ToolFormat, answer: str
) -> None:
    """Models that were trained on code write them, whatever their template says."""
    grammar = grammars.tools(format, [WEATHER, COUNT], "auto", parallel=True)
    assert follows(grammar, tokenizer, answer) == BARE[answer]
    if BARE[answer]:
        assert grammar.allowed_tokens()[tokenizer.eos_ids[0]]


def test_the_schemas_of_many_tools_are_compiled_once(
    tokenizer: Tokenizer, format: ToolFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile, compiled = GrammarCompiler._compile, list[str]()

    def counted(self: GrammarCompiler, text: str) -> Any:
        compiled.append(text)
        return compile(self, text)

    monkeypatch.setattr(GrammarCompiler, "_compile", counted)
    compiler = GrammarCompiler(tokenizer, VOCAB)
    tools = [Tool(f"tool_{n}", None, {"properties": {f"p{n}": {"type": "integer"}}}) for n in range(24)]
    for tool in tools:
        compiler.enforced(tool)
    compiler.tools(format, tools, "auto", parallel=True)
    assert len(compiled) == len(tools) + 1
