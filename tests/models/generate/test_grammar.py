"""Answers follow a schema, whatever the model's logits are."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import torch

from everlong_models import Grammar, GrammarCompiler, GrammarError, Sampler, SamplingParams, Tokenizer
from tests.tinymodel import make_tokenizer

VOCAB = 520
"""More than the tokenizer has: models pad their vocabularies."""
SCHEMAS: list[dict[str, Any]] = [
    {"type": "object"},
    {"enum": ["yes", "no", 7, None]},
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "ages": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
            "Ω": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/leaf"}]},
        },
        "required": ["name", "ages", "Ω"],
        "additionalProperties": False,
        "$defs": {"leaf": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"], "additionalProperties": False}},
    },
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(make_tokenizer())


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, VOCAB)


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
@pytest.mark.parametrize(
    "how", [{"temperature": 0}, {"temperature": 1.5}, {"temperature": 1, "top_k": 1, "min_p": 0.5}]
)
def test_any_logits_give_an_answer_that_follows_the_schema(
    tokenizer: Tokenizer, grammars: GrammarCompiler, schema: dict[str, Any], how: dict[str, Any]
) -> None:
    chance, ended = torch.Generator().manual_seed(0), 0
    for seed in range(10):
        grammar = grammars.json(schema)
        sampler = Sampler(SamplingParams(**how, top_p=1), seed, [], VOCAB, grammar)
        tokens: list[int] = []
        while not grammar.finished and len(tokens) < 300:
            logits = torch.randn(VOCAB, generator=chance) * 3
            logits[tokenizer.eos_ids[0]] += 4  # a bias towards ending at once
            token = sampler.sample(logits)
            if token in tokenizer.eos_ids:
                break
            tokens.append(token)
        else:
            if not grammar.finished:
                continue  # an endless number or string
        ended += 1
        jsonschema.validate(json.loads(tokenizer.decode(tokens, skip_special=False)), schema)
    assert ended >= 5


def test_no_bias_overrides_the_mask(grammars: GrammarCompiler, tokenizer: Tokenizer) -> None:
    """No logit bias can select a forbidden token, or a token of the vocabulary's padding."""
    grammar = grammars.json({"enum": ["yes"]})
    allowed = grammar.allowed_tokens()
    assert allowed.shape == (VOCAB,)
    assert not allowed[tokenizer.vocab_size :].any()
    wrong = tokenizer.encode("no")[0]
    sampler = Sampler(SamplingParams(temperature=0, logit_bias={wrong: 100}), 0, [], VOCAB, grammar)
    assert tokenizer.token(sampler.sample(torch.zeros(VOCAB))).startswith('"')
    with pytest.raises(GrammarError):
        grammar.accept(wrong)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "objekt"}, "objekt"),
        ({"type": "string", "pattern": "(("}, "unclosed group"),
        ({"not": {"type": "string"}}, "the server cannot enforce not: leave such keywords out"),
        ({"type": "array", "uniqueItems": True, "contains": {}}, "cannot enforce contains, uniqueItems"),
        ({"oneOf": [{"type": "object"}, {"type": "object", "properties": {"a": {}}}]}, "use anyOf"),
        ({"$ref": "#/nowhere"}, "does not exist"),
        ({"$ref": "http://127.0.0.1:1/x"}, "does not fetch"),
        ({"$ref": "file:///etc/passwd"}, "does not fetch"),
        ({"type": "integer", "maximum": 10**400}, "not JSON"),
        ({"properties": {str(n): {"type": "string"} for n in range(20_000)}}, "the limit is 200000: use fewer"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "unsatisfiable"),
    ],
)
def test_schemas_that_cannot_be_followed(grammars: GrammarCompiler, schema: dict[str, Any], words: str) -> None:
    with pytest.raises(GrammarError, match=f"(?i){words}"):
        grammars.json(schema)


def test_answers_of_one_schema_are_independent(grammars: GrammarCompiler, tokenizer: Tokenizer) -> None:
    """A schema is compiled once, and each answer has its own state."""
    schema = {"enum": ["yes", "no"]}
    one, other = grammars.json(schema), grammars.json(schema)
    before = other.allowed_tokens()
    for token in tokenizer.encode('"yes"'):
        one.accept(token)
    assert one.finished
    assert not other.finished
    assert torch.equal(other.allowed_tokens(), before)
    assert torch.equal(grammars.json(schema).allowed_tokens(), before)


def test_schemas_that_are_nested_too_deeply(grammars: GrammarCompiler) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(300):
        schema = {"type": "array", "items": schema}
    with pytest.raises(GrammarError, match="recursion"):
        grammars.json(schema)


FORMATTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "format": {"type": "integer", "format": "int32", "maximum": 9},
        "key": {"type": "string", "format": "password", "maxLength": 3},
        "day": {"anyOf": [{"$ref": "#/$defs/day"}]},
        "fixed": {"const": {"format": "int32"}},
        "few": {
            "type": "array",
            "items": {"enum": ["a"], "format": "x"},
            "maxItems": 2,
            "uniqueItems": False,
            "minItems": 1,
        },
    },
    "required": ["format", "key", "day", "fixed", "few"],
    "additionalProperties": False,
    "minProperties": 0,
    "$defs": {"day": {"type": "string", "format": "date"}},
}


def test_unknown_formats_have_no_effect(grammars: GrammarCompiler, tokenizer: Tokenizer) -> None:
    """OpenAPI's and Pydantic's formats are annotations. Known formats, and constants that look like formats, are enforced."""
    text = '{"format": 7, "key": "a b", "day": "2026-12-01", "fixed": {"format": "int32"}, "few": ["a"]}'
    jsonschema.validate(json.loads(text), FORMATTED)
    grammar = grammars.json(FORMATTED)
    follow(grammar, tokenizer, text)
    assert grammar.finished
    for right, wrong in (("2026-12-01", "tomorrow"), ('"int32"', '"int64"')):
        with pytest.raises(GrammarError):
            follow(grammars.json(FORMATTED), tokenizer, text.replace(right, wrong))
    assert FORMATTED["properties"]["key"]["format"] == "password", "the schema itself is unchanged"


def follow(grammar: Grammar, tokenizer: Tokenizer, text: str) -> None:
    for token in tokenizer.encode(text):
        grammar.accept(token)
