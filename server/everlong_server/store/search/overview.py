"""`Overview`: the titles of documents and the names that they mention most often, for questions about whole texts.

A few passages cannot mention everybody in a book. Its most frequent names cost a line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePath
from typing import IO

# Words with a capital behind a small letter or a comma: not at the beginning of a sentence. With titles such as Mr., and with
# several words if a name has them.
_NAME = re.compile(
    r"(?<=[a-zà-ÿ,;] )((?:[A-Z][a-z]{0,3}\. ){0,3}[A-ZÀ-Þ]\w[\w’'-]{0,40}(?: [A-ZÀ-Þ][\w’'-]{1,40}){0,4})(?![\w’'-])"
)
_COUNT, _RARE, _MOST_COMMON = 8, 3, 40
"""Names of an overview; how often each must be mentioned; names among which those with the same words are looked for."""
_SHARE = 0.25
"""Mentions of a longer name, as a share of those of a part of it, from which on the longer one is taken."""
_BLOCKS, _BLOCK = 16, 1 << 16
"""At most this many blocks of this many bytes of a document are counted, at equal distances."""
_TITLES = 3


@dataclass(frozen=True, slots=True)
class Overview:
    """`titles`: of the documents, from their file names. `names`: most frequent first."""

    titles: tuple[str, ...]
    names: tuple[str, ...]


def overview(filenames: Iterable[str | None], texts: Iterable[str], part: str | None = None) -> Overview:
    """Return the overview of documents with these file names. `texts`: samples of their texts, or of the part of them named `part`."""
    stems = (PurePath(name).stem.strip() for name in filenames if name)
    titles = (stem for stem in stems if any(map(str.isalpha, stem)))
    if part is not None:
        titles = (f"{title}, {part}" for title in titles)
    counts = Counter(name for text in texts for name in _names(text))
    return Overview(tuple(islice(titles, _TITLES)), tuple(islice(_distinct(counts), _COUNT)))


def _distinct(counts: Counter[str]) -> Iterator[str]:
    """Yield the frequent names, most frequent first. Of a name and a longer one with its words, the longer one if it is not much rarer:
    "Red Queen" and "White Queen" instead of "Queen", but "Holmes" instead of "Sherlock Holmes"."""
    chosen: dict[str, int] = {}
    replaced: set[str] = set()
    for name, times in counts.most_common(_MOST_COMMON):
        words = set(name.split())
        parts = [other for other in chosen if words > set(other.split())]
        if times < _RARE or any(words <= set(other.split()) for other in chosen):
            continue
        if all(times >= _SHARE * counts[part] for part in parts):
            chosen[name] = max([times, *(chosen[part] for part in parts)])
            replaced.update(parts)
    yield from sorted(chosen.keys() - replaced, key=lambda name: (-chosen[name], name))


def samples(file: IO[bytes], start: int, size: int) -> Iterator[str]:
    """Yield blocks of a text of `size` bytes, which begins at byte `start` of `file`: the whole text if it is short."""
    if size <= _BLOCKS * _BLOCK:
        file.seek(start)
        yield file.read(size).decode(errors="ignore")
        return
    for number in range(_BLOCKS):
        file.seek(start + number * (size - _BLOCK) // (_BLOCKS - 1))
        yield file.read(_BLOCK).decode(errors="ignore")


def _names(text: str) -> Iterator[str]:
    for found in _NAME.finditer(text):
        name = found.group(1).removesuffix("’s").removesuffix("'s").rstrip("’'-")
        if len(name) > 1:
            yield name
