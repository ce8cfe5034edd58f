"""Reads PDF: the text of each page, and after it the values of its form fields and its comments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pypdfium2
from pypdfium2 import raw

from everlong_server.engine.documents.formats.blocks import Block, Notes, Unreadable
from everlong_server.engine.documents.formats.hyphens import Vocabulary
from everlong_server.engine.documents.formats.readers.portable.annotations import annotation_text, attached_files
from everlong_server.engine.documents.formats.readers.portable.breaks import corrected_breaks
from everlong_server.engine.documents.formats.readers.portable.changes import with_changes
from everlong_server.engine.documents.formats.readers.portable.columns import column_text
from everlong_server.engine.documents.formats.readers.portable.letters import Letters
from everlong_server.engine.documents.formats.readers.portable.ligatures import with_ligatures
from everlong_server.engine.documents.formats.readers.portable.raised import superscripts
from everlong_server.engine.documents.formats.readers.portable.struck import strikes
from everlong_server.engine.documents.formats.readers.portable.structure import descriptions
from everlong_server.engine.documents.formats.readers.portable.turned import text_page
from everlong_server.engine.documents.formats.readers.portable.upward import is_upward, reversed_lines
from everlong_server.engine.documents.formats.recognition import MAX_SIDE

_CATALOG = re.compile(rb"(\d+ \d+) obj\b[^>]{0,200}?/Type\s*/Catalog\b")
_STAMP = 200
"""A page with fewer characters counts as scanned if a picture covers it: scanners and fax machines may add a line of text."""
_COVERED = 0.5
"""Share of such a page that pictures must cover."""
_SAMPLE = 500
"""Number of letters that show whether a page has a text."""
_REPLACED = 0xFFFD
_OUTLINES = 100
"""Lines and curves from which on drawings may be letters. A letter has about 10 to 40, a frame or a rule 1 to 5."""
_MAX_WAITING = 8_000_000
"""Characters of pages that wait for the words of later ones. Books have 0.2 to 3 million."""
_DOTS = 200 / 72
"""Pixels per point, for text recognition."""


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the pages of the file. Words that are divided at line ends are joined as the words of all pages show."""
    words = Vocabulary()
    waiting: list[tuple[Block, bool]] = []
    size = 0
    for block, is_page in _blocks(file, notes):
        waiting.append((block, is_page))
        size += len(block.text)
        if is_page:
            words.add(block.text)
        if size > _MAX_WAITING:
            yield from _joined(waiting, words)
            waiting, size = [], 0
    yield from _joined(waiting, words)


def _joined(blocks: Iterable[tuple[Block, bool]], words: Vocabulary) -> Iterator[Block]:
    """Yield blocks with the divided words of pages joined."""
    for block, is_page in blocks:
        yield replace(block, text=words.joined(block.text)) if is_page else block


def _blocks(file: Path, notes: Notes) -> Iterator[tuple[Block, bool]]:
    """Yield the pages and the attached files, and whether each block is a page. Pages have U+FFFE for hyphens at line ends."""
    document = _opened(file, notes)
    if document.get_formtype() != raw.FORMTYPE_NONE:
        document.init_forms()
        if document.get_formtype() != raw.FORMTYPE_ACRO_FORM:
            notes.add("it has an XFA form, whose values may be missing")
    for number in range(1, len(document) + 1):
        notes.on_page(number, len(document))
        try:
            page = document[number - 1]
        except pypdfium2.PdfiumError:
            notes.add("the page is damaged and was left out", page=number)
            continue
        label = document.get_page_label(number - 1)
        files = list(attached_files(page))
        with notes.at(page=number):
            text = _page(page, number, notes)
            extra = annotation_text(document, number - 1, page, notes)
        printed = f"page {label}" if label and label != str(number) else None
        alternatives = "\n".join(descriptions(page))
        yield Block("\n\n".join(filter(None, (text, alternatives, extra))), page=number, section=printed), True
        page.close()
        for name, data in files:
            yield from ((block, False) for block in notes.nested(data, name, "Attached file"))
    for index in range(document.count_attachments()):
        attached = document.get_attachment(index)
        try:
            data = bytes(attached.get_data())
        except pypdfium2.PdfiumError:
            notes.add("it is damaged and was left out", part=attached.get_name())
            continue
        name = attached.get_name() or "attachment"
        yield from ((block, False) for block in notes.nested(data, name, "Attached file"))


def _opened(file: Path, notes: Notes) -> Any:
    """Open the file, and search for its catalog if its end, which names it, is missing."""
    try:
        return pypdfium2.PdfDocument(file)
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower():
            raise Unreadable("the PDF is encrypted: upload it without a password") from None
    data = file.read_bytes()
    catalog = _CATALOG.search(data)
    try:
        if catalog is None:
            raise pypdfium2.PdfiumError("it has no catalog")
        document = pypdfium2.PdfDocument(data + b"\nendobj\ntrailer << /Root " + catalog[1] + b" R >>\n%%EOF\n")
    except pypdfium2.PdfiumError:
        raise Unreadable("the PDF is damaged") from None
    notes.add("the end of the file is missing; what was found before it was read")
    return document


def _page(page: Any, number: int, notes: Notes) -> str:
    textpage = text_page(page)
    drawn = textpage.get_text_range()
    letters = Letters(drawn, textpage)
    raised = list(superscripts(drawn, letters))
    text = column_text(textpage, raised)
    if text is None:
        drawn = with_ligatures(drawn, textpage)  # as long as before
        text = with_changes(drawn, raised, corrected_breaks(drawn, letters), strikes(drawn, page, textpage, letters))
        text = reversed_lines(text) if is_upward(drawn, textpage) else text
    else:
        notes.add("two columns that the file mixes line by line were put one after the other", page=number)
    text = text.replace("\r\n", "\n").strip()
    if unknown := text.count("\ufffd"):
        notes.add(f"{unknown} characters have no Unicode value in the file", page=number)
    pictures = list(page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE], max_depth=4))
    is_unknown = bool(text) and _is_unknown(textpage)
    if pictures and (not text or (len(text) < _STAMP and _covered(page, pictures) >= _COVERED)):
        recognised = notes.recognised(lambda: _picture(page), page=number)
        # What was recognised includes the few words that the file has as text, perhaps with faults.
        return recognised if is_unknown or len(recognised) > 2 * len(text) else text
    if is_unknown or (not text and _has_letters(page)):
        what = (
            "the file does not say what the letters of the page mean"
            if text
            else "the letters of the page are drawings"
        )
        return notes.recognised(lambda: _picture(page), page=number, what=what) or text
    if text:
        notes.left_out("pictures", len(pictures))
    elif any(True for _ in page.get_objects(max_depth=1)) and not raw.FPDFPage_GetAnnotCount(page):
        notes.add("the page has drawings and no text", page=number)
    return text


def _is_unknown(textpage: Any) -> bool:
    """Whether most letters of a page have no meaning outside the file: their font says only how they are drawn."""
    count = textpage.count_chars()
    letters = [
        index for index in range(0, count, 1 + count // _SAMPLE) if not raw.FPDFText_IsGenerated(textpage, index)
    ]
    unknown = sum(
        raw.FPDFText_HasUnicodeMapError(textpage, index) == 1 or raw.FPDFText_GetUnicode(textpage, index) == _REPLACED
        for index in letters
    )
    return 2 * unknown > len(letters)


def _has_letters(page: Any) -> bool:
    """Whether a page without text may show letters: as outlines, or in a font that does not say what its characters mean."""
    segments = 0
    for drawn in page.get_objects(filter=[raw.FPDF_PAGEOBJ_PATH, raw.FPDF_PAGEOBJ_TEXT], max_depth=4):
        if drawn.type == raw.FPDF_PAGEOBJ_TEXT:
            return True
        segments += raw.FPDFPath_CountSegments(drawn)
        if segments >= _OUTLINES:
            return True
    return False


def _covered(page: Any, pictures: Sequence[Any]) -> float:
    """Return the share of the page that the pictures cover. Some scanners write a page as many strips."""
    areas = [(right - left) * (top - bottom) for left, bottom, right, top in (each.get_bounds() for each in pictures)]
    return sum(areas) / (page.get_width() * page.get_height())


def _picture(page: Any) -> Any:
    scale = min(_DOTS, MAX_SIDE / max(page.get_size()))
    return page.render(scale=scale).to_pil()
