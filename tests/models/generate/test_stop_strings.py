"""Stop strings against the whole text, cut letter by letter."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlong_models.generate.sampling import StopStringFilter as Stops


def cut(text: str, stop: tuple[str, ...]) -> tuple[str, bool]:
    """Return `text` up to the stop string that is complete first, found letter by letter, and whether there is one."""
    for end in range(len(text) + 1):
        starts = [end - len(s) for s in stop if text[:end].endswith(s)]
        if starts:
            return text[: min(starts)], True
    return text, False


class TestStopStrings:
    @settings(max_examples=400, deadline=None)
    @given(
        st.lists(st.text("ab\n", max_size=4), max_size=12),
        st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4).map(tuple),
    )
    def test_any_pieces_equal_the_whole_and_nothing_leaks(self, pieces, stop):
        whole, found = cut("".join(pieces), stop)
        stops, shown, seen = Stops(stop), "", ""
        for piece in pieces:
            seen += piece
            new = stops.feed(piece)
            shown += new
            assert whole.startswith(shown)
            if stops.found:
                assert shown == whole
            else:
                held = seen[len(shown) :]  # only text that may still become a stop string is held back
                assert held == "" or any(s.startswith(held) for s in stop)
        shown += stops.finish()
        assert (shown, stops.found) == (whole, found)
        at_once = Stops(stop)
        assert (at_once.feed("".join(pieces)) + at_once.finish(), at_once.found) == (whole, found)

    def test_no_part_of_a_stop_string_is_ever_shown(self):
        stops = Stops(("<|end|>",))
        assert [stops.feed(c) for c in "a<|en<|end|>b<"] == ["a", *[""] * 4, "<|en", *[""] * 6, "", ""]
        assert stops.found
        assert stops.finish() == ""

    def test_text_that_only_resembled_a_stop_string_is_shown(self):
        stops = Stops(("stop", "halt"))
        assert stops.feed("do not sto") == "do not "
        assert stops.feed("re ha") == "store "
        assert stops.finish() == "ha"
        assert not stops.found

    @pytest.mark.parametrize(
        ("stop", "text", "shown"),
        [
            (("b", "abc"), "xabc", "xa"),  # complete first
            (("bc", "abc"), "xabc", "x"),  # complete together: the longer
            (("abcd", "bc"), "xabcd", "xa"),
            (("d", "b"), "abcd", "a"),
            (("aab",), "aaaab", "aa"),
            (("\n\n", "\n"), "a\n\nb", "a"),
        ],
    )
    def test_the_earliest_wins_whatever_the_pieces(self, stop, text, shown):
        assert cut(text, stop) == (shown, True)
        for pieces in ([text], list(text), [text[:2], text[2:]], [text[:3], text[3:]]):
            stops = Stops(stop)
            assert "".join(map(stops.feed, pieces)) == shown, pieces
            assert stops.found

    def test_without_stop_strings_text_passes(self):
        stops = Stops(())
        assert stops.feed("a") + stops.feed("b") + stops.finish() == "ab"
        assert not stops.found

    @given(
        st.lists(st.text("ab<c>", max_size=4), max_size=12), st.sampled_from([("a",), ("<",), ("b<", "c>"), ("ba",)])
    )
    def test_nothing_in_a_call_is_a_stop_string(self, pieces, stop):
        """A call begins at "<c>". Text before it ends at a stop string, even at one that looks like the call's beginning."""
        text = "".join(pieces)
        shown, found = cut(text.partition("<c>")[0], stop)
        stops = Stops(stop, lambda held: (at, True) if (at := held.find("<c>")) >= 0 else (begins(held), False))
        assert "".join(map(stops.feed, pieces)) + stops.finish() == (shown if found else text)
        assert stops.found == found


def begins(held: str) -> int:
    """Return where "<c>" may begin at the end of `held`."""
    return len(held) - next((n for n in (2, 1) if held.endswith("<c>"[:n])), 0)
