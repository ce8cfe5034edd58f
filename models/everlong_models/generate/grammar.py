"""`Grammar`: what an answer may be, token by token; so far, JSON of a schema.

The automaton is llguidance's: it knows the tokenizer, and says of every token of the vocabulary whether the answer can go
on with it. That is the mask over a row's logits.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import llguidance
import numpy as np
import torch
from torch import Tensor

from everlong_models.errors import GrammarError
from everlong_models.text.tokenizer import Tokenizer

# As most JSON on one line is written. White space at will is what small models get lost in.
_JSON: llguidance._lib.JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
_LIMITS = llguidance.LLParserLimits(step_max_items=20_000)
"""What a token may cost: a schema that takes more stalls all answers."""
_LONGEST = 200_000
"""Characters of a schema's grammar: some thousand properties, and seconds to compile."""
_KEPT = 16
"""GrammarCompiler that were asked for lately."""


class Grammar:
    """Follows one answer."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def allowed_tokens(self) -> Tensor:
        """Which tokens can be next: (V,), bool. The end-of-text token is one of them where the answer can end."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._require()
        return torch.from_numpy(np.unpackbits(bits, bitorder="little")[: self._vocab_size].astype(bool))

    def accept(self, token: int) -> None:
        """The next token is `token`. Raises `GrammarError` for one that is not allowed."""
        self._matcher.consume_token(token)
        self._require()

    @property
    def finished(self) -> bool:
        """Whether nothing can follow."""
        return self._matcher.is_stopped()

    def _require(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(_first(self._matcher.get_error()))


class GrammarCompiler:
    """Makes grammars for one tokenizer. Thread-safe. `vocab_size`: V, of the model."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._made: llguidance.LLTokenizer | None = None
        self._lock = threading.Lock()
        self._compiled = functools.lru_cache(_KEPT)(self._compile)

    def json(self, schema: dict[str, Any]) -> Grammar:
        """JSON of that schema. Raises `GrammarError` for one that is wrong, too large, or says what is not supported."""
        try:
            text = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=_JSON)
        except ValueError as error:  # a number that is none of JSON's
            raise GrammarError(str(error)[:200]) from error
        if len(text) > _LONGEST:
            raise GrammarError(
                f"its grammar has {len(text)} characters, the limit is {_LONGEST}: name fewer properties"
            )
        return Grammar(self._compiled(text).deep_copy(), self._vocab_size)

    def _compile(self, text: str) -> llguidance.LLMatcher:
        with self._lock:
            if self._made is None:  # a second for a large vocabulary, once
                self._made = self._tokenizer.grammar_tokenizer(self._vocab_size)
        matcher = llguidance.LLMatcher(self._made, text, log_level=0, limits=_LIMITS)
        grammar = Grammar(matcher, self._vocab_size)
        grammar._require()
        grammar.allowed_tokens()  # what is too much for the first token is said at once
        return matcher


def _first(error: str) -> str:
    """What llguidance says, without its state."""
    return error.split("\n<state>", maxsplit=1)[0].strip()[:500]
