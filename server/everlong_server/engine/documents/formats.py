"""Convert PDF, Word, EPUB and HTML files to text, with an outline of their pages and sections.

An uploaded file may be hostile. A separate process converts it, with limits on CPU time, memory and the size of the text,
and never fetches anything that the file refers to.
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
"""CPU seconds that a conversion may take."""
MEMORY = 2 << 30
"""Bytes of address space that a conversion may take."""
_ZIP_SIGNATURE = b"PK\x03\x04"

TextBlock = tuple[str, int | None, str | None]
"""Text and the page or section that it begins; both None: the text continues the block before."""


@dataclass(frozen=True, slots=True)
class Format:
    """A file format that can be converted.

    `name`: as shown in messages. `package`: the Python package that reads it. `blocks`: yields the text of a file; raises
    `_UnreadableFile`. `extensions`, `media_types`: those that such files usually have, for display; a file's format is
    detected from its first bytes.
    """

    name: str
    package: str
    blocks: Callable[[Path], Iterator[TextBlock]]
    extensions: tuple[str, ...]
    media_types: tuple[str, ...]

    @property
    def readable(self) -> bool:
        """Whether the package that reads this format is installed; `everlong[formats]` installs it."""
        return importlib.util.find_spec(self.package) is not None


class _UnreadableFile(Exception):
    """The file has no readable text; the message says why."""


def detect_kind(head: bytes) -> str | None:
    """Return the kind of a file that begins with `head`: "pdf", "zip" (Word, EPUB) or "html"; None for other files."""
    if head.startswith(b"%PDF-"):
        return "pdf"
    if head.startswith(_ZIP_SIGNATURE):
        return "zip"
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:14].lower()
    return "html" if start.startswith((b"<!doctype html", b"<html", b"<?xml")) and b"<html" in head.lower() else None


def convert(file: Path, kind: str, text: Path, limit: int) -> tuple[str, list[OutlineEntry]]:
    """Write the text of `file` to `text` as UTF-8, at most `limit` bytes. Return its format (of `FORMATS`) and outline. Blocks.

    `kind`: as returned by `detect_kind`. Raises `UnsupportedMedia` for a format that this server cannot convert,
    `InvalidRequest` for a file that is damaged, encrypted or has no text, and `TooLarge`.
    """
    command = [sys.executable, "-m", "everlong_server.engine.documents.formats", kind, str(file), str(text), str(limit)]
    try:
        process = subprocess.run(command, capture_output=True, timeout=2 * SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise _unreadable(f"converting {_name(kind)} takes too long, more than {2 * SECONDS} seconds") from None
    format_id, _, result = process.stdout.decode(errors="replace").partition("\n")
    kind = format_id or kind
    if kind in FORMATS and not FORMATS[kind].readable:
        raise UnsupportedMedia(
            f"the document is {_name(kind)}, which this server cannot read without pip install 'everlong[formats]'",
            param="file",
        )
    match process.returncode:
        case 0:
            return kind, [OutlineEntry(*entry) for entry in json.loads(result)]
        case _ExitCode.TOO_LARGE:
            raise TooLarge(
                f"the document's text has more than {limit} bytes, the limit (EVERLONG_MAX_DOCUMENT_BYTES)",
                param="file",
            )
        case _ExitCode.UNKNOWN_ZIP:
            raise UnsupportedMedia("the document is a ZIP file, and neither a Word file nor an EPUB", param="file")
        case _ExitCode.UNREADABLE:
            raise _unreadable(result)
    raise _unreadable(f"{_name(kind)} that cannot be read: it is damaged, or takes too much time or memory")


def _name(kind: str) -> str:
    return FORMATS[kind].name if kind in FORMATS else "a ZIP file"


def _unreadable(why: str) -> InvalidRequest:
    return InvalidRequest(f"the document: {why}", param="file", code="unreadable_document")


# The code below runs in the conversion process


class _ExitCode(IntEnum):
    """Exit code of the conversion process. Its output is a line with the format, then the outline or the reason of the failure."""

    TOO_LARGE = 3
    UNREADABLE = 4
    UNKNOWN_ZIP = 5


def _zip_format(file: Path) -> str | None:
    """Return the format of a ZIP file; None if it is not one of `FORMATS`."""
    try:
        with zipfile.ZipFile(file) as packed:
            names = set(packed.namelist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise _UnreadableFile(f"it is a damaged ZIP file ({error})") from None
    if "word/document.xml" in names:
        return "docx"
    return "epub" if "META-INF/container.xml" in names else None


def _pdf(file: Path) -> Iterator[TextBlock]:
    import pypdfium2  # noqa: PLC0415 - optional, and only this process needs it

    try:
        document = pypdfium2.PdfDocument(file)
    except pypdfium2.PdfiumError as error:
        why = "it is encrypted: upload it without a password" if "password" in str(error).lower() else "it is damaged"
        raise _UnreadableFile(f"the PDF cannot be read: {why}") from None
    for number, page in enumerate(document, 1):
        yield page.get_textpage().get_text_range().replace("\r\n", "\n").replace("\x02", "-").strip(), number, None
        page.close()


def _html(file: Path) -> Iterator[TextBlock]:
    from lxml import html  # noqa: PLC0415

    # Without `huge_tree`, lxml silently drops text nested deeper than 256 elements or after 10 MB of one text node.
    parser = html.HTMLParser(encoding="utf-8", no_network=True, huge_tree=True)
    yield from _render_html(html.document_fromstring(_utf8(file.read_bytes()), parser))


_ENCODING_SIGNATURES = {
    codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
    b"<\0": "utf-16-le", b"\0<": "utf-16-be",
}  # fmt: skip
_DECLARED = re.compile(
    rb"""<\?xml\s[^>]*?encoding\s*=\s*["']([\w.:-]+)|<meta\s[^>]*?charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE
)


def _utf8(data: bytes) -> bytes:
    """Return an HTML page as UTF-8.

    Its encoding is, in this order: that of its byte order mark or first bytes; UTF-8, if it is valid as that; the declared
    one. A page without any of them is taken as UTF-8 with damaged characters.
    """
    for signature, encoding in _ENCODING_SIGNATURES.items():
        if data.startswith(signature):
            return data.decode(encoding, "replace").encode("utf-8", "replace")
    # ISO-2022 writes other characters in ASCII bytes after an escape, so such pages are valid UTF-8 by accident.
    if b"\x1b" not in data:
        with contextlib.suppress(UnicodeDecodeError):
            data.decode()
            return data
    if declared := _DECLARED.search(data[:4096]):
        encoding = (declared[1] or declared[2]).decode("ascii", "replace")
        with contextlib.suppress(LookupError, UnicodeError):  # an unknown encoding
            # As in browsers, Latin-1 means Windows-1252.
            western = codecs.lookup(encoding).name in ("iso8859-1", "ascii")
            return data.decode("cp1252" if western else encoding, "replace").encode("utf-8", "replace")
    return data


def _render_html(tree: Any) -> Iterator[TextBlock]:
    """Yield a page as a browser renders it, a block for each section."""
    from inscriptis.html_engine import Inscriptis  # noqa: PLC0415
    from inscriptis.model.config import ParserConfig  # noqa: PLC0415

    for hidden in tree.xpath("//script | //style | //template | //noscript"):
        hidden.drop_tree()
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
        encrypted_names = set()
        if "META-INF/encryption.xml" in packed.namelist():  # often of obfuscated fonts alone
            encryption = etree.fromstring(packed.read("META-INF/encryption.xml"), xml)
            uris = encryption.xpath("//*[local-name()='CipherReference']/@URI")
            encrypted_names = {posixpath.normpath(unquote(uri)) for uri in uris}
        for reference in package.xpath("//*[local-name()='spine']/*/@idref"):
            name = posixpath.normpath(posixpath.join(posixpath.dirname(root), items[reference]))
            if name in encrypted_names:
                raise _UnreadableFile("the EPUB cannot be read: it is encrypted; upload it without encryption")
            content = packed.read(name)
            if content.strip():
                parser = html.HTMLParser(encoding="utf-8", no_network=True, huge_tree=True)
                yield from _render_html(html.document_fromstring(_utf8(content), parser))


def _docx(file: Path) -> Iterator[TextBlock]:
    import docx  # noqa: PLC0415
    from docx.text.paragraph import Paragraph  # noqa: PLC0415

    document = docx.Document(str(file))
    for block in _outermost(document.element.body, _PARAGRAPH, _TABLE):
        text, heading = _block_text(block).strip(), False
        if block.tag == _PARAGRAPH:
            style = Paragraph(block, document).style
            heading = style is not None and str(style.name).startswith(("Heading", "Title"))
        yield text, None, " ".join(text.split()) if heading else None


_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_PARAGRAPH, _TABLE, _ROW, _CELL, _TEXT = (_W + name for name in ("p", "tbl", "tr", "tc", "t"))
_SPECIAL_CHARACTERS = {_W + "tab": "\t", _W + "ptab": "\t", _W + "br": "\n", _W + "cr": "\n", _W + "noBreakHyphen": "-"}
# Deleted and moved text, pronunciation guides, and copies of text for old programs.
_NO_TEXT = {_W + name for name in ("pPr", "rPr", "del", "moveFrom", "rt")} | {
    "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
}


def _outermost(parent: Any, *tags: str) -> Iterator[Any]:
    """Yield the outermost descendants of `parent` with these tags, whatever elements they are in: fields, controls, insertions."""
    for child in parent:
        if child.tag in tags:
            yield child
        elif child.tag not in _NO_TEXT:
            yield from _outermost(child, *tags)


def _block_text(block: Any) -> str:
    """Return the text of a paragraph, a table or a cell."""
    if block.tag == _TABLE:
        rows = _outermost(block, _ROW)
        return "\n".join("\t".join(_block_text(cell) for cell in _outermost(row, _CELL)) for row in rows)
    if block.tag == _CELL:
        return "\n".join(_block_text(inner) for inner in _outermost(block, _PARAGRAPH, _TABLE)).strip()
    words = ""
    for part in _outermost(block, _PARAGRAPH, _TABLE, _TEXT, *_SPECIAL_CHARACTERS):
        if part.tag in (_PARAGRAPH, _TABLE):  # of a text box
            words += f"\n{_block_text(part)}\n"
        else:
            words += _SPECIAL_CHARACTERS.get(part.tag) or part.text or ""
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
MEDIA_TYPES = tuple(media_type for format in FORMATS.values() for media_type in format.media_types)
"""Media types that can be uploaded, in addition to text/*."""


def accepted_formats() -> Iterator[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    """Yield the id, name, extensions and media types of each format that this server accepts. UTF-8 text is always one."""
    yield "text", "UTF-8 text", (".txt", ".md"), ("text/*",)
    for id, format in FORMATS.items():
        if format.readable:
            yield id, format.name, format.extensions, format.media_types


def _write(blocks: Iterator[TextBlock], text: IO[str], limit: int) -> list[OutlineEntry]:
    """Write the blocks with a blank line between them, and return where pages and sections begin.

    Raises `OverflowError` after more than `limit` bytes.
    """
    outline: list[OutlineEntry] = []
    position = size = 0  # characters and bytes written
    for block, page, section in blocks:
        if not block:
            continue
        # A lone surrogate cannot be encoded, and texts must not contain NUL.
        clean = ("\n\n" if position else "") + block.encode("utf-8", "replace").decode().replace("\0", "")
        if page is not None or section is not None:
            outline.append(OutlineEntry(position + (2 if position else 0), page, section[:200] if section else None))
        text.write(clean)
        position, size = position + len(clean), size + len(clean.encode())
        if size > limit:
            raise OverflowError
    if not position:
        raise _UnreadableFile("there is no text in it; pages that are pictures need text recognition (OCR) first")
    return outline


def _main(kind: str, file: str, text: str, limit: str) -> int:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        format_id = _zip_format(Path(file)) if kind == "zip" else kind
        if format_id is None:
            return _ExitCode.UNKNOWN_ZIP
        sys.stdout.write(format_id)
        sys.stdout.flush()  # the parent learns the format even if this process crashes later
        with Path(text).open("w", encoding="utf-8", newline="") as stream:
            outline = _write(FORMATS[format_id].blocks(Path(file)), stream, int(limit))
    except OverflowError:
        return _ExitCode.TOO_LARGE
    except _UnreadableFile as error:
        sys.stdout.write(f"\n{error}")
        return _ExitCode.UNREADABLE
    sys.stdout.write("\n")
    json.dump([(entry.start, entry.page, entry.section) for entry in outline], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
