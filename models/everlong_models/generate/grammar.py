"""`Grammar`: constrains an answer token by token, to JSON that follows a schema or to text with calls of tools.

llguidance provides the automaton. It knows the tokenizer, and computes for each token of the vocabulary whether the answer may continue
with it. That is the mask over a row's logits.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import llguidance
import numpy as np
import torch
from torch import Tensor

from everlong_models.errors import GrammarError
from everlong_models.generate.json_schema import enforceable, relaxed
from everlong_models.generate.tool_grammar import tool_grammar
from everlong_models.text.tokenizer import Tokenizer
from everlong_models.text.tool_format import Tool, ToolFormat

# The usual JSON on one line. With free white space, small models produce it endlessly.
_JSON: llguidance._lib.JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
_LIMITS = llguidance.LLParserLimits(step_max_items=20_000)
"""Limits the cost of a token: a more expensive schema would stall all answers."""
_MAX_GRAMMAR = 200_000
"""Most characters of a schema's grammar: some thousand properties, which take seconds to compile."""
_COMBINING = frozenset(
    {"$dynamicRef", "$ref", "allOf", "anyOf", "dependentSchemas", "else", "if", "oneOf", "patternProperties", "then"}
)
"""Keywords with which a schema might become impossible to satisfy if other properties were forbidden."""
_UNKNOWN_KEYWORDS = re.compile(r"Unimplemented keys: \[(.*?)\]")
_CACHED = 16
"""Number of compiled grammars in the cache."""
_CHECKED = 256
"""Number of tools in the cache of checked ones: those of two requests."""


class Grammar:
    """The state of the automaton for one answer. `free_text`: whether the answer may be any text."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int, *, free_text: bool = False) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self.free_text = free_text

    def allowed_tokens(self) -> Tensor:
        """Return which tokens may come next: (V,), bool. Includes the end-of-text token where the answer may end."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._raise_error()
        return torch.from_numpy(np.unpackbits(bits, bitorder="little")[: self._vocab_size].astype(bool))

    def accept(self, token: int) -> None:
        """Advance by `token`. Raises `GrammarError` if it is not allowed."""
        self._matcher.consume_token(token)
        self._raise_error()

    @property
    def finished(self) -> bool:
        """Whether the answer is complete: no token may follow."""
        return self._matcher.is_stopped()

    def _raise_error(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(_message(self._matcher.get_error()))


class GrammarCompiler:
    """Compiles grammars for one tokenizer. Thread-safe. `vocab_size`: the model's number of logits V."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._tokens: llguidance.LLTokenizer | None = None
        self._lock = threading.Lock()
        self._compiled = functools.lru_cache(_CACHED)(self._compile)
        self._checked = functools.lru_cache(_CHECKED)(self._check)

    def json(self, schema: dict[str, Any]) -> Grammar:
        """Return a grammar for JSON that follows `schema`. Raises `GrammarError` if it is invalid, too large, or not supported.

        An unknown `format` has no effect.
        """
        try:
            text = llguidance.LLMatcher.grammar_from_json_schema(enforceable(schema), overrides=_JSON)
        except ValueError as error:  # NaN or infinity, which JSON does not have
            raise GrammarError(str(error)[:200]) from error
        return self._grammar(text)

    def tools(
        self,
        format: ToolFormat,
        tools: Sequence[Tool],
        choice: Literal["auto", "none", "required"],
        *,
        parallel: bool,
        schema: dict[str, Any] | None = None,
    ) -> Grammar:
        """Return a grammar for an answer that may call `tools`. The arguments: see `tool_grammar`; `schema`: of its text.

        The arguments of a call follow the schema of its tool, as `enforced` returns it. Raises `GrammarError`, which names the tool.
        """
        enforced = [self.enforced(tool) for tool in tools]
        if schema is not None:
            self.json(schema)
            schema = enforceable(schema)
        text = tool_grammar(format, enforced, choice, self._special, _JSON, parallel=parallel, text=schema)
        return self._grammar(text, free_text=schema is None and choice != "required")

    def enforced(self, tool: Tool) -> Tool:
        """Return the tool with the schema that its arguments will follow. Raises `GrammarError`, which names the tool.

        If the tool is not strict, this schema may allow more than the tool's own. A schema is compiled once, for all requests until it leaves the cache.
        """
        try:
            return replace(tool, parameters=json.loads(self._checked(json.dumps(tool.parameters), tool.strict)))
        except GrammarError as error:
            raise GrammarError(f"the parameters of {tool.name!r}: {error}") from error

    def _check(self, parameters: str, strict: bool) -> str:
        """Return the schema that arguments will follow, as JSON. `parameters`: the tool's schema. Raises `GrammarError`.

        If the tool is not strict, keywords that cannot be enforced are left out. If that does not help, any JSON object will do.
        """
        schema = enforceable(json.loads(parameters))
        if "properties" in schema and not _COMBINING.intersection(schema):
            # Small models invent properties endlessly where a schema does not forbid them.
            schema = {"additionalProperties": False, **schema}
        looser = () if strict else (relaxed(schema, patterns=True), relaxed(schema, patterns=False), {})
        for tried in (schema, *looser):
            try:
                self.json({"type": "object", **tried})
            except GrammarError as error:
                failure = error
            else:
                return json.dumps({"type": "object", **tried})
        raise failure

    def _special(self, piece: str) -> int | None:
        """Return the token that is `piece`, if text cannot spell it."""
        tokens = self._vocabulary()
        ids = tokens.tokenize_str(piece)
        return ids[0] if len(ids) == 1 and tokens.is_special_token(ids[0]) else None

    def _grammar(self, text: str, *, free_text: bool = False) -> Grammar:
        if len(text) > _MAX_GRAMMAR:
            raise GrammarError(
                f"the schema compiles to a grammar of {len(text)} characters, the limit is {_MAX_GRAMMAR}: use fewer properties"
            )
        return Grammar(self._compiled(text).deep_copy(), self._vocab_size, free_text=free_text)

    def _vocabulary(self) -> llguidance.LLTokenizer:
        with self._lock:
            if self._tokens is None:  # takes a second for a large vocabulary
                self._tokens = self._tokenizer.grammar_tokenizer(self._vocab_size)
            return self._tokens

    def _compile(self, text: str) -> llguidance.LLMatcher:
        matcher = llguidance.LLMatcher(self._vocabulary(), text, log_level=0, limits=_LIMITS)
        grammar = Grammar(matcher, self._vocab_size)
        grammar._raise_error()
        grammar.allowed_tokens()  # a schema that is too expensive fails here, not at the first token
        return matcher


def _message(error: str) -> str:
    """Return llguidance's message in words that help a client, without the dump of its state."""
    if found := _UNKNOWN_KEYWORDS.search(error):
        keywords = found[1].replace('"', "")
        return f"the server cannot enforce {keywords}: leave such keywords out of the schema"
    if "oneOf constraints are not supported" in error:
        return "the server can enforce oneOf only if no value can match two of its schemas: use anyOf"
    return error.split("\n<state>", maxsplit=1)[0].strip()[:500]
