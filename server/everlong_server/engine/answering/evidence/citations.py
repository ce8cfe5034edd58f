"""Citations: which passages each sentence of an answer rests on, found by aligning their words. Works with any model.

A sentence rests on the part of a passage that has most of its words. Rare words count more than frequent ones, as in a
search, and words of the question count little, since an answer repeats them whether or not a passage supports it.
In English, words of grammar do not count, and the cited parts must have all numbers of the sentence, in digits or words.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from everlong_server.engine.answering.evidence.templates import REFUSAL
from everlong_server.engine.answering.search.number_words import DIGITS, in_digits
from everlong_server.engine.answering.search.question import STOP_WORDS
from everlong_server.store.messages import Citation
from everlong_server.store.search.sentences import FULL_STOP, MARKS
from everlong_server.store.search.terms import language_of, words
from everlong_server.store.texts.passage import Passage

_MIN_SUPPORT = 0.6
"""Share of a sentence's weight that the cited passages must have together."""
_MIN_GAIN = 0.35
"""Share of a sentence's weight that each passage must add."""
_MAX_PASSAGES = 3
"""Passages of one sentence."""
_QUESTION_WEIGHT = 0.2
"""Weight of words that the question has, too."""
_CLOSE = 0.9
"""Share of the best passage's words that another must have to be chosen because it is more about the question."""
_MIN_WEIGHT = 0.5
"""Share of the weight of the rarest possible word that the words of each passage must have: more than "yes" and "the"."""
_NUMBER_SIGN = "#"
"""Start of a number as it is compared."""
_SHORTEST = 2
"""Words of a sentence that may be words of grammar alone: an answer can be "Will." or "In May."."""
_PREFIX = 5
"""Letters by which words are compared, so that most inflections of a word are equal."""

_LIST_NUMBER = r"\(?\d{1,3}[.)][^\S\n]"
# The number of a list's item belongs to its first sentence. A sentence ends with the last of several marks, so that a long row of
# them takes linear time.
_SENTENCE = re.compile(
    rf"(?:(?<![^\n]){_LIST_NUMBER})?[^\n]+?(?:(?:{MARKS}|{FULL_STOP})(?![.!?…])[\"'”’»)\]]*+(?=\s|$)|[。！？]+[」』”]*|(?=\n|$))"
)
_WORD = re.compile(r"[^\W_]+")
# Scripts without spaces between words: Thai, Lao, Myanmar, Khmer, kana, Chinese characters.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")

# A number, not an ordinal ("2nd"), and the words such as "million" after it, which `in_digits` makes numbers of their own.
_NUMBER = re.compile(rf"(?<![^\W_])({DIGITS}(?:\.\d+)?)((?: (?:100|1000|1000000|1000000000))*)(?![^\W_])")
_GRAMMAR = {word[:_PREFIX] for word in STOP_WORDS} | {"one"}
_NOT_ITS_OWN = re.compile(rf"^{_LIST_NUMBER}|\[\d{{1,2}}\]")  # numbers of a list's items and of sources


def cited_part(citation: Citation, evidence: Sequence[Passage]) -> Passage:
    """Return the part of the passage that the sentence rests on."""
    passage = evidence[citation.evidence]
    return passage.part(citation.document_start - passage.start, citation.document_end - passage.start)


def cite(question: str, answer: str, evidence: Sequence[Passage]) -> list[Citation]:
    """Return the citations of `answer`, in its order. A sentence that no passage supports has none, nor has `REFUSAL`."""
    if answer.strip() == REFUSAL:
        return []
    spans = [(number, start, end) for number, p in enumerate(evidence) for start, end in _sentences(p.text)]
    english = language_of("\n".join(passage.text for passage in evidence)) == "en"
    parts = [_words(evidence[number].text[start:end], english) for number, start, end in spans]
    if not parts:
        return []
    counts, asked = Counter(word for part in parts for word in part), _words(question, english)
    rarity = {word: math.log((1 + len(parts)) / count) for word, count in counts.items()}
    wholes = [_words(passage.text, english) & asked for passage in evidence]
    # How much of the question a part and its passage have: of two parts with the same words of an answer, one of them is meant.
    about = [
        sum(rarity[word] for word in part & asked) + sum(rarity[word] for word in wholes[span[0]])
        for part, span in zip(parts, spans, strict=True)
    ]
    rarest = math.log(1 + len(parts))

    def weight(word: str) -> float:
        return (_QUESTION_WEIGHT if word in asked else 1.0) * rarity.get(word, rarest)

    citations = []
    for start, end in _sentences(answer):
        sentence = _words(_NOT_ITS_OWN.sub("", answer[start:end]), english)
        if english and (len(sentence) > _SHORTEST or sentence - _GRAMMAR):
            sentence -= _GRAMMAR
        weights = {word: weight(word) for word in sentence}
        numbers = {word for word in sentence - asked if word.startswith(_NUMBER_SIGN)}
        for part in _supporting(weights, numbers, parts, about, _MIN_WEIGHT * rarest):
            number, first, last = spans[part]
            passage = evidence[number]
            citations.append(
                Citation(start, end, number, passage.document, passage.start + first, passage.start + last)
            )
    return citations


def _supporting(
    weights: dict[str, float], numbers: set[str], parts: Sequence[set[str]], about: Sequence[float], least: float
) -> list[int]:
    """Return the parts that support a sentence, best first: those that together have its words; empty if too few have them.

    `weights`: of the words. `numbers`: those of the words that must all be there. `about`: how much each part is about the question.
    `least`: the weight of the words that each must add at least.
    """
    total, missing, chosen = sum(weights.values()), set(weights), list[int]()
    while missing and len(chosen) < _MAX_PASSAGES:
        gains = [sum(weights[word] for word in missing & part) for part in parts]
        if max(gains) < max(least, _MIN_GAIN * total):
            break
        close = [part for part, gain in enumerate(gains) if gain >= _CLOSE * max(gains)]
        chosen.append(max(close, key=about.__getitem__))
        missing -= parts[chosen[-1]]
    supported = total - sum(weights[word] for word in missing)
    return chosen if numbers.isdisjoint(missing) and supported >= _MIN_SUPPORT * total else []


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each sentence or line of a text starts and ends, without white space around it."""
    for match in _SENTENCE.finditer(text):
        sentence = match.group()
        stripped = sentence.strip()
        if _WORD.search(stripped):
            start = match.start() + sentence.index(stripped)
            yield start, start + len(stripped)


def _words(text: str, english: bool) -> set[str]:
    """Return the words of a text as they are compared: pairs of characters for scripts without spaces.

    Of English, numbers are compared by their value: "46" and "forty-six" are equal.
    """
    text, compared = text.casefold(), set[str]()
    if english:
        text = in_digits(text)
        compared = {_value(*number.groups()) for number in _NUMBER.finditer(text)}
        text = _NUMBER.sub(" ", text)
    for word in words(text):
        if _UNSPACED.fullmatch(word):
            compared |= {word[at : at + 2] for at in range(max(1, len(word) - 1))}
        else:
            compared.add(word[:_PREFIX])
    return compared


def _value(digits: str, scales: str) -> str:
    """Return the value of a number and the scales after it, such as "1000" for "thousand", in a form that no word has."""
    return f"{_NUMBER_SIGN}{math.prod(map(float, [digits.replace(',', ''), *scales.split()])):.12g}"
