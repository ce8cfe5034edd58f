"""Book text as noise and for language modelling, split into books to learn from and books held out."""

from __future__ import annotations

import hashlib
import lzma
import tarfile
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np

from everlong_models.errors import DataError
from everlong_models.text.tokenizer import Tokenizer

_HELD_OUT = 10
"""One book in this many is held out."""


def find(data: Path, name: str) -> Path:
    """Return the folder of the data set `name` in `data`. An archive `name.tar.xz` is unpacked to the user's cache first.

    Raises `DataError` if there is no such data set, or the archive cannot be read.
    """
    folder = data / name
    if folder.is_dir():
        return folder
    archive = data / f"{name}.tar.xz"
    if not archive.is_file():
        raise DataError(
            f"no data set {name!r}: there is neither a folder {folder} nor a file {archive.name} next to it"
        )
    key = hashlib.sha256(f"{archive.resolve()}:{archive.stat().st_size}".encode()).hexdigest()[:12]
    target = Path.home() / ".cache" / "everlong" / "data" / f"{name}-{key}"
    if not target.is_dir():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            # Renamed once complete. Another process that unpacks the same archive has a scratch folder of its own.
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".unpacking-") as scratch:
                with tarfile.open(archive) as packed:
                    packed.extractall(f"{scratch}/data", filter="data")
                Path(scratch, "data").rename(target)
        except (tarfile.TarError, OSError, EOFError, lzma.LZMAError) as error:
            if not target.is_dir():  # otherwise another process was faster
                raise DataError(f"cannot unpack {archive} to {target.parent}: {error}") from error
    return target


def files(folder: Path) -> list[Path]:
    """Return the texts (`.md`, `.txt`) below `folder`, sorted."""
    return sorted(file for file in folder.rglob("*") if file.suffix in {".md", ".txt"})


def books(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the texts (`.md`, `.txt`) below `folder` to learn from and those held out, chosen by the hash of their names.

    Raises `DataError` if there are fewer than two.
    """
    every = files(folder)
    if len(every) < 2:
        raise DataError(f"{folder} has {len(every)} texts (.md, .txt); at least 2 are needed, one of them is held out")
    chosen = {file for file in every if is_held_out(file.name, _HELD_OUT)}
    if len(chosen) in (0, len(every)):
        chosen = {every[-1]}
    return [file for file in every if file not in chosen], sorted(chosen)


def read(file: Path) -> str:
    """Return the text of a file. Raises `DataError` if it is unreadable, not UTF-8, or empty."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {file}: {error}") from error
    if not text.strip():
        raise DataError(f"{file} is empty")
    return text


def is_held_out(name: str, one_in: int) -> bool:
    """Return whether a text is held out from training: one in so many is, chosen by the hash of its name."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % one_in == 0


def middles(files: Sequence[Path], characters: int) -> list[str]:
    """Return about `characters` characters in all, an equal share from the middle of each file."""
    share, parts = max(2000, characters // len(files)), []
    for file in files:
        whole = read(file)
        start = max(0, (len(whole) - share) // 2)
        parts.append(whole[start : start + share])
    return parts


def noise(data: Path, name: str, characters: int, tokenizer: Tokenizer, *, held_out: bool = False) -> Noise:
    """Return noise from the books of a data set, those to learn from or those held out. Raises `DataError`."""
    return Noise(middles(books(find(data, name))[held_out], characters), tokenizer)


def packaged() -> str:
    """Return a text of the package that is never trained on: the first half of Bram Stoker's "Dracula", 1897."""
    return lzma.decompress((resources.files("everlong_lab.corpora") / "dracula.txt.xz").read_bytes()).decode()


class Noise:
    """The tokens of `texts` as an endless stream, from which random runs can be taken that start with a sentence."""

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer) -> None:
        ids = [token for piece in texts for token in tokenizer.encode(" " + " ".join(piece.split()))]
        self._ids = np.array(ids, dtype=np.int32)
        self._ends = np.array(
            [tokenizer.token(token).endswith((".", "!", "?")) for token in range(tokenizer.vocab_size)]
        )
        self._starts = np.flatnonzero(self._ends[self._ids])[:-1] + 1
        self._places: dict[tuple[int, ...], np.ndarray] = {}
        if not len(self._starts):
            raise DataError("the text for noise has no end of a sentence")

    def run(self, random: np.random.Generator, length: int) -> np.ndarray:
        """Return `length` tokens that start with a random sentence."""
        start = self.start(random)
        return self.cut(start, start + length)

    def start(self, random: np.random.Generator) -> int:
        """Return the position of a random sentence's first token, for `cut`."""
        return int(random.choice(self._starts))

    def cut(self, start: int, end: int) -> np.ndarray:
        """Return the tokens from `start` to `end` - 1; the stream repeats after its last token."""
        return self._ids[np.arange(start, end) % len(self._ids)]

    def nearest(self, place: int) -> int:
        """Return the start of the sentence nearest to `place`."""
        turns, within = divmod(place, len(self._ids))
        at = int(np.searchsorted(self._starts, within))
        # The last sentence of one repetition and the first one of the next are neighbours, too.
        around = [
            int(self._starts[(at + step) % len(self._starts)]) + (at + step) // len(self._starts) * len(self._ids)
            for step in (-1, 0)
        ]
        return turns * len(self._ids) + min(around, key=lambda start: abs(start - within))

    def run_with(self, random: np.random.Generator, length: int, words: Sequence[int]) -> np.ndarray:
        """Return a run that contains one of the tokens `words`, or any run if the stream has none of them.

        It starts with a sentence, unless the sentence with the word started too early.
        """
        if (place := self.place(random, words)) is None:
            return self.run(random, length)
        first, last = np.searchsorted(self._starts, [place - length, place], side="right")
        start = (
            int(self._starts[random.integers(first, last)]) if first < last else place - int(random.integers(length))
        )
        return self.cut(start, start + length)

    def place(self, random: np.random.Generator, words: Sequence[int]) -> int | None:
        """Return a random position of one of the tokens `words`, or None."""
        if (places := self._places.get(tuple(words))) is None:
            places = self._places[tuple(words)] = np.flatnonzero(np.isin(self._ids, words))
        return int(random.choice(places)) if len(places) else None

    def borders(self, ids: np.ndarray) -> np.ndarray:
        """Return the positions in `ids` at which sentences start, including 0."""
        return np.concatenate([[0], np.flatnonzero(self._ends[ids[:-1]]) + 1])
