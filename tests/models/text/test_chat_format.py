"""The pieces of a conversation, joined, equal the template's own rendering."""

from __future__ import annotations

import copy
import functools

import pytest

from everlong_models.errors import BackboneError
from everlong_models.text.chat_format import ChatFormat
from everlong_models.text.tokenizer import Tokenizer
from tests.tinymodel import CHAT, make_tokenizer

SYSTEM = "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}" + CHAT
TRIMMED = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] | trim }} [/INST]"
    "{% else %} {{ m['content'] | trim }}{{ eos_token }}{% endif %}{% endfor %}"
)
TEMPLATES = {"chatml": CHAT, "system": SYSTEM, "trimmed": TRIMMED}
trained = functools.cache(make_tokenizer)


def tokenizer(template: str | None) -> Tokenizer:
    fast = copy.deepcopy(trained())
    fast.chat_template = template
    return Tokenizer(fast)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_the_pieces_equal_the_templates_rendering(name, turns):
    tokens = tokenizer(TEMPLATES[name])
    chat = ChatFormat.of(tokens)
    messages, ids = [], list(chat.head)
    for turn in range(turns):
        question, answer = f"What is {turn}?", f"It is {turn}."
        messages.append({"role": "user", "content": question})
        ids += [*(chat.turn if turn else ()), *tokens.encode(question), *chat.ask]
        assert tokens.decode(ids, skip_special=False) == tokens.render(messages, answer=True)
        messages.append({"role": "assistant", "content": answer})
        # Where a template puts a space before answers, but not behind its opening, models begin their answers with it.
        ids += tokens.encode(f" {answer}" if name == "trimmed" else answer)


def test_documents_come_before_the_question_in_the_first_message():
    tokens = tokenizer(CHAT)
    chat = ChatFormat.of(tokens)
    first, second, question = (tokens.encode(text) for text in ("Document one.", "Document two.", "Which?"))
    ids = [*chat.head, *first, *chat.separator, *second, *chat.separator, *question, *chat.ask]
    content = "Document one.\n\nDocument two.\n\nWhich?"
    expected = tokens.render([{"role": "user", "content": content}], answer=True)
    assert tokens.decode(ids, skip_special=False) == expected


def test_the_templates_marks_are_special_tokens():
    tokens = tokenizer(CHAT)
    chat = ChatFormat.of(tokens)
    start, end = tokens.encode_markup("<|im_start|><|im_end|>")
    assert chat.head[0] == start
    assert chat.ask[0] == chat.turn[0] == end
    assert start in chat.ask
    assert start in chat.turn


@pytest.mark.parametrize("name", ["chatml", "system"])
def test_instructions_are_placed_as_in_the_template(name):
    tokens = tokenizer(TEMPLATES[name])
    chat = ChatFormat.of(tokens)
    assert chat.system is not None
    before, behind = chat.system
    ids = [*before, *tokens.encode("Be brief."), *behind, *tokens.encode("Why?"), *chat.ask]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    assert tokens.decode(ids, skip_special=False) == tokens.render(messages, answer=True)


REFUSING = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHAT
SILENT = "{% for m in messages if m['role'] != 'system' %}{{ m['content'] }}|{% endfor %}"


@pytest.mark.parametrize("template", [None, REFUSING, SILENT])
def test_a_template_may_have_no_place_for_instructions(template):
    assert ChatFormat.of(tokenizer(template)).system is None


def test_without_a_template_the_format_is_plain_text():
    tokens = tokenizer(None)
    chat = ChatFormat.of(tokens)
    assert chat.head == ()
    assert [tokens.decode(list(part)) for part in (chat.separator, chat.ask, chat.turn)] == [
        "\n\n",
        "\n\nAnswer:",
        "\n\n",
    ]


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0]['content'] }}",  # only the first
        "{% for m in messages | reverse %}{{ m['content'] }}{% endfor %}",
        "no content at all",
        "{% for m in messages %}{{ m['content'] | upper }}{% endfor %}",
        "{{ raise_exception('users only') }}",
        "{% for m in messages %}",
    ],
)
def test_a_template_that_loses_messages_is_refused(template):
    with pytest.raises(BackboneError, match="chat template"):
        ChatFormat.of(tokenizer(template))
