"""Reads PDF: the text of each page, and after it the values of its form fields and its comments."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pypdfium2
from pypdfium2 import raw

from everlong_server.engine.documents.formats.blocks import Block, Notes, Unreadable
from everlong_server.engine.documents.formats.hyphens import join_hyphens
from everlong_server.engine.documents.formats.readers.columns import column_text
from everlong_server.engine.documents.formats.recognition import MAX_SIDE

_FIELDS = {
    raw.FPDF_FORMFIELD_TEXTFIELD, raw.FPDF_FORMFIELD_COMBOBOX, raw.FPDF_FORMFIELD_LISTBOX,
}  # fmt: skip
_BUTTONS = {raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON}
_LABEL_HEIGHT = 18.0
"""Points above a form field in which its label is looked for."""
_STAMP = 200
"""Characters that scanners and fax machines may put on a page that is a picture otherwise."""
_COVERED = 0.5
"""Share of the page that pictures cover then."""
_DOTS = 200 / 72
"""Pixels per point, for text recognition."""


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the pages of the file."""
    try:
        document = pypdfium2.PdfDocument(file)
    except pypdfium2.PdfiumError as error:
        why = "it is encrypted: upload it without a password" if "password" in str(error).lower() else "it is damaged"
        raise Unreadable(f"the PDF cannot be read: {why}") from None
    if document.get_formtype() != raw.FORMTYPE_NONE:
        document.init_forms()
        if document.get_formtype() != raw.FORMTYPE_ACRO_FORM:
            notes.add("it has an XFA form, whose values may be missing")
    notes.left_out("attached files", document.count_attachments())
    for number in range(1, len(document) + 1):
        try:
            page = document[number - 1]
        except pypdfium2.PdfiumError:
            notes.add("the page is damaged and was left out", page=number)
            continue
        yield Block(_page(page, number, notes), page=number)
        page.close()


def _page(page: Any, number: int, notes: Notes) -> str:
    textpage = page.get_textpage()
    text = column_text(textpage)
    if text is None:
        text = textpage.get_text_range()
    else:
        notes.add("two columns that the file mixes line by line were put one after the other", page=number)
    text = join_hyphens(text.replace("\r\n", "\n")).replace("\ufffe", "-").strip()
    if unknown := text.count("\ufffd"):
        notes.add(f"{unknown} characters have no Unicode value in the file", page=number)
    fields = "\n".join(_annotations(page, textpage))
    pictures = list(page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE], max_depth=4))
    if pictures and (not text or (len(text) < _STAMP and _covered(page, pictures) >= _COVERED)):
        recognised = notes.recognised(lambda: _picture(page), page=number)
        # What was recognised includes the few words that the file has as text, perhaps with faults.
        text = recognised if len(recognised) > 2 * len(text) else text
    elif text:
        notes.left_out("pictures", len(pictures))
    elif not fields and any(True for _ in page.get_objects(max_depth=1)):
        notes.add("the page has drawings and no text", page=number)
    return f"{text}\n\n{fields}".strip()


def _covered(page: Any, pictures: Sequence[Any]) -> float:
    """Return the share of the page that the largest picture covers."""
    areas = [(right - left) * (top - bottom) for left, bottom, right, top in (each.get_bounds() for each in pictures)]
    return max(areas) / (page.get_width() * page.get_height())


def _picture(page: Any) -> Any:
    scale = min(_DOTS, MAX_SIDE / max(page.get_size()))
    return page.render(scale=scale).to_pil()


def _annotations(page: Any, textpage: Any) -> Iterator[str]:
    """Yield the values of the form fields and the comments of a page."""
    for index in range(raw.FPDFPage_GetAnnotCount(page)):
        annotation = raw.FPDFPage_GetAnnot(page, index)
        if not annotation:
            continue
        try:
            subtype = raw.FPDFAnnot_GetSubtype(annotation)
            if subtype == raw.FPDF_ANNOT_WIDGET:
                if page.formenv is not None and (value := _field_value(page.formenv, annotation)):
                    yield f"{_label(page.formenv, annotation, textpage)}: {value}"
            elif subtype not in (raw.FPDF_ANNOT_LINK, raw.FPDF_ANNOT_POPUP):
                author = _string(raw.FPDFAnnot_GetStringValue, annotation, b"T")
                if contents := _string(raw.FPDFAnnot_GetStringValue, annotation, b"Contents"):
                    yield f"[Comment{f' by {author}' if author else ''}] {contents}"
        finally:
            raw.FPDFPage_CloseAnnot(annotation)


def _field_value(forms: Any, annotation: Any) -> str:
    """Return the value of a form field, "[x]" for a box that is checked, "" for an empty field."""
    kind = raw.FPDFAnnot_GetFormFieldType(forms, annotation)
    if kind in _BUTTONS:
        return "[x]" if raw.FPDFAnnot_IsChecked(forms, annotation) else ""
    if kind in _FIELDS:
        return _string(raw.FPDFAnnot_GetFormFieldValue, forms, annotation)
    return ""


def _label(forms: Any, annotation: Any, textpage: Any) -> str:
    """Return the words before a form field or above it, else the field's own name."""
    rect = raw.FS_RECTF()
    if raw.FPDFAnnot_GetRect(annotation, rect):
        before = textpage.get_text_bounded(0, rect.bottom, rect.left, rect.top)
        above = textpage.get_text_bounded(rect.left, rect.top, rect.right, rect.top + _LABEL_HEIGHT)
        for words in (before, above):
            if found := " ".join(words.replace("\ufffe", "").split()).rstrip(": "):
                return found
    for name in (raw.FPDFAnnot_GetFormFieldAlternateName, raw.FPDFAnnot_GetFormFieldName):
        if found := _string(name, forms, annotation):
            return found
    return "Field"


def _string(get: Callable[..., int], *arguments: object) -> str:
    """Return a string of PDFium: `get(*arguments, buffer, size)` writes UTF-16 and returns its number of bytes."""
    size = get(*arguments, None, 0)
    buffer = ctypes.create_string_buffer(size)
    get(*arguments, ctypes.cast(buffer, ctypes.POINTER(raw.FPDF_WCHAR)), size)
    return buffer.raw.decode("utf-16-le", "replace").rstrip("\0").replace("\r\n", "\n").replace("\r", "\n").strip()
