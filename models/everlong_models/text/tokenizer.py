"""Text to tokens and back, exact and incremental. Special tokens that a text spells out stay text."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from llguidance import LLTokenizer
from tokenizers import Encoding
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from everlong_models.errors import BackboneError
from everlong_models.text.boundaries import Boundaries, start_of

_CHUNK = 1 << 16
_SECTION, _RUN = 1 << 16, 4096
"""A text is divided at multiples of this many bytes where this many characters follow that are all white space, or all not."""
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_MAX_HELD = 8
"""Most tokens that are held back for an incomplete character, which has up to four bytes."""
_RESUME_TOKENS = 128
"""Least number of tokens between two resume points of a stream."""


class ResumePoint(NamedTuple):
    """A point in a text from which encoding can be resumed, as the number of UTF-8 bytes, characters and tokens before it."""

    byte: int
    char: int
    token: int


class Tokenizer:
    """A Hugging Face fast tokenizer. Raises `BackboneError` for a slow one, which cannot be streamed.

    Takes over the tokenizer that it is given, whose vocabulary is then in memory once: a copy of a large one takes 0.1 GB.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        fast = getattr(tokenizer, "backend_tokenizer", None)
        if fast is None:
            raise BackboneError(f"{type(tokenizer).__name__} is not a fast tokenizer")
        spec: dict[str, Any] = json.loads(fast.to_str())
        # Special tokens such as the beginning of text are part of the chat template here, never of a piece of text.
        self._removed = {name: spec.get(name) for name in ("post_processor", "truncation", "padding")}
        spec.update(dict.fromkeys(self._removed))
        self._spec = json.dumps(spec, sort_keys=True)
        self._text: FastTokenizer = fast
        self._text.post_processor = None
        self._text.no_truncation()
        self._text.no_padding()
        self._text.encode_special_tokens = True
        self.boundaries = Boundaries.of(spec)
        byte_level = (spec.get("decoder") or {}).get("type") == "ByteLevel"
        self._bytes = {character: byte for byte, character in bytes_to_unicode().items()} if byte_level else {}
        self._added = {token["id"] for token in spec.get("added_tokens", [])}
        self._special = {token["id"] for token in spec.get("added_tokens", []) if token["special"]}
        self.vocab_size: int = fast.get_vocab_size(with_added_tokens=True)
        eos = tokenizer.eos_token_id
        self.eos_ids: tuple[int, ...] = () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,)
        self.chat_template: str | None = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else None
        self._hf = tokenizer

    @property
    def streams(self) -> bool:
        """Whether texts can be encoded in pieces, and from places inside them."""
        return self.boundaries is not None

    def to_hf(self) -> PreTrainedTokenizerBase:
        """Return a copy of the Hugging Face tokenizer, with all its rules. Takes half a second for a large vocabulary."""
        copied = copy.copy(self._hf)
        copied._tokenizer = FastTokenizer.from_str(json.dumps(json.loads(self._spec) | self._removed))
        return copied

    def add_eos_ids(self, ids: Iterable[int]) -> None:
        """Add tokens that end an answer. Ids outside the vocabulary are ignored."""
        self.eos_ids = tuple(dict.fromkeys([*self.eos_ids, *(id for id in ids if 0 <= id < self.vocab_size)]))

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`. A special token spelt out in it stays text.

        Encoding takes more than linear time and memory for a run of letters, or of white space. So such runs are divided (see
        `_cuts`): a text with none of more than 4,096 characters has exactly the tokens of the Hugging Face tokenizer.
        """
        starts = [0, *self._cuts(text, 0)[0], len(text)]
        return [token for start, end in pairwise(starts) for token in self._encoded(text[start:end]).ids]

    def spans(self, text: str, *, whole: bool = True, at: int = 0) -> list[tuple[int, int]]:
        """Return the characters [start, end) of `text` for each token of `encode`. Tokens of one character share its span.

        `whole`: no text follows. Otherwise only tokens that following text cannot change are included; none for a tokenizer that does
        not stream. `at`: the byte of a longer text at which `text` begins.
        """
        cuts, undecided = self._cuts(text, at)
        *before, last = pairwise([0, *cuts, len(text)])
        spans = [span for start, end in before for span in _moved(self._encoded(text[start:end]).offsets, start)]
        rest = text[slice(*last)]
        encoding = self._encoded(rest)
        if whole:
            count = len(encoding)
        elif self.boundaries is None:
            return []
        else:
            count = self.boundaries.settled_tokens(encoding, rest, undecided - last[0])
        return spans + _moved(encoding.offsets[:count], last[0])

    def encode_markup(self, text: str) -> list[int]:
        """Return the token ids of `text`, with special tokens recognised. Only for templates, never for users' text.

        No other thread may use the tokenizer meanwhile.
        """
        self._text.encode_special_tokens = False
        try:
            return list(self._text.encode(text, add_special_tokens=False).ids)
        finally:
            self._text.encode_special_tokens = True

    def decode(self, ids: list[int], *, skip_special: bool = True) -> str:
        """Return the text of `ids`."""
        return str(self._text.decode(ids, skip_special_tokens=skip_special))

    def token(self, token_id: int) -> str:
        """Return the text of one token. A byte that is part of a character becomes U+FFFD."""
        return str(self._text.decode([token_id], skip_special_tokens=False))

    def token_bytes(self, token_id: int) -> bytes:
        """Return the UTF-8 bytes of one token, even if they are only part of a character."""
        piece = "" if token_id in self._added else self._text.id_to_token(token_id) or ""
        if piece and all(character in self._bytes for character in piece):
            return bytes(self._bytes[character] for character in piece)
        if fallback := _BYTE.fullmatch(piece):
            return bytes([int(fallback[1], 16)])
        return self.token(token_id).encode()

    def stream(self, at: int = 0) -> TokenStream:
        """Return an incremental encoder. `at`: the byte of a longer text at which its text begins."""
        return TokenStream(self, at)

    def is_hidden(self, token_id: int) -> bool:
        """Return whether a token has no visible text: a special token, or an id that only the model's larger vocabulary has."""
        return token_id in self._special or self._text.id_to_token(token_id) is None

    def text_stream(self) -> TextStream:
        """Return an incremental decoder."""
        return TextStream(self)

    def render(self, messages: list[dict[str, Any]], *, answer: bool, tools: list[Any] | None = None) -> str:
        """Render `messages` with the chat template. `answer`: add the opening of the assistant's answer. `tools`: definitions."""
        rendered = self._hf.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=answer)
        return str(rendered)

    def grammar_tokenizer(self, vocab_size: int) -> LLTokenizer:
        """Return the vocabulary for `Grammar`, for a model with `vocab_size` logits."""
        return LLTokenizer(self._spec, n_vocab=max(vocab_size, self.vocab_size), eos_token=list(self.eos_ids))

    def digest(self) -> str:
        """Return the SHA-256 of vocabulary, rules and chat template, in hexadecimal."""
        return hashlib.sha256(f"{self._spec}\0{self.chat_template}".encode()).hexdigest()

    def _cuts(self, text: str, at: int) -> tuple[list[int], int]:
        """Return `_cuts`; none for a tokenizer that does not stream."""
        return _cuts(text, at) if self.streams else ([], len(text))

    def _encoded(self, text: str) -> Encoding:
        # `encode_batch` releases Python's lock while it works; `encode` does not.
        return self._text.encode_batch([text], add_special_tokens=False)[0]


@dataclass(slots=True)
class TokenStream:
    """Encodes a text that arrives in pieces to exactly the tokens of the whole text, in bounded memory.

    Byte-level tokenizers merge within pre-tokens only. A pattern finds pre-tokens from left to right and never looks back. So the text
    can be cut before any pre-token whose beginning is settled (see `Boundaries`); the rest is held back. Long runs are divided (see
    `_cuts`), which bounds the memory. Other tokenizers receive the whole text at once, in `finish`.
    """

    tokenizer: Tokenizer
    at: int = 0
    """The byte of a longer text at which this one begins."""
    consumed: int = 0
    """UTF-8 bytes of text whose tokens have all been returned. Encoding can be resumed there."""
    resume_points: list[ResumePoint] = field(default_factory=lambda: [ResumePoint(0, 0, 0)])
    """Points in the returned text from which encoding can be resumed: its beginning, then the first possible one after every 128 tokens.
    Callers may remove points that they have taken. For a tokenizer that does not stream, only the beginning."""
    _chars: int = 0
    _tokens: int = 0
    """Tokens returned so far."""
    _next_point: int = field(default_factory=lambda: _RESUME_TOKENS)
    """Least number of tokens before the next resume point."""
    _parts: list[str] = field(default_factory=list)
    _waiting: int = 0
    """Characters in `_parts`."""
    _next: int = field(default_factory=lambda: _CHUNK)
    """Encode again when this many characters are held back."""

    def feed(self, text: str) -> list[int]:
        """Add `text`, and return the tokens that can no longer change."""
        self._parts.append(text)
        self._waiting += len(text)
        boundaries = self.tokenizer.boundaries
        if boundaries is None or self._waiting < self._next:
            return []
        tokens, pending, undecided = self._sections()
        encoding = self.tokenizer._encoded(pending)
        if count := boundaries.settled_tokens(encoding, pending, undecided):
            tokens += self._return_tokens(pending, encoding, count)
            self._next = self._waiting + _CHUNK
        else:
            self._next = 2 * self._waiting  # a run: try again when it has doubled, so the total work stays linear
        return tokens

    def finish(self) -> list[int]:
        """Return the tokens of the remaining text."""
        tokens, pending, _ = self._sections()
        encoding = self.tokenizer._encoded(pending)
        return tokens + self._return_tokens(pending, encoding, len(encoding))

    def _sections(self) -> tuple[list[int], str, int]:
        """Return the tokens up to the last cut, the text after it, and the index in it from which on it may yet be cut."""
        pending = "".join(self._parts)
        cuts, undecided = self.tokenizer._cuts(pending, self.at + self.consumed)
        tokens, end = [], 0
        for start, end in pairwise([0, *cuts]):
            section = pending[start:end]
            encoding = self.tokenizer._encoded(section)
            tokens += self._return_tokens(section, encoding, len(encoding))
        self._hold(pending[end:])
        return tokens, pending[end:], undecided - end

    def _return_tokens(self, pending: str, encoding: Encoding, count: int) -> list[int]:
        """Return the first `count` tokens, which end a pre-token, and hold back the rest of the text."""
        boundaries = self.tokenizer.boundaries
        end = start_of(encoding, count) if count < len(encoding) else len(pending)
        at, token = 0, self._next_point - self._tokens
        while token < count and boundaries is not None:
            if token and not boundaries.begins(encoding, token, pending):
                token += 1
                continue
            start = start_of(encoding, token)
            self.consumed += len(pending[at:start].encode())
            self.resume_points.append(ResumePoint(self.consumed, self._chars + start, self._tokens + token))
            at, token = start, token + _RESUME_TOKENS
        self._next_point = self._tokens + token
        self.consumed += len(pending[at:end].encode())
        self._chars, self._tokens = self._chars + end, self._tokens + count
        self._hold(pending[end:])
        return list(encoding.ids[:count])

    def _hold(self, text: str) -> None:
        self._parts, self._waiting = [text], len(text)


class TextStream:
    """Decodes tokens one by one. A character that spans tokens is held back until it is complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._fast = tokenizer._text
        self._stream = DecodeStream(skip_special_tokens=True)
        self._held: list[int] = []

    def feed(self, token_id: int) -> str:
        """Return the text that `token_id` completes, often empty."""
        if self._tokenizer.is_hidden(token_id):  # the decoder would keep it, and decode it again with each later token
            return ""
        self._held.append(token_id)
        try:
            text = self._stream.step(self._fast, token_id)
        except Exception:  # invalid UTF-8; tokenizers raises a plain Exception
            lost = self._tokenizer.decode(self._held[:-1])
            self._stream, self._held = DecodeStream(skip_special_tokens=True), [token_id]
            text = lost + (self._stream.step(self._fast, token_id) or "")
            if text == lost:
                return text
        if text:
            self._held = []
        elif len(self._held) > _MAX_HELD:
            return self._release_held()
        return text or ""

    def finish(self) -> str:
        """Return the text held back, with U+FFFD for bytes that never became a character."""
        held, self._held = self._held, []
        return self._tokenizer.decode(held)

    def _release_held(self) -> str:
        """Return the text of the held tokens, which are too many for one character, and keep those that may still become one."""
        decode, held = self._tokenizer.decode, self._held
        whole, last = decode(held), len(held) - 1
        # Cut where no character is split; an incomplete character starts within the last three tokens.
        cuts = (n for n in range(last, last - 4, -1) if decode(held[:n]) + decode(held[n:]) == whole)
        cut = next(cuts, last)
        self._stream, self._held = DecodeStream(skip_special_tokens=True), []
        return "".join([decode(held[:cut]), *map(self.feed, held[cut:])])


def _cuts(text: str, at: int) -> tuple[list[int], int]:
    """Return the indices at which a text is divided, and the first index at which that depends on what follows the text.

    A text is divided at the first character at or after each multiple of 64 KiB, if it, the one before and the 4,096 after it are
    all white space, or all not. This depends only on the text around the cut and on its place. So any reader that begins at a byte
    `at` of the text divides it in the same places. Almost no text has such a run; there, a token may end where it otherwise would not.
    """
    cuts: list[int] = []
    if at // _SECTION == (at + 4 * len(text)) // _SECTION:  # a character has at most four bytes
        return cuts, len(text)
    data = text.encode("utf-8", "surrogatepass")
    index = byte = 0
    for multiple in range((at // _SECTION + 1) * _SECTION - at, len(data), _SECTION):
        cut = multiple
        while cut < len(data) and data[cut] & 0xC0 == 0x80:
            cut += 1
        index, byte = index + len(data[byte:cut].decode("utf-8", "surrogatepass")), cut
        around = text[max(0, index - 1) : index + _RUN]
        is_run = around.isspace() or (len(around.split()) == 1 and not (around[0].isspace() or around[-1].isspace()))
        if is_run and index + _RUN > len(text):
            return cuts, index
        if is_run and index:
            cuts.append(index)
    return cuts, len(text)


def _moved(spans: Iterable[tuple[int, int]], by: int) -> list[tuple[int, int]]:
    return [(start + by, end + by) for start, end in spans]
