"""Reads the annotations of a PDF's page: values of form fields, comments, text that is drawn on the page, attached files."""

from __future__ import annotations

import contextlib
import ctypes
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pypdfium2
from pypdfium2 import raw

from everlong_server.engine.documents.formats.blocks import Notes
from everlong_server.engine.documents.formats.readers.html import render
from everlong_server.engine.documents.formats.readers.portable.buttons import Box, button_label

_FIELDS = {
    raw.FPDF_FORMFIELD_TEXTFIELD, raw.FPDF_FORMFIELD_COMBOBOX, raw.FPDF_FORMFIELD_LISTBOX,
}  # fmt: skip
_BUTTONS = {raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON}
_PASSWORD = 1 << 13
_LABEL_HEIGHT = 18.0
"""Points above a form field in which its label is looked for."""
_DRAWN = {
    raw.FPDF_ANNOT_FREETEXT, raw.FPDF_ANNOT_STAMP, raw.FPDF_ANNOT_INK, raw.FPDF_ANNOT_LINE, raw.FPDF_ANNOT_SQUARE, raw.FPDF_ANNOT_CIRCLE,
    raw.FPDF_ANNOT_POLYGON, raw.FPDF_ANNOT_POLYLINE, raw.FPDF_ANNOT_WATERMARK, raw.FPDF_ANNOT_REDACT,
}  # fmt: skip
"""Kinds of annotations whose appearance may have text."""
_STAMPS = {
    "Approved", "Experimental", "NotApproved", "AsIs", "Expired", "NotForPublicRelease", "Confidential", "Final", "Sold", "Departmental",
    "ForComment", "TopSecret", "Draft", "ForPublicRelease",
}  # fmt: skip
"""Stamps that every program draws by their names."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """The text of an annotation. `label`: what precedes it. `is_drawn`: whether its words may be drawn on the page, too."""

    label: str
    text: str
    is_drawn: bool = False


def annotation_text(document: Any, index: int, page: Any, notes: Notes) -> str:
    """Return the text of a page's annotations: what they draw on the page, then the values of fields, and comments.

    Changes the page: close it afterwards. `index`: of the page, from 0.
    """
    found = list(_annotations(page, notes))
    drawn = _drawn_text(document, index, page)
    shown = " ".join(drawn.split())
    lines = [
        f"{each.label}{each.text}" for each in found if not each.is_drawn or " ".join(each.text.split()) not in shown
    ]
    return "\n".join(filter(None, [drawn, *lines]))


def attached_files(page: Any) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of the files that annotations of the page contain."""
    for annotation in _opened(page):
        if raw.FPDFAnnot_GetSubtype(annotation) != raw.FPDF_ANNOT_FILEATTACHMENT:
            continue
        attached = raw.FPDFAnnot_GetFileAttachment(annotation)
        if attached:
            file = pypdfium2.PdfAttachment(attached, page.pdf)
            with contextlib.suppress(pypdfium2.PdfiumError):
                yield file.get_name() or "attachment", bytes(file.get_data())


def _opened(page: Any) -> Iterator[Any]:
    """Yield the annotations of a page that are shown, and close each."""
    for index in range(raw.FPDFPage_GetAnnotCount(page)):
        annotation = raw.FPDFPage_GetAnnot(page, index)
        if annotation:
            try:
                if not raw.FPDFAnnot_GetFlags(annotation) & raw.FPDF_ANNOT_FLAG_HIDDEN:
                    yield annotation
            finally:
                raw.FPDFPage_CloseAnnot(annotation)


def _drawn_text(document: Any, index: int, page: Any) -> str:
    """Return the text that annotations draw on a page, such as typed text, stamps and signatures."""
    drawn = 0
    for number in reversed(range(raw.FPDFPage_GetAnnotCount(page))):
        annotation = raw.FPDFPage_GetAnnot(page, number)
        is_drawn = bool(annotation) and _is_drawn(page, annotation)
        raw.FPDFPage_CloseAnnot(annotation)
        drawn += is_drawn
        if not is_drawn:
            raw.FPDFPage_RemoveAnnot(page, number)
    if not drawn:
        return ""
    before = page.get_textpage().get_text_range()
    if raw.FPDFPage_Flatten(page, raw.FLAT_NORMALDISPLAY) != raw.FLATTEN_SUCCESS:
        return ""
    with contextlib.closing(document[index]) as flat:
        after = flat.get_textpage().get_text_range()
    if after.startswith(before):
        added = after[len(before) :]
    else:  # the text is in another order
        known = Counter(before.splitlines())
        added = "\n".join((Counter(after.splitlines()) - known).elements())
    return added.replace("\r\n", "\n").strip()


def _is_drawn(page: Any, annotation: Any) -> bool:
    if raw.FPDFAnnot_GetFlags(annotation) & raw.FPDF_ANNOT_FLAG_HIDDEN:
        return False
    kind = raw.FPDFAnnot_GetSubtype(annotation)
    if kind == raw.FPDF_ANNOT_WIDGET:
        is_form = page.formenv is not None
        return is_form and raw.FPDFAnnot_GetFormFieldType(page.formenv, annotation) == raw.FPDF_FORMFIELD_SIGNATURE
    return kind in _DRAWN


def _annotations(page: Any, notes: Notes) -> Iterator[Annotation]:
    textpage = page.get_textpage()
    for annotation in _opened(page):
        kind = raw.FPDFAnnot_GetSubtype(annotation)
        if kind == raw.FPDF_ANNOT_WIDGET:
            if page.formenv is not None and (value := _field_value(page.formenv, annotation, notes)):
                is_button = raw.FPDFAnnot_GetFormFieldType(page.formenv, annotation) in _BUTTONS
                words = button_label(_box(annotation), list(_widget_boxes(page)), textpage) if is_button else ""
                yield Annotation(f"{words or _label(page.formenv, annotation, textpage)}: ", value)
        elif kind not in (raw.FPDF_ANNOT_LINK, raw.FPDF_ANNOT_POPUP):
            yield from _comment(annotation, kind, notes)


def _comment(annotation: Any, kind: int, notes: Notes) -> Iterator[Annotation]:
    strings = {
        key: _string(raw.FPDFAnnot_GetStringValue, annotation, key) for key in (b"T", b"Contents", b"RC", b"Name")
    }
    contents = strings[b"Contents"]
    if not contents and strings[b"RC"]:
        contents = "\n".join(block.text for block in render(strings[b"RC"], notes) if block.text)
    if contents:
        author = strings[b"T"]
        yield Annotation(f"[Comment{f' by {author}' if author else ''}] ", contents, kind in _DRAWN)
    elif kind == raw.FPDF_ANNOT_STAMP and strings[b"Name"].removeprefix("SB") in _STAMPS:
        yield Annotation("[Stamp] ", strings[b"Name"].removeprefix("SB"), is_drawn=True)
    elif kind == raw.FPDF_ANNOT_INK:
        notes.left_out("handwriting that was drawn on pages")


def _field_value(forms: Any, annotation: Any, notes: Notes) -> str:
    """Return the value of a form field, "[x]" for a box that is checked, "" for an empty field."""
    kind = raw.FPDFAnnot_GetFormFieldType(forms, annotation)
    if kind in _BUTTONS:
        return "[x]" if raw.FPDFAnnot_IsChecked(forms, annotation) else ""
    if kind in _FIELDS and raw.FPDFAnnot_GetFormFieldFlags(forms, annotation) & _PASSWORD:
        notes.left_out("passwords in forms")
    elif kind == raw.FPDF_FORMFIELD_LISTBOX and (chosen := list(_chosen(forms, annotation))):
        return ", ".join(chosen)
    elif kind in _FIELDS:
        return _string(raw.FPDFAnnot_GetFormFieldValue, forms, annotation)
    return ""


def _chosen(forms: Any, annotation: Any) -> Iterator[str]:
    """Yield the labels of the options that are selected in a list."""
    for index in range(raw.FPDFAnnot_GetOptionCount(forms, annotation)):
        if raw.FPDFAnnot_IsOptionSelected(forms, annotation, index):
            yield _string(raw.FPDFAnnot_GetOptionLabel, forms, annotation, index)


def _box(annotation: Any) -> Box:
    rect = raw.FS_RECTF()
    raw.FPDFAnnot_GetRect(annotation, rect)
    return Box(rect.left, rect.bottom, rect.right, rect.top)


def _widget_boxes(page: Any) -> Iterator[Box]:
    for index in range(raw.FPDFPage_GetAnnotCount(page)):
        annotation = raw.FPDFPage_GetAnnot(page, index)
        if annotation and raw.FPDFAnnot_GetSubtype(annotation) == raw.FPDF_ANNOT_WIDGET:
            yield _box(annotation)
        raw.FPDFPage_CloseAnnot(annotation)


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
