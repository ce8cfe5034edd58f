"""Makes small files in the formats that users upload: PDF, Word, EPUB."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Sequence

import docx


def pdf(pages: Sequence[str], *, trailer: str = "") -> bytes:
    """Return a PDF with one line of ASCII on each page; "" is a page without text. `trailer`: further entries of the trailer."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", "", "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for text in pages:
        words = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET" if text else "20 20 100 100 re f"
        objects.append(f"<< /Length {len(words)} >>\nstream\n{words}\nendstream")
        kids.append(len(objects) + 1)
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 900 200] /Contents {len(objects)} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        )
    objects[1] = f"<< /Type /Pages /Count {len(kids)} /Kids [{' '.join(f'{kid} 0 R' for kid in kids)}] >>"
    out, places = "%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    return (
        f"{out}xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
        f"trailer << /Size {len(objects) + 1} /Root 1 0 R {trailer} >>\nstartxref\n{len(out)}\n%%EOF\n"
    ).encode()


def encrypted_pdf() -> bytes:
    """Return an encrypted PDF that no password opens."""
    keys = f"/O <{'ab' * 32}> /U <{'cd' * 32}>"
    return pdf(
        ["secret"], trailer=f"/Encrypt << /Filter /Standard /V 1 /R 2 {keys} /P -4 >> /ID [<{'01' * 16}> <{'01' * 16}>]"
    )


def word(*paragraphs: tuple[str, str]) -> bytes:
    """Return a Word file. `paragraphs`: pairs of style ("Heading 1", "Normal") and text; for "table", cells separated by |."""
    made, out = docx.Document(), io.BytesIO()
    for style, text in paragraphs:
        if style == "table":
            cells = text.split("|")
            for cell, value in zip(made.add_table(1, len(cells)).rows[0].cells, cells, strict=True):
                cell.text = value
        else:
            made.add_paragraph(text, style=style)
    made.save(out)
    return out.getvalue()


def word_of(body: str) -> bytes:
    """Return a Word file with this XML as its body."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(word())) as plain, zipfile.ZipFile(out, "w") as made:
        for name in plain.namelist():
            content = plain.read(name)
            if name == "word/document.xml":
                content = re.sub(rb"<w:body>.*</w:body>", f"<w:body>{body}</w:body>".encode(), content, flags=re.DOTALL)
            made.writestr(name, content)
    return out.getvalue()


def epub(chapters: Sequence[str | bytes], *, encrypted: Sequence[str] = ()) -> bytes:
    """Return an EPUB, with folders as in real books. `chapters`: the XHTML inside each body; bytes are a whole file.
    `encrypted`: the paths that are declared to be encrypted."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("mimetype", "application/epub+zip")
        packed.writestr(
            "META-INF/container.xml",
            '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
            '<rootfile full-path="OEBPS/content.opf" media-type="application/oebps-package+xml"/></rootfiles></container>',
        )
        names = [f"text/chapter%20{n}.xhtml" for n in range(len(chapters))]
        items = "".join(f'<item id="c{n}" href="{name}" media-type="x"/>' for n, name in enumerate(names))
        # The spine defines the order of the chapters; the manifest may have another order.
        spine = "".join(f'<itemref idref="c{n}"/>' for n in range(len(chapters)))
        packed.writestr(
            "OEBPS/content.opf",
            f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{items}</manifest><spine>{spine}</spine></package>',
        )
        for n, chapter in enumerate(chapters):
            packed.writestr(
                f"OEBPS/text/chapter {n}.xhtml",
                chapter
                if isinstance(chapter, bytes)
                else '<?xml version="1.0" encoding="utf-8"?><html xmlns="http://www.w3.org/1999/xhtml"><head><title>t</title></head>'
                f"<body>{chapter}</body></html>",
            )
        references = "".join(
            f'<enc:EncryptedData><enc:EncryptionMethod Algorithm="http://www.idpf.org/2008/embedding"/>'
            f'<enc:CipherData><enc:CipherReference URI="{uri}"/></enc:CipherData></enc:EncryptedData>'
            for uri in encrypted
        )
        if references:
            packed.writestr(
                "META-INF/encryption.xml",
                '<encryption xmlns="urn:oasis:names:tc:opendocument:xmlns:container" '
                f'xmlns:enc="http://www.w3.org/2001/04/xmlenc#">{references}</encryption>',
            )
    return out.getvalue()


def bomb(size: int) -> bytes:
    """Return a zip bomb: a Word file of a few kilobytes whose text has `size` bytes."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(word(("Normal", "x")))) as small,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as big,
    ):
        for name in small.namelist():
            content = small.read(name)
            if name != "word/document.xml":
                big.writestr(name, content)
                continue
            head, tail = content.split(b">x<")
            with big.open(name, "w") as entry:  # in pieces, as it may not fit in memory
                entry.write(head + b">")
                for at in range(0, size, 1 << 20):
                    entry.write(b"a " * (min(1 << 20, size - at) // 2))
                entry.write(b"<" + tail)
    return out.getvalue()
