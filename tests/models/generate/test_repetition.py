"""An answer that repeats itself over and over is noticed; ordinary text is not."""

from __future__ import annotations

import lzma
import re
from pathlib import Path

import pytest

import everlong_lab.corpora
from everlong_models.generate.repetition import MAX_PERIOD, RepetitionDetector, tokens_of_a_loop

FRESH = range(1000, 100_000)


def fed(*tokens: int) -> RepetitionDetector:
    detector = RepetitionDetector()
    for token in tokens:
        detector.feed(token)
        if detector.looping:
            break
    return detector


@pytest.mark.parametrize("period", [1, 2, 7, 31, 64, 200, MAX_PERIOD])
@pytest.mark.parametrize("before", [0, 5, 700])
def test_a_loop_of_any_period_is_noticed_and_its_first_copy_is_not_part_of_it(period: int, before: int) -> None:
    beginning, passage = list(FRESH[:before]), list(range(period))
    detector = fed(*beginning, *passage, *passage * 60)
    assert detector.looping
    assert detector.repeated == tokens_of_a_loop(period)


@pytest.mark.parametrize("period", [1, 3, 16, 40, 100, MAX_PERIOD])
def test_two_copies_and_what_follows_are_no_loop(period: int) -> None:
    copies = list(range(period)) * 2
    detector = fed(*copies, *FRESH[:300])
    assert not detector.looping
    assert detector.repeated == 0


def test_a_passage_longer_than_the_limit_is_not_noticed() -> None:
    assert not fed(*list(range(MAX_PERIOD + 1)) * 4).looping


def test_a_list_with_a_common_beginning_is_no_loop() -> None:
    rows = [token for n in range(60) for token in (1, 2, 3, 4, 5, 1000 + n, 6)]
    assert not fed(*rows).looping


def test_a_novel_has_no_loop() -> None:
    words: dict[str, int] = {}
    text = lzma.decompress((Path(everlong_lab.corpora.__file__).parent / "dracula.txt.xz").read_bytes()).decode()
    pieces = re.findall(r"\w+|\s+|[^\w\s]", text)
    assert len(pieces) > 150_000
    assert not fed(*(words.setdefault(piece, len(words)) for piece in pieces)).looping


def test_tokens_are_held_back_only_while_they_repeat() -> None:
    detector = RepetitionDetector()
    held = []
    for token in (1, 2, 3, 1, 2, 4, 4, 5):
        detector.feed(token)
        held.append(detector.repeated)
    assert held == [0, 0, 0, 1, 2, 0, 1, 0]
