"""Text to tokens and back: exact, incremental, and deaf to special tokens that a text spells out."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer as FastTokenizer
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase

from everlong_models.errors import BackboneError

# A pre-token is settled once this many characters, not counting trailing white space, follow it: the longest
# look-ahead of the patterns in use is a contraction ('ve, 'll) or the next non-space character.
_LOOK_AHEAD = 8
_CHUNK = 1 << 16


class Tokenizer:
    """A Hugging Face fast tokenizer. Raises `BackboneError` for a slow one, which cannot be streamed."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        fast = getattr(tokenizer, "backend_tokenizer", None)
        if fast is None:
            raise BackboneError(f"{type(tokenizer).__name__} is not a fast tokenizer")
        spec: dict[str, Any] = json.loads(fast.to_str())
        # Beginning-of-text marks and the like belong to the chat template here, never to a piece of text.
        spec.update(post_processor=None, truncation=None, padding=None)
        self._markup = FastTokenizer.from_str(json.dumps(spec))
        self._text = FastTokenizer.from_str(json.dumps(spec))
        self._text.encode_special_tokens = True
        self._spec = json.dumps(spec, sort_keys=True)
        self.streams = _restartable(spec)
        self.vocab_size: int = fast.get_vocab_size(with_added_tokens=True)
        eos = tokenizer.eos_token_id
        self.eos_ids: tuple[int, ...] = () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,)
        self.chat_template: str | None = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else None
        self._hf = tokenizer

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; a special token spelt out in it stays text."""
        return list(self._text.encode(text, add_special_tokens=False).ids)

    def encode_markup(self, text: str) -> list[int]:
        """Token ids of `text`, in which special tokens mean what they say: for templates, never for users' text."""
        return list(self._markup.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int], *, skip_special: bool = True) -> str:
        """The text of `ids`."""
        return str(self._text.decode(ids, skip_special_tokens=skip_special))

    def token(self, token_id: int) -> str:
        """The text of one token, as far as it is one (a byte of a longer character shows as U+FFFD)."""
        return str(self._text.decode([token_id], skip_special_tokens=False))

    def stream(self) -> TokenStream:
        """An incremental encoder."""
        return TokenStream(self)

    def text_stream(self) -> TextStream:
        """An incremental decoder."""
        return TextStream(self)

    def render(self, messages: list[dict[str, str]], *, answer: bool) -> str:
        """`messages` through the chat template; `answer` adds the assistant's opening."""
        rendered = self._hf.apply_chat_template(messages, tokenize=False, add_generation_prompt=answer)
        return str(rendered)

    def digest(self) -> str:
        """SHA-256 of vocabulary, rules and chat template; hexadecimal."""
        return hashlib.sha256(f"{self._spec}\0{self.chat_template}".encode()).hexdigest()


@dataclass(slots=True)
class TokenStream:
    """Encodes a text that arrives in pieces to exactly the tokens of the whole text, in bounded memory.

    Byte-level tokenizers merge within pre-tokens only, and a pre-token is found by a pattern that scans left to right:
    so the text can be cut before any pre-token that is settled. What is not settled waits in `_pending`. Memory is
    bounded by the longest pre-token (a run without spaces). A tokenizer of another kind is given the whole text at once.
    """

    tokenizer: Tokenizer
    consumed: int = 0
    """UTF-8 bytes of text whose tokens have all been handed out: encoding can be resumed there."""
    _pending: str = ""
    _next: int = field(default=_CHUNK)

    def feed(self, text: str) -> list[int]:
        """The tokens that are settled now."""
        self._pending += text
        if not self.tokenizer.streams or len(self._pending) < self._next:
            return []
        encoding = self.tokenizer._text.encode(self._pending, add_special_tokens=False)
        limit = len(self._pending.rstrip()) - _LOOK_AHEAD
        words, offsets = encoding.word_ids, encoding.offsets
        for cut in range(len(words) - 1, 0, -1):
            start = offsets[cut][0]
            if start <= limit and words[cut] != words[cut - 1]:
                self.consumed += len(self._pending[:start].encode())
                self._pending = self._pending[start:]
                self._next = len(self._pending) + _CHUNK
                return list(encoding.ids[:cut])
        self._next = 2 * len(self._pending)  # one long run: look again when it has doubled, so the work stays linear
        return []

    def finish(self) -> list[int]:
        """The tokens of what is left."""
        ids = self.tokenizer.encode(self._pending)
        self.consumed += len(self._pending.encode())
        self._pending = ""
        return ids


class TextStream:
    """Decodes tokens one by one; a character that spans tokens is held back until it is whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._fast = tokenizer._text
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._given = 0

    def feed(self, token_id: int) -> str:
        """The text that `token_id` completes, often empty."""
        self._ids.append(token_id)
        text = self._stream.step(self._fast, token_id) or ""
        self._given += len(text)
        return text

    def finish(self) -> str:
        """What was held back, with U+FFFD for bytes that never became a character."""
        rest = self._fast.decode(self._ids, skip_special_tokens=True)[self._given :]
        self._given += len(rest)
        return str(rest)


def _restartable(spec: dict[str, Any]) -> bool:
    """Whether encoding may be cut before any settled pre-token: no normaliser, patterns that only look ahead."""
    if spec.get("normalizer") or any(not token["special"] for token in spec.get("added_tokens", [])):
        return False
    pre = spec.get("pre_tokenizer")
    if pre is None or spec["model"].get("type") != "BPE" or spec["model"].get("dropout"):
        return False
    parts = pre["pretokenizers"] if pre["type"] == "Sequence" else [pre]
    for part in parts:
        if part["type"] == "ByteLevel":
            if part["add_prefix_space"]:
                return False
        elif part["type"] == "Split":
            pattern = part["pattern"].get("Regex")
            if pattern is None or "(?<" in pattern or part["behavior"] != "Isolated":
                return False
        elif part["type"] != "Digits":
            return False
    return any(part["type"] in ("ByteLevel", "Split") for part in parts)
