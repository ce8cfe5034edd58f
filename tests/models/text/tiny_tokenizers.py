"""Tiny tokenizers of every kind, and texts with the edges of their patterns."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Fast
from transformers import PreTrainedTokenizerFast

import everlong_models.text.tokenizer as module
from everlong_models.text.tokenizer import Tokenizer
from tests.tinymodel import NOVEL

CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
END = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "gpt2-split": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + END,
    "qwen": CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + END,
    "o200k": (
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTION}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTION}?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + END
    ),
    "tekken": (
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + END
    ),
}
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)


def split(pattern: str, behavior: str = "isolated") -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior)


def sequence(*parts: pre_tokenizers.PreTokenizer) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(list(parts))


STREAMING: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt2": lambda: GPT2,
    "smollm": lambda: sequence(pre_tokenizers.Digits(individual_digits=True), GPT2),
    "digits": lambda: sequence(pre_tokenizers.Digits(individual_digits=False), split(PATTERNS["llama3"]), BYTES),
    **{name: lambda p=pattern: sequence(split(p), BYTES) for name, pattern in PATTERNS.items()},
    "qwen, composed": lambda: sequence(split(PATTERNS["qwen"]), BYTES),
    "o200k, composed": lambda: sequence(split(PATTERNS["o200k"]), BYTES),
    "gpt2, with runs of spaces": lambda: GPT2,
    "llama3, with tools": lambda: sequence(split(PATTERNS["llama3"]), BYTES),
}
TOOLS = ("<tool_call>", "</tool_call>")
RULES: dict[str, tuple[str, tuple[str, ...]]] = {
    "qwen, composed": ("NFC", TOOLS),
    "o200k, composed": ("NFC", ()),
    "gpt2, with runs of spaces": ("NFC", ("  ", "    ", " " * 8)),
    "llama3, with tools": ("", TOOLS),
}
"""A normaliser, and tokens that are not special, which a text can spell out."""
DIGITS = pre_tokenizers.Digits(individual_digits=True)
WHOLE: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "prefix space": lambda: pre_tokenizers.ByteLevel(add_prefix_space=True),
    "two patterns": lambda: sequence(split(r"\p{N}{1,3}"), split(r"\p{N}"), BYTES),
    "pattern, then GPT-2's": lambda: sequence(split(PATTERNS["llama3"]), GPT2),
    "digits of bytes": lambda: sequence(GPT2, DIGITS),
    "digits last": lambda: sequence(split(r"[a-z0-9]{1,4}"), DIGITS, BYTES),
    "looks back": lambda: sequence(split(r"(?<=x)y|\s+"), BYTES),
    "looks back at a word": lambda: sequence(split(r"\by|\s+"), BYTES),
    "looks far ahead": lambda: sequence(split(r"a(?=.*b)|\s+"), BYTES),
    "merged": lambda: sequence(split(PATTERNS["llama3"], "merged_with_next"), BYTES),
    "no pattern": lambda: BYTES,
    "metaspace": pre_tokenizers.Metaspace,
    "none": lambda: None,
}

# Where patterns, merges and UTF-8 have their edges.
PIECES = [
    *("a", "b", "A", "É", "ß", "the", " the", "Hello", "don", "I", "HTTP", "ABCDEFGHIJKLMNOP", "x" * 30),
    *("'", "'s", "'ve", "'ll", "'LL", "'re", "’s", "'l", "'v", "s", "l", "e"),
    *("1", "12", "1234567", "٣", "½", "²", "Ⅷ", "0" * 20),
    *(" ", "  ", " " * 17, "\n", "\n\n", "\r\n", "\r", "\t", "\t\t ", "\u00a0", "\u3000", "\u2028", "\x85", "\x1c"),
    *(".", ",", "!!", "?!…", "/", "//", "/\n", "-" * 25, "(", ")\n", "_", "=>", "。", "，"),
    *("字", "漢字", "漢" * 20, "ひらがな", "ー", "한국어", "ʰ", "ǅ", "العربية", "हिन्दी"),
    *(
        "é",
        "e\u0301",
        "\u0301",
        "\u0301\u0323",
        "A\u030aBC",
        "🙂",
        "👩‍👩‍👧",
        "\u200d",
        "🇩🇪",
        "\ufeff",
        "\ufffd",
        "\U0001f9ff",
    ),
    *(*TOOLS, "<tool", "_call>", "<", "</tool_call"),
    *(
        "\u1100\u1161\u11a8",
        "\uac00\u11a8",
        "\u1161",
        "\u09c7\u09be",
        "o\u0302\u0301",
        "\u03b1\u0314\u0300\u0345",
        "A\u030a",
    ),
    *(
        "\u2126",
        "\u212a",
        "\u037e",
        "\u1fef",
        "=\u0338",
        "\u0344",
        "\u0958",
        "\ufb1d",
        "\u2adc",
        "\u1b06\u1b35",
        "'r\u0301e",
    ),
    *("<|im_end|>", "<|im_start|>", "<|endoftext|>", "[SEP]", "</s>", "<|", "|>"),
    *("\x00", "\x01", "\x7f", "\x1f", "\u0378", "\U0003ffff", "\ue000"),
]
TEXTS = st.lists(
    st.one_of(st.sampled_from(PIECES), st.sampled_from(PIECES), st.text(st.characters(codec="utf-8"), max_size=3)),
    max_size=40,
)
CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" * 2  # a pattern that distinguishes capitals looks beyond them


def corpus() -> list[str]:
    text = NOVEL.read_text()[:30_000]
    return [
        text,
        text.upper()[:3000],
        *(["".join(PIECES), " ".join(PIECES), "字" + CAPITALS + "d we'll 1234567 ½²\r\n"] * 8),
    ]


def hf(fast: Fast) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<|im_end|>")


def composed(name: str, text: str) -> str:
    """Return the text that the tokens of the tokenizer `name` spell."""
    return unicodedata.normalize("NFC", text) if RULES.get(name, ("",))[0] == "NFC" else text


@functools.cache
def bpe(name: str, normalizer: str = "", added: tuple[str | AddedToken, ...] = ()) -> Tokenizer:
    """A small byte-level BPE with the pre-tokenizer `name`. `added`: tokens that a text can spell out."""
    fast = Fast(models.BPE())
    normalizer, added = RULES.get(name, (normalizer, added))
    pre = {**STREAMING, **WHOLE}[name]()
    if pre is not None:
        fast.pre_tokenizer = pre
    if normalizer:
        fast.normalizer = getattr(normalizers, normalizer)()
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=12,
    )
    texts = corpus()
    fast.train_from_iterator(texts if pre is not None else [t[:200] for t in texts], trainer)
    plain = [AddedToken(each, special=False, normalized=False) if isinstance(each, str) else each for each in added]
    fast.add_tokens(plain)
    return Tokenizer(hf(fast))


@functools.cache
def wordpiece() -> Tokenizer:
    fast = Fast(models.WordPiece(unk_token="[UNK]"))
    fast.normalizer = normalizers.BertNormalizer(lowercase=True)
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.decoder = decoders.WordPiece()
    special = ["[UNK]", "[CLS]", "[SEP]", "<|im_end|>"]
    fast.train_from_iterator(
        corpus(), trainers.WordPieceTrainer(vocab_size=600, special_tokens=special, show_progress=False)
    )
    return Tokenizer(hf(fast))


@pytest.fixture(autouse=True, scope="module")
def _small_chunks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK", 16)
        patch.setattr(module, "_RESUME_TOKENS", 3)
        yield
