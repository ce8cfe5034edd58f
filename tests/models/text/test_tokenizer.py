"""Tokenizers: special tokens, decoding, the bytes of tokens, and digests."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerFast

import everlong_models.text.tokenizer as module
from everlong_models.errors import BackboneError
from everlong_models.text.tokenizer import Tokenizer
from tests.models.text.tiny_tokenizers import (
    PIECES,
    STREAMING,
    TEXTS,
    _small_chunks,  # noqa: F401, the fixture
    bpe,
    composed,
    hf,
    wordpiece,
)
from tests.tinymodel import NOVEL, make_tokenizer


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
        assert tokenizer.decode(tokenizer.encode(text)) == composed(name, text)

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
        assert bpe("gpt2", added=("three words long",)).vocab_size == 901
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

        digests = [make("gpt2"), make("smollm"), make("gpt2", "{{ messages }}"), bpe("gpt2", added=("x y",)).digest()]
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
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))).decode() == composed(name, text)


def test_the_bytes_of_one_token_are_those_of_its_text() -> None:
    for tokenizer in (bpe("gpt2", added=("naïve words",)), wordpiece()):
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


@pytest.mark.long
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
