"""Grounding: passages of the documents that a search for the question finds, put before the question.

This module decides which of them the model sees; `templates.py` has the words around them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from everlong_server.engine.answering.evidence.templates import TEMPLATE, Template
from everlong_server.store.texts.passage import Passage

_SAVED = 8
"""Tokens that a passage can save, at most, because it is joined to an adjacent one."""
_NEAR = 400
"""Characters between sentences of one paragraph of the evidence, at most."""
_MIN_ROOM = 128
"""Free tokens in a segment that suffice for evidence. With fewer, passages begin in it and continue in the next segment."""
RECENT_TOKENS = 256
"""Tokens before the open segment that an answer also attends to, if the memory keeps tokens: the end of the conversation.

This is for messages for which the search found nothing, if the conversation does not fit, and for requests with tools. Other answers
attend to their own prompt alone, or to the conversation since such a prompt. The end of the document would distract from the passages
(docs/research/results.md), and take as long to encode as they do.
"""


@dataclass(frozen=True, slots=True)
class Recall:
    """Limits of the evidence for an answer. `passages`: maximum number; 0 turns grounding off. `tokens`: with the template.

    `also_in`: documents that are searched besides those of the session; None: the request names none.
    """

    passages: int
    tokens: int
    also_in: tuple[str, ...] | None = None


def select_passages(
    found: Sequence[Passage], seen: str, budget: int, count: Callable[[str], int], template: Template = TEMPLATE
) -> tuple[list[Passage], str]:
    """Return the evidence for an answer, best passage first, and the text to put before the question.

    The text has the best passage last, unless the template gives them in order: a small model answers from what it has read most
    recently (docs/research/results.md).
    `found`: passages in the order in which to take them. `seen`: text that the model attends to anyway; passages in it are
    evidence, but not repeated. `budget`: maximum number of tokens of the text, by `count`. If not even one word of the best
    passage fits with the template, there is no evidence.
    """

    def render(passages: Sequence[Passage]) -> str:
        return template.render(paragraphs(passages, template.gap))

    already_seen = [p for p in found if p.text.strip() in seen]
    fresh: list[Passage] = []
    used = 0
    for passage in found:
        # Counting a passage takes a fraction of the time that counting all of them takes, and most do not fit.
        if passage not in already_seen and (not fresh or count(passage.text.strip()) <= budget - used + _SAVED):
            more = _merged([*fresh, passage])
            if (total := count(render(more))) <= budget:
                fresh, used = more, total
            elif not fresh:  # the best passage: shorten it rather than take a worse one that fits
                fresh = _shortened(passage, lambda shorter: count(render([shorter])) <= budget)
                break
    by_score = sorted(fresh, key=lambda p: -p.score)  # stable: equal scores stay in text order
    evidence = sorted([*_merged(already_seen), *by_score], key=lambda p: -p.score)
    return [_stripped(p) for p in evidence], render(fresh if template.in_order else by_score[::-1])


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
    """Like `select_passages`, for a memory that keeps its last `window` tokens, which must include the evidence.

    `kept`: tokens before the message that the answer attends to anyway. `between`: number of tokens between these and the
    text; `after`: number of tokens after the text.
    """
    budget = min(budget, window - after)
    evidence, text = select_passages(found, decode(kept) if kept and found else "", budget, count, template)
    if evidence and kept and len(kept) + between + count(text) + after > window:
        return select_passages(found, "", budget, count, template)  # the window will have dropped some kept tokens
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
    """Like `select_passages`, for a memory that keeps no tokens. Evidence must be in the last, open segment.

    `segment`: its length in tokens. `before`: number of tokens before the text, from the beginning of a segment on; `after`:
    number of tokens after the text. `spans`: returns the start and end characters of each token of a text. If the segment
    in which the text begins has little room, passages fill it up, and those in the next segment, the best, are the evidence.
    """
    offset = before % segment
    room = segment - offset - after
    if offset < before or room < 0:
        seen = ""  # the open segment will be full, and become part of the memory

    def fitting() -> tuple[list[Passage], str]:
        return select_passages(found, seen, min(budget, room), count, template) if room >= 0 else ([], "")

    if not found:
        return [], ""
    best = found[0].text.strip()
    if room >= min(budget, _MIN_ROOM) or room >= (0 if best in seen else count(template.render([best]))):
        return fitting()
    evidence, text = select_passages(found, "", min(budget, room + segment), count, template)
    total = offset + count(text) + after
    committed = (total - 1) // segment * segment - offset  # tokens of the text that become part of the memory
    if committed > 0:
        end = spans(text)[committed - 1][1] if committed <= count(text) else len(text)
        evidence = [rest for passage in evidence if (rest := _part_from(passage, text, end)) is not None]
    return max(fitting(), (evidence, text), key=lambda choice: sum(len(passage.text) for passage in choice[0]))


def _merged(passages: Sequence[Passage]) -> list[Passage]:
    """Return the passages in text order. Adjacent ones become one, with the better score."""
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


def paragraphs(passages: Sequence[Passage], gap: str | None) -> list[str]:
    """Return the texts of the passages, in their order. With a `gap`, passages that are near each other in a document become one
    paragraph, in the order of the text, at the place of the last of them."""
    if gap is None:
        return [passage.text for passage in passages]
    groups: list[list[Passage]] = []
    for passage in sorted(passages, key=lambda p: (p.document, p.start)):
        last = groups[-1][-1] if groups else None
        if last is not None and last.document == passage.document and passage.start - last.end <= _NEAR:
            groups[-1].append(passage)
        else:
            groups.append([passage])
    place = {(passage.document, passage.start): n for n, passage in enumerate(passages)}
    groups.sort(key=lambda group: max(place[passage.document, passage.start] for passage in group))
    return [gap.join(passage.text.strip() for passage in group) for group in groups]


def _shortened(passage: Passage, fits: Callable[[Passage], bool]) -> list[Passage]:
    """Return the beginning of a passage that is too long, with as many words as fit; no passage if none fits."""
    passage = _stripped(passage)
    ends = [match.start() for match in re.finditer(r"\s+", passage.text)]
    while ends and not fits(passage.part(0, ends[-1])):
        ends.pop()
    return [passage.part(0, ends[-1])] if ends else []


def _part_from(passage: Passage, text: str, start: int) -> Passage | None:
    """Return the part of the passage in `text` from the character `start` on, in whole words; None if there is none."""
    cut = max(0, start - text.rindex(passage.text))
    if cut:
        space = re.compile(r"\s+").search(passage.text, cut)
        if space is None or space.end() == len(passage.text):
            return None
        cut = space.end()
    return passage.part(cut)


def _stripped(passage: Passage) -> Passage:
    """Return the passage without surrounding white space."""
    text = passage.text.strip()
    start = passage.text.index(text)
    return passage.part(start, start + len(text))
