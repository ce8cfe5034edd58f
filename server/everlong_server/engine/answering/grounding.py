"""What a question is grounded on: passages of the text, found by its words, put before the question.

All that a model sees of them is made here: which words are looked for, which passages are good enough, and the template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everlong_server.store.texts.passages import Passage, plain

# Words that say nothing about what a text is to be searched for: grammar, questions, small talk.
STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
    a about above after again against all also am an and another any anybody anyone anything are aren as at be because
    been before being below between both but by can cannot could couldn d did didn do does doesn doing don down during
    each either else even ever every few for from further get gets give go going gone got had hadn has hasn have haven
    having he her here hers herself him himself his how however i if in into is isn it its itself just know let like ll
    m many may maybe me might mine more most much must mustn my myself need neither no nor not now of off on once one
    only or other ought our ours ourselves out over own perhaps please put rather re really s said same say says shall
    she should shouldn so some somebody someone something still such t take tell than that the their theirs them
    themselves then there these they thing things think this those though through to too under until up upon us ve very
    want wants was wasn we well were weren what whatever when where whether which while who whom whose why will with
    within without won would wouldn yes yet you your yours yourself yourselves
    according answer ask asked chapter describe document documents exactly explain happen happened happens list mean
    means mention mentioned mentions name passage question quote summarise summarize summary text word words
    bye cheers cool evening fine good goodbye great hello help helpful hey hi nice ok okay sorry thank thanks welcome
    morning afternoon tonight today
    book character characters main novel plot setting story tale theme
        """,
    )
)
# Words that people say about anything: a message that has no others, and does not ask about what was talked of before, is
# small talk. Beside others they are searched for, since texts are about them, too.
EVERYDAY_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
    ah aha bro buddy ciao congrats congratulations cya dang ditto dude farewell gosh ha haha hahaha hm hmm hooray huh la lol
    mate nah nope oh omg oops ouch pardon pfft phew sup ugh uh um whoa woah wow xd ya yay yea yeah yep yikes yo yup
    bout dont didnt hes hmmm im ive lets thats whats theres gotta gonna wanna kinda alot u
    absolutely actually apparently basically certainly clearly completely definitely especially exactly fairly
    fully honestly hopefully indeed kind likely literally lot lots mostly obviously personally pretty probably quite seriously
    simply somehow sometimes sort sure surely totally truly unfortunately usually bit little almost already anymore anyway
    anyways ever forward least less likewise never since sometime soon still though too
    agree agreed appreciate assume bet believe bothered care continue disagree doubt enjoy enjoyed expect feel feels felt figure
    forget forgot glad guess hear heard hope imagine interested knew knowing learn learned like liked look looking looks love
    loved make makes meant mind notice point remember repeat saw saying see seem seems seen sense sound sounds start suppose surprised
    talk talked talking thankful think thinking thought understand understood wait welcome wish wonder wondering
    worry chat chatting discuss joke joking kidding speak speaking talks stuff
    amazed amazing awesome awful bad best better brilliant boring clever clear correct crazy cute easy excellent excited exciting fair
    false fantastic fascinating favorite favourite fun funny great happy hard hilarious honest impossible impressive incredible
    interesting lovely lucky nuts obvious okay perfect pleasant possible ready real ridiculous right sad scary
    shame smart strange stupid sweet terrible true unbelievable weird wonderful worse worst wrong
    clue curious feat friend friends idea info new pleasure regards wishes
    ago around back course day days far fact follow holiday holidays keep later learned long meet meeting merry minute
    moment next night nights nothing rest safe same simple stay care time times tomorrow try way week weekend worth year yesterday
        """,
    )
)
# A question with one of these is about what was talked of before.
_POINTING = {"he", "her", "him", "his", "it", "its", "she", "that", "their", "them", "these", "they", "this", "those"}
_TALKING = {"i", "me", "mine", "my", "our", "ours", "us", "we", "you", "your", "yours"}
"""In a dialogue, a question with one of these can be about what was said there, which no text holds."""
_LATIN = 0x250
"""Letters beyond: of those languages the index does not know how words are inflected, or where they end."""
_ASKING = {"describe", "explain", "list", "summarise", "summarize", "tell"}
_WORD = re.compile(r"[^\W_]+")
_MOST = 16
"""A question is searched for by at most so many words, with those of the question before: of its beginning and its end."""
_FEW = 3
"""A question of fewer words of its own takes those of the question before along."""
_BEFORE = 0.5
"""What these weigh."""
_ENOUGH = 0.25
"""The share of what was asked for that a passage must have for any to be taken. With less, the text has nothing about it."""
_NEAR = 0.3
"""The share of the best passage's score that others must have."""
_LEAST = 128
"""Tokens of a segment that are worth being kept to. Of fewer, passages begin in it and go on behind its end."""
RECENT_TOKENS = 256
"""Tokens before the open segment that a later answer with evidence looks at besides, where the memory keeps tokens: the
dialogue. The first answer looks at nothing but its evidence, as if the chat began there: the document's end, which a question
is hardly about, distracts from the passages (docs/results.md), and encoding it takes as long as they do."""


@dataclass(frozen=True, slots=True)
class Template:
    """How passages and a question become one text: opening, passages with `separator` between them, closing, question; or,
    where the text has nothing about the question, `nothing` and the question."""

    opening: str
    separator: str
    closing: str
    nothing: str = (
        "The text above does not hold the answer to the following question. Answer only: “The text does not say.”\n\n"
        "Question: "
    )

    def render(self, passages: Sequence[str]) -> str:
        """What goes before the question; nothing if there are no passages."""
        if not passages:
            return ""
        return self.opening + self.separator.join(passage.strip() for passage in passages) + self.closing


TEMPLATE = Template("Answer the question from these passages of the text.\n\n", "\n\n", "\n\nQuestion: ")
"""The one that is used. It was measured against others: docs/results.md."""


@dataclass(frozen=True, slots=True)
class Recall:
    """`passages`: at most so many are given to an answer; 0 is none. `tokens`: what they may take with their template."""

    passages: int
    tokens: int


def search_words(question: str, before: str | None) -> dict[str, float]:
    """The words to look for and their weight, for a question and the one before it; none for small talk, which has everyday
    words only and does not ask about what was talked of before."""
    every = _words(question)
    own = list(dict.fromkeys(word for word in every if word not in STOP_WORDS))
    telling = [word for word in own if word not in EVERYDAY_WORDS]
    words = dict.fromkeys(own if len(own) <= _MOST else _ends(telling, _MOST), 1.0)
    pointing = not _POINTING.isdisjoint(every)
    if not telling:
        pointing = ("?" in question or not _ASKING.isdisjoint(every)) and "you" not in every
        if before is None or not pointing:
            return {}
    if before is not None and (pointing or len(own) < _FEW):
        earlier = [word for word in _words(before) if word not in STOP_WORDS and word not in words]
        words |= dict.fromkeys(_ends(earlier, _MOST - len(words)), _BEFORE)
    return words


def is_question(message: str) -> bool:
    """Whether a message is a question about something: one that a text can hold the answer to, or not."""
    return "?" in message and not (STOP_WORDS | EVERYDAY_WORDS).issuperset(_words(message))


def texts_lack_answer(question: str, found: Sequence[Passage], *, talked: bool) -> bool:
    """Whether texts that were searched, all of them, do not hold the answer to `question` if this was `found`. `talked`:
    there is a dialogue besides, that could."""
    return (
        is_question(question)
        and not _enough(found)
        and not (talked and not _TALKING.isdisjoint(_words(question)))
        and all(ord(letter) < _LATIN for letter in question if letter.isalpha())
    )


def select_passages(
    found: Sequence[Passage], seen: str, budget: int, count: Callable[[str], int], template: Template = TEMPLATE
) -> tuple[list[Passage], str]:
    """What an answer rests on, the best first, and the text that goes before the question, where the best stands last: a
    small model answers from what it has read a moment ago (docs/results.md).

    `found`: passages, what is to be taken first at the beginning. `seen`: text that the model has before it anyway; what stands there is not
    repeated. `budget`: tokens that the text may take, by `count`; one that holds not even a word of the best passage
    beside the template gives no passages.
    """

    def before(passages: Sequence[Passage]) -> str:
        return template.render([passage.text for passage in passages])

    least = _NEAR * max((p.score for p in found), default=0.0)
    good = [p for p in found if _enough(found) and p.score >= least]
    there = [p for p in good if p.text.strip() in seen]
    fresh: list[Passage] = []
    for passage in good:
        if passage not in there:
            more = _merged([*fresh, passage])
            if count(before(more)) <= budget:
                fresh = more
            elif not fresh:  # the best: a shorter one of its stretch is nothing without it
                fresh = _cut(passage, lambda some: count(before([some])) <= budget)
                break
    fresh.sort(key=lambda p: -p.score)  # stable: equals in the order of the text
    evidence = sorted([*_merged(there), *fresh], key=lambda p: -p.score)
    return [_bare(p) for p in evidence], before(fresh[::-1])


def select_passages_in_window(
    found: Sequence[Passage],
    kept: list[int],
    budget: int,
    count: Callable[[str], int],
    decode: Callable[[list[int]], str],
    *,
    window: int,
    between: int,
    after: int,
    template: Template = TEMPLATE,
) -> tuple[list[Passage], str]:
    """As `choose`, for a memory that keeps its last `window` tokens: what an answer rests on must be among them.

    `kept`: the tokens before the message that it has before it anyway. `between`: tokens that stand between these and the
    text; `after`: behind the text.
    """
    budget = min(budget, window - after)
    evidence, text = select_passages(found, decode(kept) if kept and found else "", budget, count, template)
    if evidence and kept and len(kept) + between + count(text) + after > window:
        return select_passages(found, "", budget, count, template)  # some of what was there will have gone
    return evidence, text


def select_passages_in_segment(
    found: Sequence[Passage],
    seen: str,
    budget: int,
    count: Callable[[str], int],
    spans: Callable[[str], Sequence[tuple[int, int]]],
    *,
    segment: int,
    before: int,
    after: int,
    template: Template = TEMPLATE,
) -> tuple[list[Passage], str]:
    """As `choose`, for a memory that keeps no tokens: a segment that is full goes into it, and what an answer can rest on
    stands in the last one, which is open.

    `segment`: tokens of one; `before`, `after`: tokens that stand before the text, from the beginning of a segment on,
    and behind it. `spans`: the characters of each token of a text. Where the segment that the text begins in has
    little room for it, passages fill it up, and those that stand behind its end, the best, are the evidence.
    """
    at = before % segment
    here = segment - at - after
    if at < before or here < 0:
        seen = ""  # the segment that was open does not stay so

    def fitting() -> tuple[list[Passage], str]:
        return select_passages(found, seen, min(budget, here), count, template) if here >= 0 else ([], "")

    if not found:
        return [], ""
    best = found[0].text.strip()
    if here >= min(budget, _LEAST) or here >= (0 if best in seen else count(template.render([best]))):
        return fitting()
    evidence, text = select_passages(found, "", min(budget, here + segment), count, template)
    total = at + count(text) + after
    gone = (total - 1) // segment * segment - at  # tokens of the text that go into the memory
    if gone > 0:
        end = spans(text)[gone - 1][1] if gone <= count(text) else len(text)
        evidence = [rest for passage in evidence if (rest := _behind(passage, text, end)) is not None]
    return max(fitting(), (evidence, text), key=lambda chosen: sum(len(passage.text) for passage in chosen[0]))


def evidence_view(passage: Passage) -> dict[str, Any]:
    """As callers see it."""
    place = {
        "start_token": passage.start_token, "end_token": passage.end_token, "page": passage.page, "section": passage.section,
    }  # fmt: skip
    return {
        "document": passage.document, "start": passage.start, "end": passage.end, "start_byte": passage.start_byte,
        "end_byte": passage.end_byte, "text": passage.text, "score": passage.score,
        **{name: value for name, value in place.items() if value is not None},
    }  # fmt: skip


def _enough(found: Sequence[Passage]) -> bool:
    return max((passage.share for passage in found), default=0.0) >= _ENOUGH


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(plain(text))]


def _ends(words: Sequence[str], most: int) -> list[str]:
    words = list(dict.fromkeys(words))
    last = most // 2
    return words if len(words) <= most else words[: most - last] + words[len(words) - last :]


def _merged(passages: Sequence[Passage]) -> list[Passage]:
    """In the order of the text; neighbours are one, with the better's score."""
    merged: list[Passage] = []
    for passage in sorted(passages, key=lambda p: (p.document, p.start)):
        last = merged[-1] if merged else None
        if last is not None and (last.document, last.end) == (passage.document, passage.start):
            merged[-1] = replace(
                last, end=passage.end, end_byte=passage.end_byte, text=last.text + passage.text,
                score=max(last.score, passage.score), share=max(last.share, passage.share),
            )  # fmt: skip
        else:
            merged.append(passage)
    return merged


def _cut(passage: Passage, fits: Callable[[Passage], bool]) -> list[Passage]:
    """The beginning of a passage that alone is too long, as many words as fit; nothing if none does."""
    passage = _bare(passage)
    ends = [match.start() for match in re.finditer(r"\s+", passage.text)]
    while ends and not fits(_first(passage, ends[-1])):
        ends.pop()
    return [_first(passage, ends[-1])] if ends else []


def _behind(passage: Passage, text: str, at: int) -> Passage | None:
    """What of a passage stands in `text` from the character `at` on, in whole words."""
    cut = max(0, at - text.rindex(passage.text))
    if cut:
        space = re.compile(r"\s+").search(passage.text, cut)
        if space is None or space.end() == len(passage.text):
            return None
        cut = space.end()
    lead = len(passage.text[:cut].encode())
    return replace(
        passage, text=passage.text[cut:], start=passage.start + cut, start_byte=passage.start_byte + lead
    )  # fmt: skip


def _first(passage: Passage, length: int) -> Passage:
    text = passage.text[:length]
    return replace(passage, text=text, end=passage.start + length, end_byte=passage.start_byte + len(text.encode()))


def _bare(passage: Passage) -> Passage:
    """Without the white space around it."""
    text = passage.text.strip()
    lead = passage.text[: passage.text.index(text)]
    start, start_byte = passage.start + len(lead), passage.start_byte + len(lead.encode())
    return replace(
        passage, text=text, start=start, end=start + len(text), start_byte=start_byte,
        end_byte=start_byte + len(text.encode()),
    )  # fmt: skip
