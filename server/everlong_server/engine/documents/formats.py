"""Documents that people have, as text: PDF, Word, EPUB, HTML. Pages and sections are kept as marks.

What comes from outside may be made to harm: it is converted in a process of its own, with limits on its time and memory
and on the text that comes out, and nothing that it refers to is fetched.
"""

from __future__ import annotations

import codecs
import contextlib
import importlib.util
import json
import posixpath
import re
import resource
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

from everlong_server.errors import InvalidRequest, TooLarge, UnsupportedMedia
from everlong_server.store.texts.outline import OutlineEntry

SECONDS = 120
MEMORY = 2 << 30
"""What a conversion may take: processor seconds, and bytes of address space."""
_ZIP = b"PK\x03\x04"


TextBlock = tuple[str, int | None, str | None]
"""Text, and its page or section; neither: what follows belongs to the piece before."""


@dataclass(frozen=True, slots=True)
class Format:
    """`name`: for people. `needs`: the package that reads it. `pieces`: raises `_UnreadableFile` for what cannot be read.
    `extensions`, `media_types`: what such files usually have; what one is, its first bytes tell."""

    name: str
    needs: str
    pieces: Callable[[Path], Iterator[TextBlock]]
    extensions: tuple[str, ...]
    media_types: tuple[str, ...]

    @property
    def readable(self) -> bool:
        """Whether the package that reads it is here: `everlong[formats]` brings it."""
        return importlib.util.find_spec(self.needs) is not None


class _UnreadableFile(Exception):
    """Why a file has no text that could be read."""


def detect_kind(head: bytes) -> str | None:
    """The kind of file that begins so, if it is one that could be converted: "pdf", "zip" (Word, EPUB) or "html"."""
    if head.startswith(b"%PDF-"):
        return "pdf"
    if head.startswith(_ZIP):
        return "zip"
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:14].lower()
    return "html" if start.startswith((b"<!doctype html", b"<html", b"<?xml")) and b"<html" in head.lower() else None


def convert(file: Path, kind: str, text: Path, limit: int) -> tuple[str, list[OutlineEntry]]:
    """Writes the text of `file`, of a `kind` that was `recognised`, to `text` as UTF-8; at most `limit` bytes. Its format
    (of `FORMATS`) and its marks. Blocks.

    Raises `UnsupportedMedia` for a format that is not read here, `InvalidRequest` for a file without text, damaged or
    encrypted, `TooLarge`.
    """
    command = [sys.executable, "-m", "everlong_server.engine.documents.formats", kind, str(file), str(text), str(limit)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=2 * SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise _unreadable(f"reading {_name(kind)} takes too long") from None
    made_of, _, said = done.stdout.decode(errors="replace").partition("\n")
    kind = made_of or kind
    if kind in FORMATS and not FORMATS[kind].readable:
        raise UnsupportedMedia(
            f"the document is {_name(kind)}, which this server cannot read without pip install 'everlong[formats]'",
            param="file",
        )
    match done.returncode:
        case 0:
            return kind, [OutlineEntry(*mark) for mark in json.loads(said)]
        case _ExitCode.TOO_LARGE:
            raise TooLarge(
                f"the document's text has more than {limit} bytes, the limit (EVERLONG_MAX_DOCUMENT_BYTES)",
                param="file",
            )
        case _ExitCode.UNKNOWN_ZIP:
            raise UnsupportedMedia("the document is a ZIP file, and neither Word's nor an EPUB", param="file")
        case _ExitCode.UNREADABLE:
            raise _unreadable(said)
    raise _unreadable(f"{_name(kind)} that cannot be read: it is damaged, or takes too much time or memory")


def _name(kind: str) -> str:
    return FORMATS[kind].name if kind in FORMATS else "a ZIP file"


def _unreadable(why: str) -> InvalidRequest:
    return InvalidRequest(f"the document: {why}", param="file", code="unreadable_document")


# What runs in the process of its own


class _ExitCode(IntEnum):
    """What it exits with, if it does not break down. It writes a line with the format as soon as that is known, behind it the
    marks, or why there is no text."""

    TOO_LARGE = 3
    UNREADABLE = 4
    UNKNOWN_ZIP = 5


def _in_zip(file: Path) -> str | None:
    """The format of a ZIP file, if it is one that is known."""
    try:
        with zipfile.ZipFile(file) as packed:
            names = set(packed.namelist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise _UnreadableFile(f"a damaged ZIP file ({error})") from None
    if "word/document.xml" in names:
        return "docx"
    return "epub" if "META-INF/container.xml" in names else None


def _pdf(file: Path) -> Iterator[TextBlock]:
    import pypdfium2  # noqa: PLC0415 - an extra; and only this process needs it

    try:
        document = pypdfium2.PdfDocument(file)
    except pypdfium2.PdfiumError as error:
        why = "it is encrypted: upload it without a password" if "password" in str(error).lower() else "it is damaged"
        raise _UnreadableFile(f"a PDF that cannot be read: {why}") from None
    for number, page in enumerate(document, 1):
        yield page.get_textpage().get_text_range().replace("\r\n", "\n").replace("\x02", "-").strip(), number, None
        page.close()


def _html(file: Path) -> Iterator[TextBlock]:
    from lxml import html  # noqa: PLC0415

    # Without `huge_tree` what is nested deeper than 256 elements, or behind 10 MB of one text, would be left out silently.
    parser = html.HTMLParser(encoding="utf-8", no_network=True, huge_tree=True)
    yield from _laid_out(html.document_fromstring(_utf8(file.read_bytes()), parser))


_BEGINNINGS = {
    codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
    b"<\0": "utf-16-le", b"\0<": "utf-16-be",
}  # fmt: skip
_DECLARED = re.compile(
    rb"""<\?xml\s[^>]*?encoding\s*=\s*["']([\w.:-]+)|<meta\s[^>]*?charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE
)


def _utf8(data: bytes) -> bytes:
    """A page as UTF-8: of what its first bytes tell; else it is UTF-8 if it can be, whatever it says; else of what it declares.
    What says nothing is UTF-8 with characters that are damaged."""
    for beginning, encoding in _BEGINNINGS.items():
        if data.startswith(beginning):
            return data.decode(encoding, "replace").encode("utf-8", "replace")
    # Only ISO-2022 writes other characters with the bytes of ASCII, behind an escape.
    if b"\x1b" not in data:
        with contextlib.suppress(UnicodeDecodeError):
            data.decode()
            return data
    if declared := _DECLARED.search(data[:4096]):
        encoding = (declared[1] or declared[2]).decode("ascii", "replace")
        with contextlib.suppress(LookupError, UnicodeError):  # that it does not exist
            # As browsers do: who says Latin-1 means Windows'.
            western = codecs.lookup(encoding).name in ("iso8859-1", "ascii")
            return data.decode("cp1252" if western else encoding, "replace").encode("utf-8", "replace")
    return data


def _laid_out(tree: Any) -> Iterator[TextBlock]:
    """A page as a browser lays it out, in sections."""
    from inscriptis.html_engine import Inscriptis  # noqa: PLC0415
    from inscriptis.model.config import ParserConfig  # noqa: PLC0415

    for gone in tree.xpath("//script | //style | //template | //noscript"):
        gone.drop_tree()
    rules = {f"h{level}": ["heading"] for level in range(1, 7)}
    page = Inscriptis(tree, ParserConfig(annotation_rules=rules))
    text = page.get_text()
    starts = [(mark.start, text[mark.start : mark.end]) for mark in page.get_annotations()]
    cuts = [start for start, _ in starts] + [len(text)]
    yield text[: cuts[0]].strip(), None, None
    for (start, heading), end in zip(starts, cuts[1:], strict=True):
        yield text[start:end].strip(), None, " ".join(heading.split())


def _epub(file: Path) -> Iterator[TextBlock]:
    from lxml import etree, html  # noqa: PLC0415

    xml = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
    with zipfile.ZipFile(file) as packed:
        container = etree.fromstring(packed.read("META-INF/container.xml"), xml)
        (root, *_) = container.xpath("//*[local-name()='rootfile']/@full-path")
        package = etree.fromstring(packed.read(root), xml)
        items = {
            item.get("id"): unquote(item.get("href")) for item in package.xpath("//*[local-name()='manifest']/*[@href]")
        }
        sealed = set()
        if "META-INF/encryption.xml" in packed.namelist():  # of fonts alone, too: hidden, so that nobody takes them out
            encryption = etree.fromstring(packed.read("META-INF/encryption.xml"), xml)
            uris = encryption.xpath("//*[local-name()='CipherReference']/@URI")
            sealed = {posixpath.normpath(unquote(uri)) for uri in uris}
        for reference in package.xpath("//*[local-name()='spine']/*/@idref"):
            name = posixpath.normpath(posixpath.join(posixpath.dirname(root), items[reference]))
            if name in sealed:
                raise _UnreadableFile("an EPUB that cannot be read: it is encrypted")
            content = packed.read(name)
            if content.strip():
                parser = html.HTMLParser(encoding="utf-8", no_network=True, huge_tree=True)
                yield from _laid_out(html.document_fromstring(_utf8(content), parser))


def _docx(file: Path) -> Iterator[TextBlock]:
    import docx  # noqa: PLC0415
    from docx.text.paragraph import Paragraph  # noqa: PLC0415

    document = docx.Document(str(file))
    for block in _nearest(document.element.body, _PARAGRAPH, _TABLE):
        text, heading = _said(block).strip(), False
        if block.tag == _PARAGRAPH:
            style = Paragraph(block, document).style
            heading = style is not None and str(style.name).startswith(("Heading", "Title"))
        yield text, None, " ".join(text.split()) if heading else None


_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_PARAGRAPH, _TABLE, _ROW, _CELL, _TEXT = (_W + name for name in ("p", "tbl", "tr", "tc", "t"))
_SIGNS = {_W + "tab": "\t", _W + "ptab": "\t", _W + "br": "\n", _W + "cr": "\n", _W + "noBreakHyphen": "-"}
# What was deleted or moved away, how a word is read, and what is there once more for old programs.
_NO_TEXT = {_W + name for name in ("pPr", "rPr", "del", "moveFrom", "rt")} | {
    "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
}


def _nearest(parent: Any, *tags: str) -> Iterator[Any]:
    """What is in `parent` of these elements, none inside another; around them can be anything: fields, controls, insertions."""
    for child in parent:
        if child.tag in tags:
            yield child
        elif child.tag not in _NO_TEXT:
            yield from _nearest(child, *tags)


def _said(block: Any) -> str:
    """The text of a paragraph, a table or a cell."""
    if block.tag == _TABLE:
        rows = _nearest(block, _ROW)
        return "\n".join("\t".join(_said(cell) for cell in _nearest(row, _CELL)) for row in rows)
    if block.tag == _CELL:
        return "\n".join(_said(inner) for inner in _nearest(block, _PARAGRAPH, _TABLE)).strip()
    words = ""
    for part in _nearest(block, _PARAGRAPH, _TABLE, _TEXT, *_SIGNS):
        if part.tag in (_PARAGRAPH, _TABLE):  # of a text box
            words += f"\n{_said(part)}\n"
        else:
            words += _SIGNS.get(part.tag) or part.text or ""
    return words


FORMATS = {
    "pdf": Format("a PDF file", "pypdfium2", _pdf, (".pdf",), ("application/pdf",)),
    "docx": Format(
        "a Word file", "docx", _docx, (".docx",),
        ("application/vnd.openxmlformats-officedocument.wordprocessingml.document",),
    ),
    "epub": Format("an EPUB file", "inscriptis", _epub, (".epub",), ("application/epub+zip",)),
    "html": Format("an HTML file", "inscriptis", _html, (".html", ".htm", ".xhtml"), ("text/html", "application/xhtml+xml")),
}  # fmt: skip
MEDIA_TYPES = tuple(media_type for made in FORMATS.values() for media_type in made.media_types)
"""Beside text/*."""


def accepted_formats() -> Iterator[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    """Every format that can be uploaded here: its id, name, extensions and media types. Text of UTF-8 always can."""
    yield "text", "UTF-8 text", (".txt", ".md"), ("text/*",)
    for id, made in FORMATS.items():
        if made.readable:
            yield id, made.name, made.extensions, made.media_types


def _write(pieces: Iterator[TextBlock], text: IO[str], limit: int) -> list[OutlineEntry]:
    """The pieces, a blank line between them, and where their pages and sections begin."""
    marks: list[OutlineEntry] = []
    at = size = 0
    for piece, page, section in pieces:
        if not piece:
            continue
        # Half of a surrogate pair is no character; NUL is none that a text may have.
        clean = ("\n\n" if at else "") + piece.encode("utf-8", "replace").decode().replace("\0", "")
        if page is not None or section is not None:
            marks.append(OutlineEntry(at + (2 if at else 0), page, section[:200] if section else None))
        text.write(clean)
        at, size = at + len(clean), size + len(clean.encode())
        if size > limit:
            raise OverflowError
    if not at:
        raise _UnreadableFile("there is no text in it; pages that are pictures would have to be recognised first")
    return marks


def _main(kind: str, file: str, text: str, limit: str) -> int:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        found = _in_zip(Path(file)) if kind == "zip" else kind
        if found is None:
            return _ExitCode.UNKNOWN_ZIP
        sys.stdout.write(found)
        sys.stdout.flush()  # it is known, whatever becomes of this process
        with Path(text).open("w", encoding="utf-8", newline="") as stream:
            marks = _write(FORMATS[found].pieces(Path(file)), stream, int(limit))
    except OverflowError:
        return _ExitCode.TOO_LARGE
    except _UnreadableFile as error:
        sys.stdout.write(f"\n{error}")
        return _ExitCode.UNREADABLE
    sys.stdout.write("\n")
    json.dump([(mark.start, mark.page, mark.section) for mark in marks], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
