"""Encoding in pieces equals encoding the whole text, for every kind of tokenizer, with adversarial texts."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Fast
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerFast

import everlong_models.text.tokenizer as module
from everlong_models.errors import BackboneError
from everlong_models.text.tokenizer import ResumePoint, Tokenizer, TokenStream
from tests.tinymodel import NOVEL, make_tokenizer

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
}
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


@functools.cache
def bpe(name: str, normalizer: str = "", added: str = "") -> Tokenizer:
    """A small byte-level BPE with the pre-tokenizer `name`."""
    fast = Fast(models.BPE())
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
    if added:
        fast.add_tokens([AddedToken(added, special=False)])
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


def check(tokenizer: Tokenizer, pieces: list[str]) -> int:
    """Pieces give the tokens of the whole, and every boundary handed out is one to go on from; how many there were
    before the end."""
    text = "".join(pieces)
    data, expected = text.encode(), tokenizer.encode(text)
    stream, got, boundaries = tokenizer.stream(), [], {(0, 0)}
    for piece in pieces:
        got += stream.feed(piece)
        boundaries.add((stream.consumed, len(got)))
    got += stream.finish()
    assert got == expected
    assert stream.consumed == len(data)
    words = tokenizer._text.encode(text, add_special_tokens=False).word_ids
    for consumed, count in boundaries:
        # Tokens must not agree by chance only: with other merges they would differ.
        assert count in (0, len(words)) or words[count] != words[count - 1], text
        rest = data[consumed:].decode()  # raises where a boundary is inside a character
        again = tokenizer.stream()
        again.consumed = consumed
        assert again.feed(rest) + again.finish() == expected[count:]
        assert again.consumed == len(data)
    check_places(tokenizer, text, stream.resume_points)
    return len(boundaries) - 1


def check_places(tokenizer: Tokenizer, text: str, places: list[ResumePoint]) -> None:
    """Check that each point starts a pre-token, that encoding can be resumed there, and that points are as close as required."""
    data, expected = text.encode(), tokenizer.encode(text)
    words = tokenizer._text.encode(text, add_special_tokens=False).word_ids
    assert places[0] == (0, 0, 0)
    if not tokenizer.streams:
        assert len(places) == 1
        return
    for place in places[1:]:
        assert words[place.token] != words[place.token - 1]
        rest = data[place.byte :].decode()
        assert rest == text[place.char :]
        assert tokenizer.encode(rest) == expected[place.token :], text
    for before, after in pairwise([place.token for place in places] + [len(words)]):
        borders = [n for n in range(before + module._RESUME_TOKENS, len(words)) if words[n] != words[n - 1]]
        assert after == (borders or [len(words)])[0]


class TestStreaming:
    @pytest.mark.parametrize("name", STREAMING)
    @settings(max_examples=60, deadline=None)
    @given(pieces=TEXTS)
    def test_pieces_give_the_tokens_of_the_whole(self, name, pieces):
        tokenizer = bpe(name)
        assert tokenizer.streams
        check(tokenizer, pieces)

    @pytest.mark.parametrize("name", STREAMING)
    @pytest.mark.parametrize(
        "text",
        [
            "字" + CAPITALS + "d and the end",  # "字ABC" is two pre-tokens, "字ABCd" is one
            "a" + "\u0301" * 20 + CAPITALS + "d",
            "a " + "漢" * 20 + "A" * 20 + "b c",
            "I said we'll, WE'LL, they've, 'tis, I'd 'l l''ll",
            "x" + " " * 20 + "\n" * 3 + " \n\t  \r\n  y\u00a0 \u00a0\n z \x85\x1c  \x1c\n a",
            "a \n" + " " * 20 + "\n" + "\t" * 12 + "\n b",  # what looks like a line's beginning is not yet one
            "12 1234567890 ½1² a1b22 .5,000.00 ٣٣٣٣",
            "a./\n/\n\n/ /b !!\n\n\n c!! \n - --- ---",
            "é e\u0301 👩‍👩‍👧🇩🇪 \u200d\u0301 \u0378字\u0378ABCDEFGHIJKLMd <|im_end|>\n<|im_start|> end",
        ],
    )
    def test_wherever_the_first_piece_ends(self, name, text, monkeypatch):
        monkeypatch.setattr(module, "_CHUNK", 1)
        tokenizer = bpe(name)
        for end in range(1, len(text)):
            check(tokenizer, [text[:end], text[end:]])

    @pytest.mark.parametrize("name", STREAMING)
    @pytest.mark.parametrize("chunk", [1, 7, 64])
    def test_a_book_is_encoded_and_decoded_exactly(self, name, chunk, monkeypatch):
        """In bounded memory, and with boundaries from which encoding can be resumed."""
        monkeypatch.setattr(module, "_CHUNK", chunk)
        tokenizer, text = bpe(name), NOVEL.read_text()[20_000:24_000]
        stream, got, most = tokenizer.stream(), [], 0
        for at in range(0, len(text), 13):
            got += stream.feed(text[at : at + 13])
            most = max(most, at + 13 - len(text.encode()[: stream.consumed].decode()))
        assert got + stream.finish() == tokenizer.encode(text)
        # What waits: a chunk, a piece, and behind the last boundary a word and what must follow it. A look that found
        # nothing waits for as much again.
        assert most <= 2 * (chunk + 13) + 40

    @pytest.mark.parametrize("name", STREAMING)
    def test_text_without_white_space_is_cut_too(self, name):
        text = '{"key":[1,22,"漢字、漢字。"],"x":null},' * 60
        assert check(bpe(name), [text[at : at + 50] for at in range(0, len(text), 50)]) > 20

    @pytest.mark.parametrize("name", STREAMING)
    @pytest.mark.parametrize("run", ["x", "字", " ", "\n", "!", "\u0301", "A", "/\n", "1"])
    def test_the_work_stays_linear_for_a_long_run(self, name, run):
        class Counting:
            characters = 0

            def encode_batch(self, texts: list[str], **options: object) -> object:
                self.characters += sum(map(len, texts))
                return tokenizer._text.encode_batch(texts, **options)

        tokenizer, text = bpe(name), "start " + run * 6000 + " end of the run" * 20
        counting = Counting()
        counted = object.__new__(Tokenizer)
        counted.__dict__.update(tokenizer.__dict__, _text=counting)
        stream, got = TokenStream(counted), []
        for at in range(0, len(text), 10):
            got += stream.feed(text[at : at + 10])
        assert got + stream.finish() == tokenizer.encode(text)
        assert len(text) <= counting.characters <= 8 * len(text)

    @pytest.mark.parametrize("name", STREAMING)
    @pytest.mark.parametrize("run", ["x", "字", " ", "\n", "!", "\u0301", "A", "1", "!\u0301", "字A", "é"])
    def test_long_runs_are_divided_alike_wherever_reading_begins(self, name, run, monkeypatch):
        """And what is held back is bounded."""
        monkeypatch.setattr(module, "_SECTION", 256)
        monkeypatch.setattr(module, "_RUN", 32)
        tokenizer, text = bpe(name), "start " + run * 600 + " the end. " * 9 + run * 300
        expected, data, whole = tokenizer.encode(text), text.encode(), tokenizer.spans(text)
        for size in (7, 61, 10_000):
            stream, got, most = tokenizer.stream(), [], 0
            for at in range(0, len(text), size):
                got += stream.feed(text[at : at + size])
                most = max(most, stream._waiting)
            assert got + stream.finish() == expected
            assert size > len(text) or most <= 2 * (256 + 2 * 32) + size
            assert tokenizer.decode(expected) == text
            for place in stream.resume_points[:: max(1, len(stream.resume_points) // 8)]:
                rest = data[place.byte :].decode()
                spans = [(start + place.char, end + place.char) for start, end in tokenizer.spans(rest, at=place.byte)]
                assert spans == whole[place.token :]
                known = tokenizer.spans(rest[:200], whole=False, at=place.byte)
                assert [(a + place.char, b + place.char) for a, b in known] == spans[: len(known)]
                again = tokenizer.stream(place.byte)
                assert again.feed(rest) + again.finish() == expected[place.token :]

    @pytest.mark.parametrize("name", STREAMING)
    def test_texts_without_long_runs_are_not_divided(self, name, monkeypatch):
        monkeypatch.setattr(module, "_SECTION", 256)
        tokenizer, text = bpe(name), NOVEL.read_text()[20_000:30_000]
        assert tokenizer.encode(text) == tokenizer._text.encode(text, add_special_tokens=False).ids

    @pytest.mark.parametrize("name", STREAMING)
    @settings(max_examples=40, deadline=None)
    @given(pieces=TEXTS, more=TEXTS)
    @example(pieces=["a", "\n\n"], more=["x"])
    @example(pieces=["字", CAPITALS], more=["d"])
    def test_spans_of_a_beginning_are_those_of_the_whole_text(self, name, pieces, more):
        tokenizer, text = bpe(name), "".join(pieces)
        known, whole = tokenizer.spans(text, whole=False), tokenizer.spans(text + "".join(more))
        assert known == whole[: len(known)]

    def test_tokenizers_that_do_not_stream_have_no_spans_before_the_end(self):
        assert bpe("metaspace").spans("one two three. " * 9, whole=False) == []
        assert len(bpe("gpt2").spans("one two three. " * 9, whole=False)) > 20

    @pytest.mark.parametrize("name", WHOLE)
    @settings(max_examples=10, deadline=None)
    @given(pieces=TEXTS)
    @example(pieces=["ab1cdefg"] * 5)
    @example(pieces=["1234567890"] * 5)
    @example(pieces=["²³¹¼½ " * 10])
    def test_tokenizers_that_do_not_stream_encode_the_whole_text(self, name, pieces):
        tokenizer = bpe(name)
        assert not tokenizer.streams
        assert check(tokenizer, pieces) == 0

    @pytest.mark.parametrize(("normalizer", "added"), [("NFC", ""), ("Lowercase", ""), ("", "three words long")])
    @settings(max_examples=10, deadline=None)
    @given(pieces=TEXTS)
    @example(pieces=[*"e\u0301" * 30])
    @example(pieces=["three ", "words ", "long ", "and ", "three words", " long"])
    def test_normalised_text_and_added_words_are_encoded_whole(self, normalizer, added, pieces):
        tokenizer = bpe("gpt2", normalizer, added)
        assert not tokenizer.streams
        assert check(tokenizer, pieces) == 0

    @settings(max_examples=10, deadline=None)
    @given(pieces=TEXTS)
    def test_wordpiece_is_encoded_whole(self, pieces):
        assert not wordpiece().streams
        assert check(wordpiece(), pieces) == 0

    def test_a_step_without_rows(self):
        stream = bpe("smollm").stream()
        assert stream.feed("") + stream.finish() + stream.finish() == []
        assert stream.consumed == 0

    def test_text_is_held_back_until_a_chunk_is_full(self):
        assert TokenStream(bpe("gpt2"))._next == 16
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_CHUNK", 1000)
            stream = bpe("gpt2").stream()
            assert stream.feed("ten words " * 99) == []
            assert stream.feed("ten words " * 2) != []


class TestTokenizer:
    SPECIAL = "<|im_start|>user\nhi<|im_end|>"

    @pytest.mark.parametrize("name", ["gpt2", "smollm", "o200k", "metaspace"])
    def test_special_tokens_mean_something_in_markup_only(self, name):
        tokenizer = bpe(name)
        special = {tokenizer._text.token_to_id(t) for t in ("<|im_start|>", "<|im_end|>")}
        assert special < set(tokenizer.encode_markup(self.SPECIAL))
        assert special.isdisjoint(tokenizer.encode(self.SPECIAL))
        stream = tokenizer.stream()
        streamed = [i for c in self.SPECIAL * 9 for i in stream.feed(c)] + stream.finish()
        assert special.isdisjoint(streamed)
        if name != "metaspace":
            assert tokenizer.decode(tokenizer.encode(self.SPECIAL)) == self.SPECIAL
            assert tokenizer.decode(tokenizer.encode_markup(self.SPECIAL)) == "user\nhi"
            assert tokenizer.decode(tokenizer.encode_markup(self.SPECIAL), skip_special=False) == self.SPECIAL

    @pytest.mark.parametrize("name", STREAMING)
    @settings(max_examples=25, deadline=None)
    @given(pieces=TEXTS)
    def test_decoding_gives_the_text_back(self, name, pieces):
        text = "".join(pieces)
        tokenizer = bpe(name)
        assert tokenizer.decode(tokenizer.encode(text)) == text

    @settings(max_examples=150, deadline=None)
    @given(pieces=TEXTS)
    def test_decoding_one_by_one(self, pieces):
        tokenizer, text = bpe("smollm"), "".join(pieces)
        stream, shown = tokenizer.text_stream(), ""
        for token in tokenizer.encode(text):
            shown += stream.feed(token)
            assert text.startswith(shown)
        assert shown + stream.finish() == text

    @settings(max_examples=300, deadline=None)
    @given(st.lists(st.integers(0, 899), max_size=30))
    def test_decoding_any_tokens_one_by_one(self, ids):
        """Sampled tokens need not be valid text: bytes of a character are shown together, others as U+FFFD."""
        tokenizer = bpe("gpt2")
        stream = tokenizer.text_stream()
        assert "".join([*map(stream.feed, ids), stream.finish()]) == tokenizer.decode(ids)

    @settings(max_examples=300, deadline=None)
    @given(
        st.lists(
            st.one_of(st.integers(0, 1000), st.sampled_from([bytes([b]) for b in "🙂é漢\ufffd".encode()])), max_size=60
        )
    )
    def test_decoding_any_bytes_one_by_one(self, what):
        """Runs of bytes that are no text, and characters in them, of which no part is shown; special and unknown tokens."""
        tokenizer = bpe("gpt2")
        alphabet = {b: tokenizer._text.token_to_id(c) for b, c in byte_characters().items()}
        ids = [alphabet[one[0]] if isinstance(one, bytes) else one for one in what]
        stream = tokenizer.text_stream()
        assert "".join([*map(stream.feed, ids), stream.finish()]) == tokenizer.decode(ids)

    @pytest.mark.parametrize("what", [[2], [10_000], b"\xf0", b"\xe2\x82", b"\xf0\xf0\x9f\x98", "\ufffd".encode()])
    def test_tokens_without_text_are_decoded_once(self, what, monkeypatch):
        """Special tokens under `ignore_eos`, or bytes preferred by a bias: otherwise each step would take longer than the last."""
        tokenizer = bpe("gpt2")
        alphabet = {b: tokenizer._text.token_to_id(c) for b, c in byte_characters().items()}
        waiting = []

        class Stream:
            def __init__(self, **options: object) -> None:
                self.real, self.tokens = DecodeStream(**options), 0

            def step(self, fast: Fast, token: int) -> str | None:
                text = self.real.step(fast, token)
                self.tokens = 0 if text else self.tokens + 1
                waiting.append(self.tokens)
                return text

        monkeypatch.setattr(module, "DecodeStream", Stream)
        ids = [alphabet[ord("a")], *([alphabet[b] for b in what] if isinstance(what, bytes) else what) * 100]
        stream = tokenizer.text_stream()
        assert "".join([*map(stream.feed, ids), stream.finish()]) == tokenizer.decode(ids)
        assert max(waiting) < 10

    def test_a_character_is_shown_when_it_is_whole(self):
        tokenizer = bpe("gpt2")
        alphabet = {b: tokenizer._text.token_to_id(c) for b, c in byte_characters().items()}
        stream = tokenizer.text_stream()
        assert [stream.feed(alphabet[b]) for b in "a🙂é".encode()] == ["a", "", "", "", "🙂", "", "é"]
        assert stream.finish() == ""
        stream = tokenizer.text_stream()
        assert [stream.feed(alphabet[b]) for b in "a🙂".encode()[:3]] == ["a", "", ""]
        assert stream.finish() == "\ufffd"
        assert stream.finish() == ""

    def test_special_tokens_are_not_shown(self):
        tokenizer = bpe("gpt2")
        stream = tokenizer.text_stream()
        shown = [stream.feed(i) for i in tokenizer.encode_markup("hi<|im_end|>")]
        assert "".join([*shown, stream.finish()]) == "hi"

    def test_tokens_vocabulary_and_end(self):
        tokenizer = bpe("gpt2")
        assert tokenizer.vocab_size == 900
        assert tokenizer.eos_ids == (2,)
        assert tokenizer.token(2) == "<|im_end|>"
        assert tokenizer.token(tokenizer.encode("a")[0]) == "a"
        assert bpe("gpt2", added="three words long").vocab_size == 901
        fast = PreTrainedTokenizerFast(tokenizer_object=Fast.from_str(bpe("gpt2")._spec))
        assert Tokenizer(fast).eos_ids == ()

    def test_encoding_adds_no_beginning_of_text_token(self):
        from tokenizers.processors import TemplateProcessing

        fast = Fast.from_str(bpe("gpt2")._spec)
        fast.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
        fast.enable_truncation(5)
        fast.enable_padding(length=50)
        assert Tokenizer(hf(fast)).encode("one two three four five six") == bpe("gpt2").encode(
            "one two three four five six"
        )

    def test_the_digest_is_of_vocabulary_rules_and_template(self):
        def make(name: str, template: str | None = None) -> str:
            tokenizer = hf(Fast.from_str(bpe(name)._spec))
            tokenizer.chat_template = template
            return Tokenizer(tokenizer).digest()

        digests = [make("gpt2"), make("smollm"), make("gpt2", "{{ messages }}"), bpe("gpt2", added="x y").digest()]
        assert len(set(digests)) == len(digests)
        assert make("gpt2") == bpe("gpt2").digest()

    def test_a_slow_tokenizer_is_refused(self):
        class Slow:
            eos_token_id = 0

        with pytest.raises(BackboneError, match="Slow is not a fast tokenizer"):
            Tokenizer(Slow())


def byte_characters() -> dict[int, str]:
    """GPT-2's characters for bytes: printable bytes are themselves, the others follow from U+0100 in order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + n) for n, b in enumerate(others)}


@pytest.mark.parametrize("name", STREAMING)
def test_the_bytes_of_tokens_are_those_of_the_text(name: str) -> None:
    tokenizer, text = bpe(name), " ".join(PIECES)
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))).decode() == text


def test_the_bytes_of_one_token_are_those_of_its_text() -> None:
    for tokenizer in (bpe("gpt2", added="naïve words"), wordpiece()):
        for token in range(tokenizer.vocab_size):
            if "\ufffd" not in (text := tokenizer.token(token)):
                assert tokenizer.token_bytes(token).decode() == text
    fallback = Fast(models.BPE({"<0xF0>": 0, "<0x9F>": 1, "a": 2, "<|im_end|>": 3}, []))
    assert [Tokenizer(hf(fallback)).token_bytes(token) for token in range(3)] == [b"\xf0", b"\x9f", b"a"]


def test_invalid_utf8_does_not_end_an_answer() -> None:
    """For tokenizers with byte fallback."""
    pieces = ["<unk>", "<|im_end|>", *(f"<0x{byte:02X}>" for byte in range(256)), "a"]
    fast = Fast(models.BPE({piece: id for id, piece in enumerate(pieces)}, [], byte_fallback=True, unk_token="<unk>"))
    fast.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = Tokenizer(hf(fast))
    face, broken, letter = [2 + byte for byte in "😀".encode()], [2 + 0xF0, 2 + 0x9F], len(pieces) - 1
    for ids, said in (
        ([letter, *face, *broken, letter, letter], "a😀aa"),
        ([letter, *face, *broken], "a😀"),
        ([letter, *broken, letter, *face], "aa😀"),
        ([*face, *face], "😀😀"),
    ):
        stream = tokenizer.text_stream()
        text = "".join(map(stream.feed, ids)) + stream.finish()
        assert text.replace("\ufffd", "") == said
        assert ("\ufffd" in text) == (said != "😀😀")


def test_an_answer_ends_with_the_models_end_tokens() -> None:
    tokenizer = Tokenizer(bpe("gpt2").to_hf())
    (end,) = tokenizer.eos_ids
    tokenizer.add_eos_ids([end, 0, 10**9, -1])
    assert tokenizer.eos_ids == (end, 0)


def test_other_threads_run_while_a_text_is_encoded() -> None:
    """Above all the thread that generates answers."""
    tokenizer, text = Tokenizer(make_tokenizer()), NOVEL.read_text()
    turns, over, begun = 0, threading.Event(), threading.Event()

    def turn() -> None:
        nonlocal turns
        while not over.is_set():
            turns += 1
            begun.set()

    other = threading.Thread(target=turn)
    other.start()
    assert begun.wait(30)
    before = turns
    ids = tokenizer.encode(text * 4)
    after = turns
    over.set()
    other.join()
    assert len(ids) > 10_000
    assert after - before > 100, "at most a few where the interpreter is held"
