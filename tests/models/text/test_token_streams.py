"""Encoding in pieces equals encoding the whole text, for every kind of tokenizer, with adversarial texts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from tokenizers import AddedToken

import everlong_models.text.tokenizer as module
from everlong_models.text.boundaries import Boundaries
from everlong_models.text.tokenizer import ResumePoint, Tokenizer, TokenStream
from tests.models.text.tiny_tokenizers import (
    CAPITALS,
    STREAMING,
    TEXTS,
    WHOLE,
    _small_chunks,  # noqa: F401, the fixture
    bpe,
    wordpiece,
)
from tests.tinymodel import NOVEL


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
    encoding, boundaries = tokenizer._text.encode(text, add_special_tokens=False), tokenizer.boundaries
    words = encoding.word_ids
    assert places[0] == (0, 0, 0)
    if boundaries is None:
        assert len(places) == 1
        return
    for place in places[1:]:
        assert words[place.token] != words[place.token - 1]
        rest = data[place.byte :].decode()
        assert rest == text[place.char :]
        assert tokenizer.encode(rest) == expected[place.token :], text
    for before, after in pairwise([place.token for place in places] + [len(words)]):
        borders = [n for n in range(before + module._RESUME_TOKENS, len(words)) if boundaries.begins(encoding, n, text)]
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
        assert most <= 2 * (chunk + 13) + (40 if tokenizer.boundaries == Boundaries() else 90)

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

    @pytest.mark.parametrize(
        ("normalizer", "added"),
        [
            ("Lowercase", ()),
            ("NFKC", ()),
            ("", (AddedToken("three words long", lstrip=True, special=False),)),
            ("NFC", (AddedToken("caf\u00e9", normalized=True, special=False),)),
            ("", ("|>and",)),  # begins where the text of a special token ends
        ],
    )
    @settings(max_examples=10, deadline=None)
    @given(pieces=TEXTS)
    @example(pieces=[*"e\u0301" * 30])
    @example(pieces=["three ", "words ", "long ", "and ", "three words", " long", "cafe\u0301", "<|im_end|>and"])
    def test_other_rules_are_applied_to_the_whole_text(self, normalizer, added, pieces):
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
