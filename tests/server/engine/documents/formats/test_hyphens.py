"""Words that were hyphenated at the end of a line are joined, but not the parts of an address."""

from __future__ import annotations

import pytest

from everlong_server.engine.documents.formats.hyphens import join_hyphens

TEXTS = {
    "a word": ("Win\ufffeter", "Winter"),
    "a word that has its hyphen elsewhere": ("self-esteem, self\ufffeesteem", "self-esteem, self-esteem"),
    "a capital": ("COVID\ufffeNew", "COVID-New"),
    "a web address": ("see https://ex.org/foo\ufffebar/baz", "see https://ex.org/foo-bar/baz"),
    "the second hyphen of a web address": ("https://ex.org/a\ufffeb/c\ufffed", "https://ex.org/a-b/c-d"),
    "a hyphen after a slash": ("(https://ex.org/\ufffex)", "(https://ex.org/-x)"),
    "an address without a protocol": ("(www.ex\ufffeample.org)", "(www.ex-ample.org)"),
    "a domain": ("at ex.org/foo\ufffebar", "at ex.org/foo-bar"),
    "an e-mail address": ("ida@the\ufffehouse.org", "ida@the-house.org"),
    "a path": ("in /usr/lib/foo\ufffebar", "in /usr/lib/foo-bar"),
    "a path in a folder": ("in src/main/foo\ufffebar", "in src/main/foo-bar"),
    "a path of Windows": ("in C:\\docs\\foo\ufffebar", "in C:\\docs\\foo-bar"),
    "words with a slash": ("and/or\ufffeganised", "and/organised"),
    "a word after an address": ("https://ex.org win\ufffeter", "https://ex.org winter"),
    "a word at the beginning": ("\ufffeter", "ter"),
}


@pytest.mark.parametrize(("text", "joined"), TEXTS.values(), ids=TEXTS)
def test_hyphens_at_line_ends(text: str, joined: str) -> None:
    assert join_hyphens(text) == joined
