"""`Terms`: the index terms of a text or question, in the language of the document.

A word is one term, its stem. A language that is written without spaces has a term for each sequence of a few characters.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Sequence
from functools import cache
from itertools import chain

import Stemmer
from py3langid.langid import MODEL_FILE, LanguageIdentifier
from stop_words import LANGUAGE_MAPPING, get_stop_words

from everlong_server.store.search.figures.find import figure_terms
from everlong_server.store.search.normalise import (
    PAIRED,
    TRIPLED,
    composed,
    other_words,
    searchable,
    without_separators,
    words_in,
)

_SAMPLE = 20_000
"""Characters of a text that its language is recognised by."""
_SURE = 40
"""Letters that a text must have to recognise its language; a shorter one counts as English."""
# Two characters of Chinese, Japanese and Korean make a term. Thai, Lao, Burmese and Khmer have letters: three.
_RUN = re.compile(f"(?P<paired>[{PAIRED}]+)|(?P<tripled>[{TRIPLED}]+)|[^{PAIRED}{TRIPLED}]+")
_UNSPACED = re.compile(f"[{PAIRED}{TRIPLED}]")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^A-Za-z\d]+")
_ACCENTS = re.compile("[\u0300-\u036f\u0591-\u05c7\u0640\u064b-\u065f\u0670]")
"""Accents; points of Hebrew and signs of Arabic that most texts leave out, and the stroke that stretches Arabic words."""
_STROKES = str.maketrans("øłđı", "oldi")
"""Letters that Unicode does not decompose, and what people write who lack them."""
_CACHED = 1 << 16
"""Words whose terms are remembered, for each language and thread."""


class Terms:
    """Makes terms of one language, an ISO 639-1 code. Not to be shared by threads."""

    def __init__(self, language: str) -> None:
        names = _stemmers()
        self._stem = Stemmer.Stemmer(names.get(language, names["en"])).stemWord
        self._known: dict[str, tuple[str, ...]] = {}

    def of(self, text: str) -> list[str]:
        """Return the terms of a text, in its order; then those of words that can be read in another way."""
        readable = composed(text)
        return self._of(text, readable, without_separators(readable))

    def with_figures(self, text: str) -> list[str]:
        """Return the terms of a text, as `of` does; then those of its figures of several parts, such as dates."""
        readable = composed(text)
        plain = without_separators(readable)
        found = self._of(text, readable, plain)
        found += figure_terms(readable, plain)
        return found

    def _of(self, text: str, readable: str, plain: str) -> list[str]:
        known = self._known
        found: list[str] = []
        for word in chain(words_in(plain), other_words(text, readable, plain)):
            terms = known.get(word)
            if terms is None:
                if len(known) >= _CACHED:
                    known.clear()
                terms = known[word] = tuple(self._terms(word))
            found += terms
        return found

    def _terms(self, word: str) -> list[str]:
        if word.isascii() or not _UNSPACED.search(word):
            return [self._term(part) for part in _with_parts(word)]
        terms: list[str] = []
        for run in _RUN.finditer(word):
            size = 2 if run["paired"] else 3 if run["tripled"] else 0
            terms += _sequences(run[0], size) if size else [self._term(part) for part in _with_parts(run[0])]
        return terms

    def _term(self, word: str) -> str:
        stem = self._stem(word.casefold().replace("œ", "oe").replace("æ", "ae"))
        if stem.isascii():
            return stem
        plain = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", stem)))
        return plain.translate(_STROKES)


def words(text: str) -> list[str]:
    """Return the words of a text as it is written, with case; a language without spaces yields runs of characters."""
    return words_in(searchable(text))


def language_of(text: str) -> str:
    """Return the language that most of a text is in, as an ISO 639-1 code. A short text counts as English."""
    sample = " ".join(words(text[:_SAMPLE]))
    if sum(map(str.isalpha, sample[: 4 * _SURE])) < _SURE:
        return "en"
    with _IDENTIFYING:
        return str(_identifier().classify(sample)[0])


@cache
def stop_words(language: str) -> frozenset[str]:
    """Return words that are in most texts of a language, such as "wenn" and "ich", in small letters; none for an unknown language.

    None for English, too: those are left out of a query before its documents are known.
    """
    language = "nb" if language in ("no", "nn") else language
    if language == "en" or language not in LANGUAGE_MAPPING:
        return frozenset()
    return frozenset(word.casefold() for word in get_stop_words(language))


@cache
def other_stop_words() -> tuple[frozenset[str], ...]:
    """Return the words that are in most texts of a language, in lower case, for each known language except English."""
    return tuple(filter(None, map(stop_words, LANGUAGE_MAPPING)))


def terms_of(language: str) -> Terms:
    """Return this thread's `Terms` of a language."""
    known: dict[str, Terms] = _LOCAL.__dict__.setdefault("terms", {})
    if language not in known:
        known[language] = Terms(language)
    return known[language]


_LOCAL = threading.local()
_IDENTIFYING = threading.Lock()


@cache
def _identifier() -> LanguageIdentifier:
    return LanguageIdentifier.from_model_file(MODEL_FILE)


@cache
def _stemmers() -> dict[str, str]:
    """Return Snowball's names of the languages that it has stemmers for, by code."""
    codes = {
        "ar": "arabic", "hy": "armenian", "eu": "basque", "ca": "catalan", "cs": "czech", "da": "danish", "nl": "dutch",
        "en": "english", "et": "estonian", "fi": "finnish", "fr": "french", "de": "german", "el": "greek", "hi": "hindi",
        "hu": "hungarian", "id": "indonesian", "ga": "irish", "it": "italian", "lt": "lithuanian", "ne": "nepali",
        "no": "norwegian", "nb": "norwegian", "nn": "norwegian", "fa": "persian", "pl": "polish", "pt": "portuguese",
        "ro": "romanian", "ru": "russian", "sr": "serbian", "es": "spanish", "sv": "swedish", "ta": "tamil",
        "tr": "turkish",
    }  # fmt: skip
    known = set(Stemmer.algorithms())
    return {code: name for code, name in codes.items() if name in known}


def _with_parts(word: str) -> Sequence[str]:
    """Return the word; before it the parts of an identifier such as `userName2`."""
    is_plain = word.islower() or word.isdigit() or word.istitle() or word.isupper()
    parts: list[str] = [] if is_plain else _PART.findall(word)
    return [*parts, word] if len(parts) > 1 else [word]


def _sequences(run: str, size: int) -> list[str]:
    """Return all sequences of `size` characters in a run of characters, or the run itself if it is shorter; and single
    characters of a script whose characters have meanings."""
    found = [run[n : n + size] for n in range(len(run) - size + 1)] or [run]
    return found + list(run) if size == 2 and len(run) > 1 else found
