"""Writes a novel into a file of each format that the server reads, for `everlong bench formats`.

`python -m tests.server.engine.documents.formats.novel FOLDER [TIMES]`: repeats the novel. LibreOffice makes the old Office files and
the sheet in OpenDocument, if it is installed.
"""

from __future__ import annotations

import base64
import io
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

from tests.files import epub, outlook, rezipped, zipped
from tests.server.engine.documents.formats.test_round_trips import MADE, as_odt, as_pdf

NOVEL = Path(__file__).parents[4] / "data" / "valley-of-fear.md"
_CONVERTED = {"docx": ("doc",), "odp": ("ppt",), "xlsx": ("xls", "ods")}
"""Formats that LibreOffice makes of another one."""
_CHAPTER, _SLIDE = 40, 8
"""Paragraphs of a chapter, and of a slide."""
_MAX_MESSAGE = 3_000_000
"""Characters of a message: `tests.files` makes no larger ones."""


def as_odp(texts: Sequence[str]) -> bytes:
    """Return a presentation."""
    names = {"office": "office", "draw": "drawing", "text": "text", "svg": "svg-compatible"}
    spaces = " ".join(
        f'xmlns:{short}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for short, name in names.items()
    )
    slides = "".join(
        '<draw:page><draw:frame svg:width="20cm" svg:height="15cm" svg:x="1cm" svg:y="1cm"><draw:text-box>'
        + "".join(f"<text:p>{escape(text)}</text:p>" for text in texts[at : at + _SLIDE])
        + "</draw:text-box></draw:frame></draw:page>"
        for at in range(0, len(texts), _SLIDE)
    )
    content = f"<office:body><office:presentation>{slides}</office:presentation></office:body>"
    return rezipped(
        as_odt([]),
        {
            "mimetype": lambda name, kind: (name, kind.replace(b".text", b".presentation")),
            "META-INF/manifest.xml": lambda name, data: (name, data.replace(b".text", b".presentation")),
            "content.xml": lambda name, _: (
                name,
                f"<office:document-content {spaces}>{content}</office:document-content>".encode(),
            ),
        },
    )


def write(folder: Path, times: int = 1) -> None:
    """Write the novel, repeated, into files of all formats."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in NOVEL.read_text(encoding="utf-8").split("\n\n")]
    texts = [paragraph for paragraph in paragraphs if paragraph] * times
    name = f"novel-{times}"
    for kind, make in MADE.items():
        (folder / f"{name}.{kind}").write_bytes(make(texts))
    (folder / f"{name}.odp").write_bytes(as_odp(texts))
    chapters = [texts[at : at + _CHAPTER] for at in range(0, len(texts), _CHAPTER)]
    (folder / f"{name}.epub").write_bytes(
        epub(["".join(f"<p>{escape(text)}</p>" for text in chapter) for chapter in chapters])
    )
    pieces = [text[at : at + 90] for text in texts for at in range(0, len(text), 90)]
    (folder / f"{name}.pdf").write_bytes(as_pdf(pieces))
    whole = "\n\n".join(texts)
    (folder / f"{name}-utf-16.txt").write_bytes(whole.encode("utf-16"))
    (folder / f"{name}.msg").write_bytes(outlook("Novel", whole[:_MAX_MESSAGE]))
    (folder / f"{name}.zip").write_bytes(
        zipped({f"{number:04}.txt": "\n\n".join(chapter) for number, chapter in enumerate(chapters)})
    )
    page = (folder / f"{name}.html").read_bytes()
    head = b"MIME-Version: 1.0\r\nContent-Type: text/html; charset=utf-8\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    related = b"MIME-Version: 1.0\r\nContent-Type: multipart/related; boundary=B\r\n\r\n--B\r\n"
    (folder / f"{name}.mhtml").write_bytes(related + head + base64.encodebytes(page) + b"\r\n--B--\r\n")
    with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as packed:
        info = tarfile.TarInfo("novel.txt")
        info.size = len(whole.encode())
        packed.addfile(info, io.BytesIO(whole.encode()))
    office = shutil.which("soffice")
    for source, kinds in _CONVERTED.items() if office else ():
        for kind in kinds:
            command = [
                str(office),
                "--headless",
                "--convert-to",
                kind,
                "--outdir",
                str(folder),
                str(folder / f"{name}.{source}"),
            ]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
