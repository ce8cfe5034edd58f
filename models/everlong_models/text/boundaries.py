"""`Boundaries`: where a text can be cut so that its parts, encoded one by one, have the tokens of the whole text."""

from __future__ import annotations

import functools
import re
import unicodedata
from dataclasses import dataclass
from typing import Any, Self

from tokenizers import Encoding

# The alternatives in the pre-tokenizer patterns of common byte-level tokenizers (GPT-2, SmolLM, Llama 3, Qwen, o200k, Tekken).
# `Boundaries` is proven for these only; a text is not cut if the pattern has any other alternative.
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ALTERNATIVES = (
    *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", _CONTRACTION, "'(?:[sdmt]|ll|ve|re)", "'(?i:[sdmt]|ll|ve|re)"),
    *(r" ?\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?+\p{L}+", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"),
    *(rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{end}" for end in ("", f"{_CONTRACTION}?")),
    *(rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{end}" for end in ("", f"{_CONTRACTION}?")),
    *(r" ?\p{N}+", r"\p{N}{1,3}", r"\p{N}{1,2}", r"\p{N}+", r"\p{N}"),
    *(r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]++[\r\n]*"),
    *(r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),
    *(r"\s*[\r\n]+", r"\s*[\r\n]", r"\s+(?!\S)", r"\s+"),
)
_ALTERNATIVE = f"(?:{'|'.join(map(re.escape, _ALTERNATIVES))})"
_PATTERN = re.compile(rf"{_ALTERNATIVE}(?:\|{_ALTERNATIVE})*")
_LOOK_AHEAD = 8  # characters that must be known after a cut; the longest that a pattern looks ahead is a contraction
_COMPOSED = 4  # at most this many characters become one in normalisation form C
_FORM_C = ({"type": "NFC"}, {"type": "Sequence", "normalizers": [{"type": "NFC"}]})
_JAMO = (range(0x1161, 0x1176), range(0x11A8, 0x11C3))
"""Vowels and final consonants of Korean, which Unicode composes with the character before by a rule, not by a table."""


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Where a tokenizer's texts can be cut: before pre-tokens whose beginning does not depend on the text that follows.

    `composes`: the tokenizer first composes characters (Unicode's normalisation form C). `longest`: characters of the longest token that
    it finds in a text before it looks for pre-tokens, such as `<tool_call>`; 0 if there is none.
    """

    composes: bool = False
    longest: int = 0

    @classmethod
    def of(cls, spec: dict[str, Any]) -> Self | None:
        """Return the boundaries for a tokenizer's description; None if no cut is known to be safe.

        It must be byte-level BPE without a normaliser, or with form C. Its pre-tokens must come from one known pattern, alone or after
        splitting at digits. (With two patterns, the first would have to be resumed inside one of its own matches.)
        """
        normalizer, added = spec.get("normalizer"), spec.get("added_tokens", [])
        found = [token for token in added if not token["special"]]
        if (normalizer is not None and normalizer not in _FORM_C) or not _known_pattern(spec):
            return None
        if any(token["lstrip"] or token["rstrip"] or token["single_word"] for token in found):
            return None
        # Composing may change how long the text of a token is that is found afterwards, unless the token is ASCII.
        if normalizer is not None and any(token["normalized"] and not token["content"].isascii() for token in found):
            return None
        contents = [token["content"] for token in found]
        # The text of a special token is skipped, with a token that begins inside it. After a cut there, that token would be found.
        if any(_hides(token["content"], content) for token in added if token["special"] for content in contents):
            return None
        return cls(normalizer is not None, max(map(len, contents), default=0))

    def begins(self, encoding: Encoding, token: int, text: str) -> bool:
        """Return whether a token (not the first) of `text` begins a pre-token that has the same tokens without the text before it."""
        if encoding.token_to_word(token) == encoding.token_to_word(token - 1):
            return False
        if not self.composes:
            return True
        start, before = start_of(encoding, token), encoding.token_to_chars(token - 1)
        # Form C splits some characters in two, such as U+0958, and each part may begin a pre-token.
        return before is not None and before[1] <= start and _never_composed(text[start])

    def settled_tokens(self, encoding: Encoding, text: str, undecided: int) -> int:
        """Return the number of tokens, up to the last settled beginning of a pre-token, that do not depend on what follows `text`.

        `undecided`: the first index at which the text may yet be divided.
        """
        limit = min(self._settled(text), undecided)
        tokens = range(len(encoding) - 1, 0, -1)
        return next((n for n in tokens if start_of(encoding, n) <= limit and self.begins(encoding, n, text)), 0)

    def _settled(self, text: str) -> int:
        """Return the last index up to which the beginnings of pre-tokens no longer depend on what follows `text`.

        A pattern that finds a boundary may have looked beyond it: to the end of white space, or to the end of a contraction. A pattern
        that distinguishes capitals (o200k) looks to the end of the letters and marks: "字ABC" is two pre-tokens, "字ABCd" is one. So a
        boundary is settled if its run of letters has ended, and a few more characters follow, the last of which is not white space.
        None of these characters may yet become part of an added token or of a composed character.
        """
        end = len(text) - max(0, self.longest - 1)
        if self.composes:
            end -= 1
            while end > 0 and not _never_composed(text[end]):
                end -= 1
        at = len(text[: max(0, end)].rstrip()) - _LOOK_AHEAD * (_COMPOSED if self.composes else 1)
        while at >= 0 and ((kind := unicodedata.category(text[at]))[0] in "LM" or kind == "Cn"):
            at -= 1  # an unassigned character may be a letter in the tokenizer's newer Unicode tables
        return at


def start_of(encoding: Encoding, token: int) -> int:
    """Return the index of a token's first character."""
    chars = encoding.token_to_chars(token)
    assert chars is not None
    return int(chars[0])


def _known_pattern(spec: dict[str, Any]) -> bool:
    """Return whether the tokenizer is byte-level BPE whose pre-tokens come from one known pattern, alone or after splitting at digits."""
    pre = spec.get("pre_tokenizer")
    if pre is None or spec["model"].get("type") != "BPE" or spec["model"].get("dropout"):
        return False
    parts = pre["pretokenizers"] if pre["type"] == "Sequence" else [pre]
    *digits, last = parts
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return False
    if not last["use_regex"]:
        if not digits or digits[-1]["type"] != "Split":
            return False
        split = digits.pop()
        pattern = split["pattern"].get("Regex")
        if pattern is None or split["behavior"] != "Isolated" or not _PATTERN.fullmatch(pattern):
            return False
    return all(part["type"] == "Digits" for part in digits)


def _hides(special: str, content: str) -> bool:
    """Return whether a special token's text can have the beginning of another token, or all of it."""
    return content in special or any(special.endswith(content[:length]) for length in range(1, len(content)))


@functools.lru_cache(maxsize=4096)
def _never_composed(character: str) -> bool:
    """Return whether normalisation form C leaves what is before the character as it is: no part of the character is moved before it, or
    composed with it."""
    first = unicodedata.normalize("NFD", character)[0]
    known = unicodedata.category(character) != "Cn"  # the tokenizer's Unicode tables may be newer
    return known and not unicodedata.combining(first) and first not in _composing()


@functools.cache
def _composing() -> frozenset[str]:
    """Return the characters that form C composes with the one before: the second ones of all pairs."""
    pairs = (unicodedata.decomposition(chr(code)).split() for code in range(0x20000))
    seconds = {chr(int(pair[1], 16)) for pair in pairs if len(pair) == 2 and not pair[0].startswith("<")}
    return frozenset(seconds | {chr(code) for codes in _JAMO for code in codes})
