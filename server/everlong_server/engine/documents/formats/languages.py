"""`Language`: the language of the text in pictures, which restricts what the recognition may find."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SCRIPTS = {
    "latin": ("LATIN",),
    "greek": ("LATIN", "GREEK"),
    "chinese": ("LATIN", "CJK", "FULLWIDTH", "HALFWIDTH"),
    "japanese": ("LATIN", "CJK", "FULLWIDTH", "HALFWIDTH", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"),
}
"""The scripts of the languages that the wheel's model recognises, as the names of Unicode's characters begin."""
_MODELS = ("cyrillic", "devanagari", "eslav", "korean", "ta", "te", "th")
"""Languages that take a model of their own. Arabic is missing: RapidOCR returns its letters in the order on the page."""


@dataclass(frozen=True, slots=True)
class Language:
    """A language, and the folder with the models of those that the wheel's model does not recognise.

    `name`: "any" is all that the wheel's model recognises. Raises `ValueError` for an unknown language, or one whose model is
    missing.
    """

    name: str = "any"
    models: Path | None = None

    def __post_init__(self) -> None:
        known = f"any, {', '.join(_SCRIPTS)}, or one that takes a model in EVERLONG_OCR_MODELS: {', '.join(_MODELS)}"
        if self.name not in ("any", *_SCRIPTS, *_MODELS):
            raise ValueError(f"the language must be {known}; got {self.name!r}")
        if (model := self.model) is not None and not model.is_file():
            raise ValueError(
                f"the model of {self.name!r} is missing: put {model.name} of RapidOCR into the folder EVERLONG_OCR_MODELS"
            )

    @property
    def model(self) -> Path | None:
        """The file of the model; None for that in the wheel."""
        if self.name not in _MODELS:
            return None
        return (self.models or Path()) / f"{self.name}_PP-OCRv5_rec_mobile.onnx"

    @property
    def arguments(self) -> tuple[str, str]:
        """The arguments for the conversion process."""
        return self.name, str(self.models or "")

    @property
    def has_script(self) -> bool:
        """Whether only letters of certain scripts are to be found."""
        return self.name in _SCRIPTS

    def restrict(self, decoder: Any) -> Any:
        """Return a decoder that finds no letters of other scripts, for a language that has some.

        `decoder`: RapidOCR's, which has its characters.
        """
        return _RestrictedDecoder(decoder, _SCRIPTS[self.name])


ANY_LANGUAGE = Language()


class _RestrictedDecoder:
    """Decodes a line of text without the letters of other scripts: the likeliest of the rest takes their place."""

    def __init__(self, decoder: Any, scripts: Sequence[str]) -> None:
        self._decoder = decoder
        self._excluded = [
            number
            for number, character in enumerate(decoder.character)
            if number > 0  # the first stands for no character
            and any(map(str.isalpha, character))
            and unicodedata.name(character[0], "").split(" ")[0] not in scripts
        ]

    def __call__(self, scores: Any, *args: Any, **options: Any) -> Any:
        """`scores`: of each character at each place of each line, (lines, places, characters)."""
        scores = scores.copy()
        scores[:, :, self._excluded] = 0
        return self._decoder(scores, *args, **options)
