"""Text in pictures and scanned pages is recognised, with a confidence; without the models, the notes say what is missing."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import rapidocr
from PIL import Image, ImageDraw, ImageFont
from rapidocr.ch_ppocr_rec.utils import CTCLabelDecode

from everlong_server.engine.documents.formats import conversion
from everlong_server.engine.documents.formats.blocks import Notes, Unreadable
from everlong_server.engine.documents.formats.languages import Language
from everlong_server.engine.documents.formats.recognition import Recogniser
from everlong_server.errors import InvalidRequest
from tests import files
from tests.server.engine.documents.formats.reading import read

pytestmark = pytest.mark.long

LINES = (
    "The harbour of Lindenau was closed",
    "for the winter of 1843. Only the old",
    "lighthouse keeper stayed behind.",
)
LEFT = ("The tide rose quickly and the", "boats near the quay were lifted", "until their ropes were tight and")
RIGHT = ("nobody had seen the small girl", "who was waiting at the end of", "the pier with a yellow lantern")


@pytest.fixture(scope="module")
def recogniser() -> Recogniser:
    return Recogniser(10_000)


def scan(*lines: tuple[float, float, str], size: tuple[int, int] = (900, 700)) -> Image.Image:
    """Return a page with these lines. `lines`: x, y and text."""
    page = Image.new("L", size, 255)
    for x, y, text in lines:
        ImageDraw.Draw(page).text((x, y), text, font=ImageFont.load_default(28), fill=0)
    return page


def below(texts: Sequence[str], x: float = 60, y: float = 60) -> list[tuple[float, float, str]]:
    return [(x, y + 50 * number, text) for number, text in enumerate(texts)]


def saved(*pages: Image.Image, format: str = "PNG", **options: object) -> bytes:
    out, more = io.BytesIO(), {"save_all": True, "append_images": pages[1:]} if len(pages) > 1 else {}
    pages[0].save(out, format, **more, **options)
    return out.getvalue()


def confidences(notes: Sequence[object]) -> list[tuple[int | None, float]]:
    """Return the page and the confidence of each note on a recognised page."""
    return [
        (note.page, float(note.text.rpartition(" ")[2]))  # type: ignore[attr-defined]
        for note in notes
        if "was recognised in a picture (OCR), with a confidence of" in note.text  # type: ignore[attr-defined]
    ]


@pytest.mark.parametrize("format", ["PNG", "JPEG", "TIFF"])
def test_a_picture(recogniser: Recogniser, format: str) -> None:
    text, notes = read(saved(scan(*below(LINES)), format=format), recogniser=recogniser)
    assert text == "\n".join(LINES)
    ((page, confidence),) = confidences(notes)
    assert page == 1
    assert 0.8 < confidence <= 1


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_a_page_that_is_turned(recogniser: Recogniser, degrees: int) -> None:
    turned = scan(*below(LINES)).rotate(degrees, expand=True)
    assert read(saved(turned), recogniser=recogniser)[0] == "\n".join(LINES)


def test_a_camera_s_rotation_is_undone(recogniser: Recogniser) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    data = saved(scan(*below(LINES)).rotate(90, expand=True), format="JPEG", exif=exif)
    assert read(data, recogniser=recogniser)[0] == "\n".join(LINES)


def test_columns_are_read_one_after_the_other(recogniser: Recogniser) -> None:
    page = scan(*below(LEFT), *below(RIGHT, x=640), size=(1240, 500))
    assert read(saved(page), recogniser=recogniser)[0].split("\n") == [*LEFT, *RIGHT]


def test_a_word_that_is_divided_at_the_end_of_a_line_is_joined(recogniser: Recogniser) -> None:
    page = scan(*below(["Nobody saw the light-", "house in the fog of 1843."]))
    assert read(saved(page), recogniser=recogniser)[0] == "Nobody saw the lighthouse in the fog of 1843."


def test_a_table_keeps_its_rows(recogniser: Recogniser) -> None:
    rows = [("Name", "Age"), ("Oduya", "41"), ("Lindqvist", "37"), ("Marchetti", "58")]
    cells = [(x, 60 + 50 * n, text) for n, row in enumerate(rows) for x, text in zip((60, 500), row, strict=True)]
    assert read(saved(scan(*cells)), recogniser=recogniser)[0].split("\n") == ["\t".join(row) for row in rows]


def test_pages_of_a_tiff(recogniser: Recogniser) -> None:
    data = saved(scan(*below(LINES[:1])), scan(*below(LINES[2:])), format="TIFF")
    text, notes = read(data, recogniser=recogniser)
    assert text == f"{LINES[0]}\n\n{LINES[2]}"
    assert [page for page, _ in confidences(notes)] == [1, 2]


def test_a_scan_with_a_page_of_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the process that has limits."""
    monkeypatch.setattr(conversion, "_BASE_RECOGNITION", 240)  # on a busy machine, little of the time is its own
    scanned = saved(scan(*below(LINES)), scan(*below(["The second page ends here."])), format="PDF")
    (tmp_path / "in").write_bytes(with_page(scanned, files.pdf(["A page of text."])))
    seen: list[tuple[int, int]] = []
    made = conversion.convert(
        tmp_path / "in", "pdf", tmp_path / "out", 1 << 20, on_page=lambda page, pages: seen.append((page, pages))
    )
    assert (1, 3) in seen, "recognising the first page takes longer than half a second"
    assert seen == sorted(set(seen))
    text = (tmp_path / "out").read_text()
    assert text == "\n".join(LINES) + "\n\nThe second page ends here.\n\nA page of text."
    assert [(entry.page, text[entry.start :][:10]) for entry in made.outline] == [
        (1, LINES[0][:10]), (2, "The second"), (3, "A page of "),
    ]  # fmt: skip
    assert [page for page, _ in confidences(made.notes)] == [1, 2]


def with_page(one: bytes, other: bytes) -> bytes:
    """Return the first PDF with the pages of the second."""
    import pypdfium2

    document, out = pypdfium2.PdfDocument(one), io.BytesIO()
    document.import_pages(pypdfium2.PdfDocument(other))
    document.save(out)
    return out.getvalue()


def test_a_stamp_on_a_scanned_page_does_not_hide_the_scan(recogniser: Recogniser) -> None:
    text, _ = read(stamped(saved(scan(*below(LINES)), format="PDF"), "Received"), recogniser=recogniser)
    assert "\n".join(LINES) in text


def stamped(data: bytes, words: str) -> bytes:
    """Return a PDF with words on its first page."""
    import ctypes

    import pypdfium2
    from pypdfium2 import raw

    document, out = pypdfium2.PdfDocument(data), io.BytesIO()
    text = raw.FPDFPageObj_NewTextObj(document, b"Helvetica", 12)
    encoded = ctypes.create_string_buffer((words + "\0").encode("utf-16-le"))
    raw.FPDFText_SetText(text, ctypes.cast(encoded, ctypes.POINTER(raw.FPDF_WCHAR)))
    raw.FPDFPageObj_Transform(text, 1, 0, 0, 1, 400, 30)
    page = document[0]
    raw.FPDFPage_InsertObject(page, text)
    raw.FPDFPage_GenerateContent(page)
    document.save(out)
    return out.getvalue()


def test_a_page_whose_letters_are_outlines(recogniser: Recogniser) -> None:
    file = Path(__file__).parents[4] / "data" / "formats" / "ghostscript-outlines.pdf"
    text, notes = read(file.read_bytes(), recogniser=recogniser)
    assert "Die Miete beträgt 300 Kronen, außer im August." in text
    assert [page for page, _ in confidences(notes)] == [1]


def test_a_picture_without_text(recogniser: Recogniser) -> None:
    text, notes = read(saved(scan()), recogniser=recogniser)
    assert text == ""
    assert [note.text for note in notes] == ["it is a picture in which no text was recognised"]


def test_a_picture_in_an_archive(recogniser: Recogniser) -> None:
    data = files.zipped({"a.png": saved(scan(*below(LINES))), "b.txt": "Words."})
    assert read(data, recogniser=recogniser)[0] == "[File] a.png\n\n" + "\n".join(LINES) + "\n\n[File] b.txt\n\nWords."


def test_when_the_time_is_used_up_the_pages_are_noted() -> None:
    data = files.pdf([files.PICTURE, "Two.", files.PICTURE])
    text, notes = read(data, recogniser=Recogniser(0))
    assert text == "Two."
    why = "it is a picture, and no time was left to recognise its text; upload fewer pages at a time"
    assert [(note.page, note.text) for note in notes] == [(1, why), (3, why)]


def test_a_language_excludes_the_letters_of_others() -> None:
    decoder = CTCLabelDecode(character=["a", "\u03a9", "\u65e5", "1"])  # and "blank" before them, a space after them
    scores = np.array([[[0, 0.3, 0.6, 0.1, 0, 0], [0, 0.1, 0, 0.6, 0.3, 0], [0, 0.2, 0, 0, 0.8, 0]]])

    def found(language: str) -> str:
        return Language(language).restrict(decoder)(scores)[0][0][0]

    assert decoder(scores)[0][0][0] == "\u03a9\u65e51"
    assert found("latin") == "a1"
    assert found("greek") == "\u03a91"
    assert found("japanese") == "a\u65e51"


def test_a_language_leaves_its_own_letters() -> None:
    assert read(saved(scan(*below(LINES))), recogniser=Recogniser(10_000, Language("latin")))[0] == "\n".join(LINES)


def test_a_language_with_a_model_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the model of 'korean' is missing: put korean_PP-OCRv5_rec_mobile\.onnx"):
        Language("korean", tmp_path)
    (tmp_path / "korean_PP-OCRv5_rec_mobile.onnx").symlink_to(
        Path(rapidocr.__file__).parent / "models" / "PP-OCRv6_rec_small.onnx"
    )
    text, _ = read(saved(scan(*below(LINES))), recogniser=Recogniser(10_000, Language("korean", tmp_path)))
    assert text == "\n".join(LINES)


def test_the_time_grows_with_the_file() -> None:
    small, large, huge = (conversion.Limits.of(size, 1 << 30).recognition for size in (1000, 1_000_000, 1 << 30))
    assert small < large < huge < conversion.SECONDS


def test_a_picture_of_too_many_pixels_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(saved(Image.new("1", (30_000, 30_000))))
    with pytest.raises(InvalidRequest, match="the picture cannot be read"):
        conversion.convert(tmp_path / "in", "image", tmp_path / "out", 1 << 20)


def test_without_the_models_the_reason_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "is_installed", lambda: False)
    (tmp_path / "in").write_bytes(saved(scan(*below(LINES)), format="PDF"))
    with pytest.raises(InvalidRequest, match=r"no text in it .*pip install 'everlong\[ocr\]'"):
        conversion.convert(tmp_path / "in", "pdf", tmp_path / "out", 1 << 20)


def test_a_damaged_picture_is_refused(recogniser: Recogniser) -> None:
    whole = saved(scan(*below(LINES)))
    with pytest.raises(Unreadable, match=r"^the picture is damaged$"):
        read(whole[:20], recogniser=recogniser)
    _, (note,) = read(whole[:60], recogniser=recogniser)
    assert note.text == "it is a picture whose text could not be recognised (OSError)"
    assert Notes(lambda *_: None).recognised(scan, page=1) == ""
