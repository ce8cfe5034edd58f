"""Words that were hyphenated at the end of a line are joined, but not the parts of a compound or an address."""

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
    "a compound of the document": (
        "well-read, well-made, well\ufffeknown: known",
        "well-read, well-made, well-known: known",
    ),
    "a word with a prefix and a suffix of other compounds": (
        "a long-lived, short-term, long\ufffeterm plan",
        "a long-lived, short-term, long-term plan",
    ),
    "a word that is also written in one": (
        "a network, net-work, net\ufffework, a network",
        "a network, net-work, network, a network",
    ),
    "a single letter": ("an e\ufffemail, an x\uffferay", "an e-mail, an x-ray"),
    "a single letter after an apostrophe": ("à l'é\ufffecole", "à l'école"),
    "an abbreviation": ("the DNA\ufffebased test", "the DNA-based test"),
    "a digit before": ("the B2\ufffebased test", "the B2-based test"),
    "capitals of a word of the document": ("The committee. THE COMMIT\ufffeTEE", "The committee. THE COMMITTEE"),
    "a part of a longer compound": (
        "the state of the art: state-of\ufffethe-art",
        "the state of the art: state-of-the-art",
    ),
    "the end of a later word": ("pre\ufffeand post-war", "pre- and post-war"),
    "a document that divides compounds alone": (
        "a one-way, two-way, off-peak, tax-free, day-long trip for the first\uffferate crew",
        "a one-way, two-way, off-peak, tax-free, day-long trip for the first-rate crew",
    ),
    "a document that divides words, too": (
        "a one-way, two-way, off-peak, tax-free, day-long win\ufffeter. The win\ufffeter, for winter",
        "a one-way, two-way, off-peak, tax-free, day-long winter. The winter, for winter",
    ),
    "a word at the beginning": ("\ufffeter", "ter"),
}


@pytest.mark.parametrize(("text", "joined"), TEXTS.values(), ids=TEXTS)
def test_hyphens_at_line_ends(text: str, joined: str) -> None:
    assert join_hyphens(text) == joined
