"""Where a text can be cut: what Unicode composes, and which tokenizers have such places."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everlong_models.text.boundaries import Boundaries, _never_composed
from tests.models.text.tiny_tokenizers import TOOLS, bpe

TEXT = st.text(max_size=6)


@given(before=TEXT, character=st.characters(codec="utf-8"), after=TEXT)
@example(before="e", character="\u0301", after="")
@example(before="\u1100", character="\u1161", after="\u11a8")
@example(before="\uac00", character="\u11a8", after="")
@example(before="\u09c7", character="\u09be", after="")
@example(before="a\u0327", character="\u0301", after="b")
def test_what_is_never_composed_begins_a_text_of_its_own(before: str, character: str, after: str) -> None:
    def composed(text: str) -> str:
        return unicodedata.normalize("NFC", text)

    alone = composed(before) + composed(character + after)
    if _never_composed(character):
        assert composed(before + character + after) == alone
    assert not (composed(before + character) != composed(before) + composed(character) and _never_composed(character))


def test_all_pairs_that_are_composed_are_known() -> None:
    for code in range(0x110000):
        parts = unicodedata.normalize("NFD", chr(code))
        if len(parts) > 1 and unicodedata.normalize("NFC", parts) == chr(code):
            assert not _never_composed(parts[-1]), f"U+{code:04X}"
    assert all(map(_never_composed, "a \n<字가🙂\u00e9"))


def test_the_boundaries_of_tokenizers() -> None:
    assert bpe("qwen").boundaries == Boundaries()
    assert bpe("qwen, composed").boundaries == Boundaries(composes=True, longest=len(TOOLS[1]))
    assert bpe("llama3, with tools").boundaries == Boundaries(longest=len(TOOLS[1]))
    assert bpe("gpt2", "Lowercase").boundaries is None


@pytest.mark.parametrize("name", ["qwen, composed", "llama3, with tools"])
def test_a_token_that_a_text_spells_out_is_not_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlong_models.text.tokenizer._CHUNK", 1)
    tokenizer = bpe(name)
    text = "It says:\n<tool_call>\n{}\n</tool_call> and goes on for a while."
    expected = tokenizer.encode(text)
    assert tokenizer.token(expected[[tokenizer.token(each) for each in expected].index(TOOLS[0])]) == TOOLS[0]
    for end in range(1, len(text)):
        stream = tokenizer.stream()
        assert stream.feed(text[:end]) + stream.feed(text[end:]) + stream.finish() == expected
