"""`Recogniser`: recognises text in pictures (OCR), with the models that come in RapidOCR's wheel. Needs no network."""

from __future__ import annotations

import importlib.util
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

from everlong_server.engine.documents.formats.blocks import Notes
from everlong_server.engine.documents.formats.languages import ANY_LANGUAGE, Language
from everlong_server.engine.documents.formats.readers.portable.columns import Piece, ordered_text

MAX_SIDE = 2000
"""Pixels of the longer side of a picture from which on the models see it reduced."""
_PAGE_SECONDS = 60
"""CPU seconds that one page may take."""
_PAPER = 842.0
"""Points of the longer side of a page, to compare distances with those in a PDF."""
_SAMPLE = 9
"""Number of lines that show whether a page is upside down."""


def is_installed() -> bool:
    """Whether text can be recognised here; `everlong[ocr]` installs what it takes."""
    return all(importlib.util.find_spec(package) is not None for package in ("rapidocr", "onnxruntime"))


class Recogniser:
    """Recognises text in the pictures of one file, until it has used its time.

    Its CPU time does not count for the limit of the process (`RLIMIT_CPU`), which it moves.
    """

    def __init__(self, seconds: float, language: Language = ANY_LANGUAGE) -> None:
        """`seconds`: CPU time for all pictures. Eight times as much may pass on a clock before the last one begins."""
        self._language = language
        self._seconds = seconds
        self._used = 0.0
        self._deadline = time.monotonic() + 8 * seconds
        self._engine: Any = None

    def read(self, picture: Callable[[], Any], notes: Notes, *, page: int | None = None) -> str:
        """Return the text of a picture, in its reading order; "" if it has none or cannot be read, with a note.

        `picture`: returns a `PIL.Image`.
        """
        if self._used >= self._seconds or time.monotonic() > self._deadline:
            notes.add(
                "it is a picture, and no time was left to recognise its text; upload fewer pages at a time", page=page
            )
            return ""
        soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
        began = time.process_time()
        resource.setrlimit(resource.RLIMIT_CPU, (min(hard, soft + _PAGE_SECONDS), hard))
        try:
            text, confidence = self._recognise(picture())
        except Exception as error:  # the libraries raise many kinds; also memory that a large picture does not get
            notes.add(f"it is a picture whose text could not be recognised ({type(error).__name__})", page=page)
            return ""
        finally:
            used = time.process_time() - began
            self._used += used
            resource.setrlimit(resource.RLIMIT_CPU, (min(hard, soft + round(used)), hard))
        if text:
            notes.add(f"its text was recognised in a picture (OCR), with a confidence of {confidence:.2f}", page=page)
        else:
            notes.add("it is a picture in which no text was recognised", page=page)
        return text

    def _recognise(self, picture: Any) -> tuple[str, float]:
        """Return the text and the mean confidence of its characters, 0 to 1."""
        import numpy as np  # noqa: PLC0415 - only with everlong[ocr]

        picture = picture.convert("RGB")
        picture.thumbnail((MAX_SIDE, MAX_SIDE))
        pixels = np.asarray(picture)[:, :, ::-1]  # BGR, as OpenCV has it
        found = self._run(pixels)
        if sum(_height(box) > 1.5 * _width(box) for box in found.boxes) > len(found.boxes) / 2:
            pixels = np.rot90(pixels)
            found = self._run(pixels)
        if self._is_upside_down(pixels, found.boxes):
            found = self._run(np.rot90(pixels, 2))
        count = sum(map(len, found.txts))
        scores = zip(found.txts, found.scores, strict=True)
        confidence = sum(len(text) * score for text, score in scores) / max(1, count)
        pieces = _pieces(found.boxes, found.txts, _PAPER / max(pixels.shape[:2]))
        return ordered_text(pieces), confidence

    def _run(self, pixels: Any) -> _Found:
        """Find and recognise the lines of text."""
        import numpy as np  # noqa: PLC0415

        result = self._loaded()(np.ascontiguousarray(pixels))
        if result.boxes is None:
            return _Found((), (), ())
        return _Found(result.boxes, result.txts, result.scores)

    def _is_upside_down(self, pixels: Any, boxes: Sequence[Any]) -> bool:
        longest = sorted(boxes, key=_width, reverse=True)[:_SAMPLE]
        turned = 0
        for box in longest:
            (left, top), (right, bottom) = box.min(0).astype(int).clip(0), box.max(0).astype(int).clip(0)
            line = self._loaded()(pixels[top:bottom, left:right].copy(), use_det=False, use_cls=True, use_rec=False)
            turned += bool(line.cls_res) and line.cls_res[0][0] == "180"
        self._loaded().update_params(use_det=True, use_cls=True, use_rec=True)
        return 2 * turned > len(longest)

    def _loaded(self) -> Any:
        if self._engine is None:
            import cv2  # noqa: PLC0415
            from rapidocr import RapidOCR  # noqa: PLC0415

            cv2.setNumThreads(1)
            threads = {f"EngineConfig.onnxruntime.{kind}_op_num_threads": 1 for kind in ("intra", "inter")}
            model = {"Rec.model_path": str(path)} if (path := self._language.model) is not None else {}
            options = {"Global.log_level": "critical", "Global.max_side_len": MAX_SIDE}
            self._engine = RapidOCR(params={**options, **threads, **model})
            if self._language.has_script:
                self._restrict()
        return self._engine

    def _restrict(self) -> None:
        """Let the recognition find no letters of other scripts than the language's."""
        import numpy as np  # noqa: PLC0415

        blank = np.full((48, 48, 3), 255, np.uint8)
        self._engine(blank, use_det=False, use_cls=False, use_rec=True)  # loads the model, as its first use does
        self._engine.update_params(use_det=True, use_cls=True, use_rec=True)
        recogniser = self._engine.text_rec
        recogniser.postprocess_op = self._language.restrict(recogniser.postprocess_op)


class _Found:
    """Lines of text: their corners in pixels, (4, 2) each; their texts; the confidence in each, 0 to 1."""

    def __init__(self, boxes: Sequence[Any], txts: Sequence[str], scores: Sequence[float]) -> None:
        self.boxes, self.txts, self.scores = boxes, txts, scores


def _width(box: Any) -> float:
    return float(box[:, 0].max() - box[:, 0].min())


def _height(box: Any) -> float:
    return float(box[:, 1].max() - box[:, 1].min())


def _pieces(boxes: Sequence[Any], texts: Sequence[str], scale: float) -> list[Piece]:
    """Return the lines as pieces in points, row by row from the top, and from left to right."""
    pieces = []
    for box, text in zip(boxes, texts, strict=True):
        (left, top), (right, bottom) = box.min(0) * scale, box.max(0) * scale
        pieces.append(Piece(float(left), -float(bottom), float(right), -float(top), text))
    rows: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: -piece.bottom - piece.top):
        if rows and rows[-1][0].same_line(piece):
            rows[-1].append(piece)
        else:
            rows.append([piece])
    return [piece for row in rows for piece in sorted(row, key=lambda piece: piece.left)]
