"""A rewritten question keeps the numbers, the quoted phrases and the negation of the message."""

from __future__ import annotations

import pytest

from everlong_server.engine.answering.search.faithful import is_faithful


@pytest.mark.parametrize(
    ("message", "rewritten"),
    [
        ("And in chapter 6?", "What happens to Alice in chapter 6?"),
        ("And in chapter 6?", "What happens to Alice in chapter six?"),
        ("And in chapter six?", "What happens to Alice in chapter 06?"),
        ("Who paid 1,299 for it?", "Who paid 1299 for the ship?"),
        ("What about twenty-five of them?", "What about 25 of the ships?"),
        ("Which one was it?", "Which ship was the Pequod?"),
        ("And the second?", "What did Anna Berg buy?"),
        ("Who called it “the good ship”?", "Who called the Pequod the good ship?"),
        ("Who shouted 'Do it again!' at him?", 'Who shouted "Do it again!" at Professor Cope?'),
        ("What's the boys' dog called?", "What is the name of the dog of the boys?"),
        ("Why hadn't he stopped it?", "Why had Horton not stopped the work?"),
        ("That didn't work, so what did he do then?", "What did the king do then?"),
        ("Why?", "Why did Felix not leave Paris in 1925?"),
        ("他为什么说“不要”？", "阿哈为什么说“不要”？"),
    ],
)
def test_a_question_that_keeps_what_was_asked_for_is_faithful(message: str, rewritten: str) -> None:
    assert is_faithful(rewritten, message)


@pytest.mark.parametrize(
    ("message", "rewritten"),
    [
        ("And in chapter 6?", "What happens to Alice?"),
        ("And in chapter 6?", "What happens to Alice in chapter 16?"),
        ("And in chapter six?", "What happens to Alice in chapter 5?"),
        ("Who paid 1,299 for it?", "Who paid for the ship?"),
        ("When, at 3pm or 4pm?", "When does the ferry leave, at 3pm?"),
        ("What happened on the 2nd?", "What happened to the ship?"),
        ("Who called it “the good ship”?", "Who called the Pequod a good ship?"),
        ("Who said 'come in'?", "Who said he should come indoors?"),
        ("Wer sagte «komm herein»?", "Wer sagte das?"),
        ("Why hadn't he stopped it?", "Why had Horton stopped the work?"),
        ("Which of them never came back?", "Which of the sailors came back?"),
        ("他为什么说「不要」？", "阿哈为什么说这个？"),
    ],
)
def test_a_question_that_loses_some_of_it_is_not(message: str, rewritten: str) -> None:
    assert not is_faithful(rewritten, message)
