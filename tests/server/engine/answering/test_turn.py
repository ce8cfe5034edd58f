"""`Turn`: a cancellation counts at any time."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from everlong_server.engine.answering.turn import Turn


@pytest.mark.parametrize("early", [True, False])
def test_an_answer_is_cancelled_also_if_its_prompt_is_not_made_yet(early: bool) -> None:
    """A model may take seconds to rewrite the question."""
    turn, engine, answer = Turn("msg_1"), SimpleNamespace(cancel=Mock()), Mock()
    if early:
        turn.cancel()
    turn.attach(answer, engine)  # type: ignore[arg-type]
    if not early:
        turn.cancel()
    engine.cancel.assert_called_once_with(answer)


def test_a_turn_that_has_failed_begins_no_answer() -> None:
    turn, engine, answer = Turn("msg_1"), SimpleNamespace(cancel=Mock()), Mock()
    turn.fail(ValueError("the lease is lost"))
    with pytest.raises(ValueError, match="lease"):
        turn.attach(answer, engine)  # type: ignore[arg-type]


def test_a_request_that_prepares_the_answer_is_cancelled_with_the_turn() -> None:
    """Such as the rewriting of its question. The answer that follows is cancelled, too."""
    turn, engine, rewriting, answer = Turn(), SimpleNamespace(cancel=Mock()), Mock(), Mock()
    turn.attach(rewriting, engine)  # type: ignore[arg-type]
    turn.cancel()
    engine.cancel.assert_called_once_with(rewriting)
    turn.attach(answer, engine)  # type: ignore[arg-type]
    engine.cancel.assert_called_with(answer)
