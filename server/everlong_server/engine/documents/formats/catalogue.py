"""The file formats that can be converted to text, and how to tell them apart."""

from __future__ import annotations

import codecs
import importlib.util
import re
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from everlong_server.engine.documents.formats.blocks import DAMAGED_ENTRY, Unreadable
from everlong_server.engine.documents.formats.charset import has_controls, is_utf8, unmarked_utf16
from everlong_server.engine.documents.formats.zips import open_zip

HEAD = 4096
"""Number of bytes at the start of a file that `detect` looks at."""


@dataclass(frozen=True, slots=True)
class Format:
    """A file format that can be converted.

    `name`: as shown in messages. `reader`: the module of this package that reads it. `package`: the Python package that
    this takes. `extensions`, `media_types`: those that such files usually have. `extra`: the part of everlong that installs
    the package.
    """

    name: str
    reader: str
    package: str
    extensions: tuple[str, ...]
    media_types: tuple[str, ...]
    extra: str = "formats"

    @property
    def readable(self) -> bool:
        """Whether the package that reads this format is installed."""
        return importlib.util.find_spec(self.package) is not None


_OPENXML = "application/vnd.openxmlformats-officedocument"
_MACRO = "application/vnd.ms"
_OASIS = "application/vnd.oasis.opendocument"
FORMATS = {
    "text": Format("text in another encoding than UTF-8", "plain", "chardet", (), ()),
    "pdf": Format("a PDF file", "portable.pdf", "pypdfium2", (".pdf",), ("application/pdf",)),
    "docx": Format(
        "a Word file", "openxml.word", "lxml", (".docx", ".docm", ".dotx", ".dotm"),
        (f"{_OPENXML}.wordprocessingml.document", f"{_OPENXML}.wordprocessingml.template",
         f"{_MACRO}-word.document.macroenabled.12", f"{_MACRO}-word.template.macroenabled.12"),
    ),
    "doc": Format("a Word file of 1991 to 2003", "compound.doc", "olefile", (".doc", ".dot"), ("application/msword",)),
    "pptx": Format(
        "a PowerPoint file", "openxml.slides", "lxml", (".pptx", ".pptm", ".ppsx", ".ppsm", ".potx", ".potm"),
        (f"{_OPENXML}.presentationml.presentation", f"{_OPENXML}.presentationml.slideshow",
         f"{_OPENXML}.presentationml.template", f"{_MACRO}-powerpoint.presentation.macroenabled.12",
         f"{_MACRO}-powerpoint.slideshow.macroenabled.12", f"{_MACRO}-powerpoint.template.macroenabled.12"),
    ),
    "ppt": Format("a PowerPoint file of 1997 to 2003", "compound.ppt", "olefile", (".ppt", ".pps"), (f"{_MACRO}-powerpoint",)),
    "xlsx": Format(
        "an Excel file", "openxml.sheets", "lxml", (".xlsx", ".xlsm", ".xltx", ".xltm", ".xlsb"),
        (f"{_OPENXML}.spreadsheetml.sheet", f"{_OPENXML}.spreadsheetml.template", f"{_MACRO}-excel.sheet.macroenabled.12",
         f"{_MACRO}-excel.sheet.binary.macroenabled.12"),
    ),
    "vsdx": Format(
        "a Visio drawing", "openxml.drawings", "lxml", (".vsdx", ".vsdm", ".vstx", ".vstm"),
        (f"{_MACRO}-visio.drawing", "application/vnd.visio", f"{_MACRO}-visio.drawing.macroenabled.12", f"{_MACRO}-visio.template",
         f"{_MACRO}-visio.template.macroenabled.12"),
    ),
    "iwork": Format(
        "a file of Apple Pages, Numbers or Keynote", "iwork", "pypdfium2", (".pages", ".numbers", ".key"),
        ("application/vnd.apple.pages", "application/vnd.apple.numbers", "application/vnd.apple.keynote"),
    ),
    "xls": Format("an Excel file of 1990 to 2003", "compound.xls", "xlrd", (".xls", ".xlt"), (f"{_MACRO}-excel",)),
    "odt": Format("an OpenDocument text", "opendocument.odf", "lxml", (".odt", ".ott", ".fodt"), (f"{_OASIS}.text", f"{_OASIS}.text-template")),
    "odp": Format(
        "an OpenDocument presentation", "opendocument.odf", "lxml", (".odp", ".otp", ".fodp"),
        (f"{_OASIS}.presentation", f"{_OASIS}.presentation-template"),
    ),
    "ods": Format(
        "an OpenDocument spreadsheet", "opendocument.odf", "lxml", (".ods", ".ots", ".fods"),
        (f"{_OASIS}.spreadsheet", f"{_OASIS}.spreadsheet-template"),
    ),
    "odg": Format(
        "an OpenDocument drawing", "opendocument.odf", "lxml", (".odg", ".otg", ".fodg"), (f"{_OASIS}.graphics", f"{_OASIS}.graphics-template"),
    ),
    "rtf": Format("an RTF file", "rich_text.rtf", "inscriptis", (".rtf",), ("application/rtf", "text/rtf")),
    "epub": Format("an EPUB file", "epub", "inscriptis", (".epub",), ("application/epub+zip",)),
    "fb2": Format("a FictionBook", "fb2", "lxml", (".fb2",), ("application/x-fictionbook+xml", "application/x-fictionbook")),
    "html": Format(
        "an HTML file", "html", "inscriptis", (".html", ".htm", ".xhtml"), ("text/html", "application/xhtml+xml")
    ),
    "mhtml": Format("a saved web page", "mail", "inscriptis", (".mhtml", ".mht"), ("multipart/related", "application/x-mimearchive")),
    "eml": Format("an e-mail", "mail", "inscriptis", (".eml", ".emlx", ".mbox"), ("message/rfc822", "application/mbox")),
    "msg": Format("an Outlook message", "outlook.msg", "olefile", (".msg",), ("application/vnd.ms-outlook",)),
    "tnef": Format(
        "an Outlook message (winmail.dat)", "outlook.tnef", "olefile", (".tnef",), ("application/ms-tnef", "application/vnd.ms-tnef")
    ),
    "ipynb": Format("a Jupyter notebook", "notebook", "inscriptis", (".ipynb",), ("application/x-ipynb+json",)),
    "image": Format(
        "a picture", "picture", "rapidocr", (".png", ".jpg", ".jpeg", ".tif", ".tiff"), ("image/png", "image/jpeg", "image/tiff"), "ocr"
    ),
    "zip": Format("a ZIP archive of documents", "archive", "lxml", (".zip",), ("application/zip", "application/x-zip-compressed")),
    "tar": Format(
        "a tar archive of documents, or a compressed file", "tar", "lxml", (".tar", ".tgz", ".gz", ".bz2", ".xz"),
        ("application/x-tar", "application/gzip", "application/x-gzip", "application/x-bzip2", "application/x-xz"),
    ),
}  # fmt: skip
ARCHIVES = ("zip", "tar")
"""The formats whose files can become a document each."""
MEDIA_TYPES = frozenset(media_type for format in FORMATS.values() for media_type in format.media_types)
"""Media types that can be uploaded, in addition to text/*."""
_TEXT = (
    ".txt", ".md", ".markdown", ".rst", ".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".yaml", ".yml", ".toml", ".ini", ".log",
    ".xml", ".tex", ".bib", ".org", ".adoc", ".srt", ".vtt", ".ass", ".ssa", ".ics", ".vcf", ".diff", ".patch", ".conf", ".py", ".js", ".ts", ".tsx", ".jsx", ".java", ".c", ".h", ".cpp", ".cs",
    ".go", ".rs", ".rb", ".php", ".sh", ".sql", ".r", ".swift", ".kt", ".scala", ".lua", ".css", ".vue",
)  # fmt: skip
_BY_EXTENSION = {extension: id for id, format in FORMATS.items() for extension in format.extensions}
_BY_MEDIA_TYPE = {media_type: id for id, format in FORMATS.items() for media_type in format.media_types}


def accepted_formats() -> Iterator[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    """Yield the id, name, extensions and media types of each format that this server accepts. UTF-8 text is always one.

    With `everlong[formats]`, text may have another encoding.
    """
    yield "text", "text", _TEXT, ("text/*", "application/json", "application/x-ndjson", "application/x-subrip")
    for id, format in FORMATS.items():
        if format.readable and id != "text":
            yield id, format.name, format.extensions, format.media_types


def is_accepted(media_type: str) -> bool:
    """Whether files of the declared media type can be uploaded. Their content decides what they are."""
    kind = media_type.lower()
    return kind.startswith("text/") or kind in MEDIA_TYPES or kind.endswith(("+json", "+xml")) or kind in _TEXT_TYPES


_TEXT_TYPES = (
    "application/json", "application/x-ndjson", "application/jsonl", "application/xml", "application/x-subrip", "application/x-tex",
    "application/x-yaml", "application/yaml", "application/toml", "application/javascript", "application/sql", "application/x-sh",
)  # fmt: skip
_BINARY = (
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z file"), (0, b"Rar!", "a RAR archive"),
    (0, b"\x28\xb5\x2f\xfd", "a Zstandard file"),
    (0, b"GIF8", "a GIF image"), (8, b"WEBP", "a WebP image"), (0, b"BM", "a BMP image"),
    (4, b"ftypheic", "a HEIC image"), (4, b"ftypavif", "an AVIF image"),
    (0, b"AT&TFORM", "a DjVu file"), (60, b"BOOKMOBI", "a Kindle book"), (4, b"ftyp", "a video or audio file"),
    (0, b"\x1aE\xdf\xa3", "a video file"), (8, b"AVI ", "a video file"), (8, b"WAVE", "an audio file"), (0, b"ID3", "an audio file"),
    (0, b"\xff\xfb", "an audio file"), (0, b"OggS", "an audio file"), (0, b"fLaC", "an audio file"),
    (0, b"SQLite format 3", "an SQLite database"), (0, b"\x7fELF", "a program"), (0, b"MZ", "a program"),
    (0, b"PAR1", "a Parquet file"), (0, b"\x93NUMPY", "a NumPy file"), (0, b"GGUF", "a GGUF model"),
)  # fmt: skip
"""Offset and first bytes of binary files, and what they are."""
_PDF = re.compile(rb"%PDF-\d")
_BINARY_FORMATS = (
    (b"PK\x03\x04", "zip"), (b"PK\x05\x06", "zip"), (b"\x1f\x8b\x08", "tar"), (b"BZh", "tar"), (b"\xfd7zXZ\0", "tar"),
    (b"\xd0\xcf\x11\xe0", "ole"), (b"\xdb\xa5\x2d\0", "doc"), (b"\x09\0\x04\0", "xls"),
    (b"\x09\x02\x06\0", "xls"), (b"\x09\x04\x06\0", "xls"), (b"\x09\x08\x08\0", "xls"), (b"\x09\x08\x10\0", "xls"), (b"\x78\x9f\x3e\x22", "tnef"), (b"{\\rtf", "rtf"), (b"\x89PNG", "image"),
    (b"\xff\xd8\xff", "image"), (b"II*\0", "image"), (b"MM\0*", "image"),
)  # fmt: skip
"""First bytes of files, and what they are. White space may precede those that begin with "P" or "{"."""
# Atomic, as each comment could otherwise end at any later one, in 2^n ways.
_BLANK = rb"(?>\s|<!--.*?-->|<\?xml[^>]*\?>)*+"
_HTML = re.compile(
    _BLANK + rb"(?:<!doctype\s+html|<(?:\w+:)?html[\s>]|<head[\s>]|<body[\s>]|<!doctype[^>]*>\s*<(?:\w+:)?html)",
    re.DOTALL | re.IGNORECASE,
)
_ASIDE = rb"(?>\s|<!--.*?-->|<\?.*?\?>)*+"
_ROOT = _ASIDE + rb"(?:<!(?i:doctype)[^>\[]*(?:\[[^\]]*\])?\s*>" + _ASIDE + rb")?"
"""What may precede the first element of an XML file."""
_BOOK = re.compile(_ROOT + rb"<(?:\w+:)?FictionBook[\s>]", re.DOTALL)
_FLAT = _ROOT + rb"<(?:\w+:)?package\b[^>]*schemas\.microsoft\.com/office/2006/xmlPackage.*"
_OASIS_FLAT = _ROOT + rb"<office:document\b[^>]*mimetype=\"application/vnd\.oasis\.opendocument\."
_XML_OFFICE = tuple(
    (re.compile(pattern, re.DOTALL), format)
    for pattern, format in (
        (_FLAT + rb"/word/", "docx"),
        (_FLAT + rb"/ppt/", "pptx"),
        (_ROOT + rb"<(?:\w+:)?wordDocument\b[^>]*schemas\.microsoft\.com/office/word/2003/wordml", "docx"),
        (_ROOT + rb"<(?:\w+:)?Workbook\b[^>]*urn:schemas-microsoft-com:office:spreadsheet", "xlsx"),
        (_OASIS_FLAT + rb"text", "odt"),
        (_OASIS_FLAT + rb"presentation", "odp"),
        (_OASIS_FLAT + rb"spreadsheet", "ods"),
        (_OASIS_FLAT + rb"graphics", "odg"),
    )
)
"""The beginnings of Office files that are one XML file."""
_NOTEBOOK = re.compile(rb'\{\s*"cells"\s*:\s*\[\s*\{\s*"(?:attachments|cell_type)"\s*:')
"""The beginning of a Jupyter notebook, as Jupyter writes it."""
_TAG = re.compile(rb"<(?:!doctype|!--|/?[a-z][a-z0-9-]*(?:\s[^<>]*)?/?>)", re.IGNORECASE)
_MESSAGE = re.compile(rb"(?:[!-9;-~]+:[^\r\n]*(?:\r\n?|\n)(?:[ \t][^\r\n]*(?:\r\n?|\n))*)+", re.IGNORECASE)
ENVELOPE = re.compile(rb"(?:>?From [^\r\n]+\d{2}:\d{2}[^\r\n]*|\d+[ \t]*)\r?\n")
"""A line before the fields of a message: in a mailbox (mbox), or with the message's size in one of Apple Mail (emlx)."""

PAGE_NAMES = (".xhtml", ".html", ".htm", ".xhtm", ".xht")
"""Extensions of the pages of an EPUB."""


def detect(head: bytes, filename: str | None = None, media_type: str | None = None) -> str | None:
    """Return the kind of a file that begins with `head`: a format, or "zip" or "ole" for a container; None for text.

    The content decides. The file name and the declared media type decide only between a format whose files are text, such
    as HTML, and the source of one, which is text as it is.
    """
    declared = _declared(filename, media_type)
    start = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if start.startswith(b"%PDF-"):
        return "pdf"
    if head[257:262] == b"ustar" or _is_old_tar(head):
        return "tar"
    for beginning, kind in _BINARY_FORMATS:
        if (start if beginning[:1] in b"P{" else head).startswith(beginning):
            return kind
    # Some programs write lines before a PDF. A text about PDF may have the same words.
    if _PDF.search(head[:1024]) and (
        declared == "pdf" or (b" obj" in head and declared is None and not _is_prose(head))
    ):
        return "pdf"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        head = head.decode("utf-16", "ignore").encode()
    if _BOOK.match(head.removeprefix(codecs.BOM_UTF8)):
        return "fb2"
    if start.startswith(b"<"):
        for office, format in _XML_OFFICE:
            if office.match(start):
                return format
    if start.startswith(b"{") and (declared == "ipynb" or (declared is None and _NOTEBOOK.match(start))):
        return "ipynb"
    return None if declared == "text" else _message_kind(start, declared) or _page_kind(head, declared)


def _is_old_tar(head: bytes) -> bool:
    """Whether a file begins with the header of a tar archive before POSIX: only its checksum tells."""
    header = head[:512]
    checksum = header[148:156].strip(b" \0")
    is_octal = len(header) == 512 and checksum.isdigit() and checksum.translate(None, b"89") == checksum
    return is_octal and int(checksum, 8) == sum(header) - sum(header[148:156]) + 8 * 32


def _is_prose(head: bytes) -> bool:
    """Whether a file that begins with `head` has "%PDF-" in its text: PDF files have it alone in a line, before an object."""
    return (
        re.search(
            rb"(?:^|[\r\n\0-\x08\x80-\xff]|=PDF)\s*%PDF-\d\.\d[^\r\n]{0,16}[\r\n]+(?:%[^\r\n]*[\r\n]+)*\s*\d+ \d+ obj",
            head,
        )
        is None
    )


def _message_kind(start: bytes, declared: str | None) -> str | None:
    """Return whether a file is an e-mail or a saved web page; None for neither."""
    envelope = ENVELOPE.match(start)
    fields = _MESSAGE.match(start, envelope.end() if envelope else 0)
    names = {line.partition(b":")[0].lower() for line in fields[0].splitlines()} if fields else set()
    is_mailbox = envelope is not None and bool(names & {b"from", b"subject", b"date", b"message-id"})
    if names and (declared in ("eml", "mhtml") or is_mailbox or names >= {b"mime-version", b"content-type"}):
        is_page = b"multipart/related" in start and b"from" not in names
        return declared if declared in ("eml", "mhtml") else "mhtml" if is_page else "eml"
    return None


def _page_kind(head: bytes, declared: str | None) -> str | None:
    """Return "html" for a page, else None. Programs export pages under the names of other formats, such as .doc and .xls."""
    page = head.removeprefix(codecs.BOM_UTF8)
    may_be_page = declared == "html" or (declared is not None and page.lstrip().startswith(b"<"))
    return "html" if _HTML.match(page) or (may_be_page and _TAG.search(head)) else None


def binary_kind(head: bytes) -> str | None:
    """Return what a file is that begins with `head` and is no text in any encoding; None for a text."""
    has_nul = b"\0" in head
    if not has_nul and (is_utf8(head) or not has_controls(head)):
        return None
    for at, magic, name in _BINARY:
        if head[at:].startswith(magic):
            return name
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)) or unmarked_utf16(head):
        return None
    return "a binary file of an unknown kind" + (f" with a NUL byte at byte {head.index(0)}" if has_nul else "")


def _declared(filename: str | None, media_type: str | None) -> str | None:
    """Return the format that the file name declares, else the media type; "text" for other text, None if neither is known."""
    suffix = PurePath(filename or "").suffix.lower()
    if suffix in _BY_EXTENSION:
        return _BY_EXTENSION[suffix]
    if suffix in _TEXT[1:]:  # pages are often saved as .txt
        return "text"
    return _BY_MEDIA_TYPE.get((media_type or "").lower())


def format_of(file: Path, kind: str) -> str | None:
    """Return the format of a file whose kind is known; None for a container that is none of `FORMATS`. Raises `Unreadable`."""
    if kind == "zip":
        return _zip_format(file)
    return _ole_format(file) if kind == "ole" else kind


_IWORK = re.compile(r"index/.+\.iwa|index\.apxl(?:\.gz)?")
"""Parts of files of Apple Pages, Numbers and Keynote."""


def _zip_format(file: Path) -> str:
    try:
        with open_zip(file) as packed:
            names = [name.lstrip("/").replace("\\", "/").lower() for name in packed.namelist()]
            declared = packed.read("mimetype").strip().decode("latin-1") if "mimetype" in packed.namelist() else ""
    except DAMAGED_ENTRY as error:
        raise Unreadable(f"it is a damaged ZIP file ({error})") from None
    if (found := _BY_MEDIA_TYPE.get(declared)) is not None:
        return found
    for folder, parts, format in (
        ("word/", ("document",), "docx"),
        ("ppt/", ("presentation",), "pptx"),
        ("visio/", ("document",), "vsdx"),
        (
            "xl/",
            ("workbook", "worksheets/sheet"),
            "xlsx",
        ),  # some programs write the workbook last, so a cut file lacks it
    ):
        # Without the list of types, only the name of a main part tells such a file from a folder of this name.
        has_types = "[content_types].xml" in names
        prefixes = (folder,) if has_types else tuple(folder + part for part in parts)
        if any(name.startswith(prefixes) and name.endswith((".xml", ".bin")) for name in names):
            return format
    own = _in_top_folder(names)
    if any(_IWORK.fullmatch(name) for name in own) or {"index.xml", "buildversionhistory.plist"} <= set(own):
        return "iwork"
    return "epub" if _is_book(names) else "zip"


def _in_top_folder(names: Collection[str]) -> list[str]:
    """Return the names without the folder that all of them are in, if there is one, as in the ZIP file of an unpacked book."""
    own = [name for name in names if not name.startswith("__macosx/")]
    top = own[0].partition("/")[0] + "/" if own else ""
    return [name[len(top) :] for name in own] if all(name.startswith(top) for name in own) else own


def _is_book(names: Collection[str]) -> bool:
    """Whether a ZIP file with entries of these names is an EPUB, and not a folder of a library, whose books have such files beside them."""
    if "meta-inf/container.xml" in names:
        return True
    own = _in_top_folder(names)
    has_package = any(name.endswith(".opf") and name.count("/") < 2 for name in own)
    return (
        has_package
        and any(name.endswith(PAGE_NAMES) for name in own)
        and not any(name.endswith(".epub") for name in own)
    )


def _ole_format(file: Path) -> str | None:
    """Return the format of a compound file (MS-CFB), by the names of its streams. Capital letters make no difference in them."""
    streams = _ole_streams(file)
    for stream, format in (
        ("encryptedpackage", ""), ("worddocument", "doc"), ("powerpoint document", "ppt"), ("workbook", "xls"), ("book", "xls"),
        ("__properties_version1.0", "msg"), ("pp40", "ppt"),
    ):  # fmt: skip
        if stream in streams:
            if not format:
                raise Unreadable("it is encrypted: upload it without a password")
            return format
    return None


def _ole_streams(file: Path) -> set[str]:
    """Return the lower-case names of the streams of a compound file, but not of those in its storages, such as embedded files.

    If its directory is damaged, these are the names that look like a directory entry. An entry begins at a multiple of 128 bytes,
    with the name in 64 bytes and then the name's size.
    """
    import olefile  # noqa: PLC0415 - optional, and only the conversion process needs it

    with suppress(OSError, ValueError, IndexError, struct.error), olefile.OleFileIO(file) as ole:
        # Not `listdir`: a damaged directory may contain itself, and that follows it as deep as Python can.
        if names := {each.name.lower() for each in ole.root.kids if each.entry_type == olefile.STGTY_STREAM}:
            return names
    data = file.read_bytes()
    entries = (data[at : at + 66] for at in range(0, len(data) - 65, 128))
    damaged = (entry[: max(0, int.from_bytes(entry[64:], "little") - 2)] for entry in entries)
    return {name.decode("utf-16-le", "ignore").lower() for name in damaged}
