"""Makes small files in the formats that users upload: PDF, Word, EPUB."""

from __future__ import annotations

import io
import re
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence

import docx

PICTURE = "a page that is a picture"


def pdf(pages: Sequence[str], *, trailer: str = "") -> bytes:
    """Return a PDF with one line of ASCII on each page; "" is a page without text, `PICTURE` a page that is a picture.

    `trailer`: further entries of the trailer.
    """
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", "", "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for text in pages:
        words = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET" if text else "20 20 100 100 re f"
        if text == PICTURE:
            words = "q 200 0 0 200 100 0 cm BI /W 2 /H 2 /CS /G /BPC 8 ID 0000 EI Q"
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


def pdf_of(content: str, *, page: str = "", catalog: str = "", objects: Sequence[str] = ()) -> bytes:
    """Return a PDF of one page with this content stream. `page`, `catalog`: further entries; `objects`: those from 6 0 on."""
    bodies = [
        f"<< /Type /Catalog /Pages 2 0 R {catalog} >>", "<< /Type /Pages /Count 1 /Kids [4 0 R] >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R /Resources << /Font << /F1 3 0 R >> >> {page} >>",
        f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
        *objects,
    ]  # fmt: skip
    return ("%PDF-1.7\n" + "".join(f"{n} 0 obj\n{body}\nendobj\n" for n, body in enumerate(bodies, 1))
            + "trailer << /Root 1 0 R >>\n%%EOF\n").encode("latin-1")  # fmt: skip


def pdf_lines(*lines: tuple[float, float, str]) -> str:
    """Return a content stream with these texts. `lines`: x, y and text."""
    return "BT /F1 11 Tf " + " ".join(f"1 0 0 1 {x} {y} Tm ({text}) Tj" for x, y, text in lines) + " ET"


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


def zipped(entries: Mapping[str, bytes | str]) -> bytes:
    """Return a ZIP file with these entries."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        for name, content in entries.items():
            packed.writestr(name, content)
    return out.getvalue()


Change = Callable[[str, bytes], tuple[str, bytes]]


def rezipped(data: bytes, changes: Mapping[str, Change | None], added: Mapping[str, bytes] = {}) -> bytes:
    """Return a ZIP file with some entries changed: a function returns the new name and content, None removes the entry."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as plain, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name in plain.namelist():
            change = changes.get(name, lambda name, content: (name, content))
            if change is not None:
                made.writestr(*change(name, plain.read(name)))
        for name, content in added.items():
            made.writestr(name, content)
    return out.getvalue()


def word_of(body: str, parts: Mapping[str, str | bytes] = {}) -> bytes:
    """Return a Word file with this XML as its body.

    `parts`: further parts, by name: "footnotes", "header2", or with a suffix. The name is also the relationship's id.
    """
    types = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    relations, added = "", {}
    for name, content in parts.items():
        target = name if "." in name else f"{name}.xml"
        relations += (
            f'<Relationship Id="{name}" Type="{types}/{name.partition(".")[0].rstrip("2")}" Target="{target}"/>'
        )
        added[f"word/{target}"] = content if isinstance(content, bytes) else content.encode()

    def document(name: str, content: bytes) -> tuple[str, bytes]:
        return name, re.sub(
            rb"<w:body>.*</w:body>", lambda _: f"<w:body>{body}</w:body>".encode(), content, flags=re.DOTALL
        )

    def document_relations(name: str, content: bytes) -> tuple[str, bytes]:
        return name, content.replace(b"</Relationships>", relations.encode() + b"</Relationships>")

    changes: dict[str, Change | None] = {
        "word/document.xml": document,
        "word/_rels/document.xml.rels": document_relations,
    }
    return rezipped(word(), changes, added)


def visio(text: str, parts: Mapping[str, str] = {}) -> bytes:
    """Return a Visio drawing with one page, "Plan", and one shape. `parts`: other contents of parts, by name without "visio/"."""
    main = 'xmlns="http://schemas.microsoft.com/office/visio/2012/main"'
    offices = "http://schemas.openxmlformats.org"
    kinds = "http://schemas.microsoft.com/visio/2010/relationships"

    def relations(**targets: str) -> str:
        found = (f'<Relationship Id="{kind}" Type="{kinds}/{kind}" Target="{name}"/>' for kind, name in targets.items())
        return f'<Relationships xmlns="{offices}/package/2006/relationships">{"".join(found)}</Relationships>'

    listed = f'{main} xmlns:r="{offices}/officeDocument/2006/relationships"'
    made = {
        "_rels/document.xml.rels": relations(pages="pages/pages.xml", masters="masters/masters.xml", comments="comments.xml"),
        "document.xml": f"<VisioDocument {main}/>",
        "pages/_rels/pages.xml.rels": relations(page="page1.xml"),
        "pages/pages.xml": f'<Pages {listed}><Page ID="7" Name="Plan"><Rel r:id="page"/></Page></Pages>',
        "pages/page1.xml": f'<PageContents {main}><Shapes><Shape ID="1"><Text>{text}</Text></Shape></Shapes></PageContents>',
        "masters/_rels/masters.xml.rels": relations(master="master1.xml"),
        "masters/masters.xml": f'<Masters {listed}><Master ID="2"><Rel r:id="master"/></Master></Masters>',
        "masters/master1.xml": f'<MasterContents {main}><Shapes><Shape ID="5"><Text>Decision</Text></Shape></Shapes></MasterContents>',
        "comments.xml": f"<Comments {main}/>",
    }  # fmt: skip
    return zipped(
        {"[Content_Types].xml": f'<Types xmlns="{offices}/package/2006/content-types"/>', "_rels/.rels": relations(document="visio/document.xml")}
        | {f"visio/{name}": content for name, content in (made | parts).items()}
    )  # fmt: skip


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


def ole_package(name: str, data: bytes) -> bytes:
    """Return the stream of an OLE object that is a file (MS-OLEDS, 2.3.6): its name, its path, the path of a copy, the file."""
    title = name.encode() + b"\0"
    body = b"\x02\0" + title + b"C:\\x\\" + title + b"\0\0\3\0" + struct.pack("<I", len(title)) + title
    body += struct.pack("<I", len(data)) + data
    return struct.pack("<I", len(body)) + body


def compound(streams: Mapping[str, bytes]) -> bytes:
    """Return a compound file (MS-CFB) of version 3. `streams`: by their paths, with storages before a slash; none goes to the
    mini stream."""
    sector, end, none = 512, 0xFFFFFFFE, 0xFFFFFFFF
    nodes: dict[str, bytes | None] = {}
    for path, content in streams.items():
        for at, letter in enumerate(path):
            if letter == "/":
                nodes.setdefault(path[:at])
        nodes[path] = content.ljust(4096, b"\0") if content else b""
    paths = list(nodes)
    table: list[int] = []
    data, starts = b"", {}
    for path, content in nodes.items():
        count = -(-len(content or b"") // sector)
        starts[path] = len(table) if count else end
        table += [*range(len(table) + 1, len(table) + count), end] if count else []
        data += (content or b"").ljust(count * sector, b"\0")

    def children(parent: str) -> list[int]:
        inside = [path for path in paths if path.rpartition("/")[0] == parent]
        return [paths.index(path) + 1 for path in sorted(inside, key=lambda path: (len(path), path.upper()))]

    following = {}
    for parent in ["", *paths]:
        siblings = children(parent)
        following |= dict(zip(siblings, [*siblings[1:], none], strict=False))

    def entry(name: str, kind: int, right: int, child: int, start: int, size: int) -> bytes:
        encoded = name.encode("utf-16-le") + b"\0\0"
        links = struct.pack("<BBIII", kind, 1, none, right, child)
        length = struct.pack("<H", len(encoded))
        return encoded.ljust(64, b"\0") + length + links + bytes(36) + struct.pack("<IQ", start, size)

    directory = entry("Root Entry", 5, none, (children("") or [none])[0], end, 0)
    for number, path in enumerate(paths, 1):
        content = nodes[path]
        kind, child = (1, (children(path) or [none])[0]) if content is None else (2, none)
        directory += entry(path.rpartition("/")[2], kind, following[number], child, starts[path], len(content or b""))
    directory = directory.ljust(-(-len(directory) // sector) * sector, b"\0")
    first = len(table)
    table += [*range(first + 1, first + len(directory) // sector), end]
    sectors = 1
    while sectors * sector // 4 < len(table) + sectors:
        sectors += 1
    places = range(len(table), len(table) + sectors)
    table += [0xFFFFFFFD] * sectors
    header = struct.pack(
        "<8s16xHHHHH6xIIIIIIIII",
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        0x3E,
        3,
        0xFFFE,
        9,
        6,
        0,
        sectors,
        first,
        0,
        4096,
        end,
        0,
        end,
        0,
    )
    header += struct.pack("<109I", *places, *[none] * (109 - sectors))
    packed = struct.pack(f"<{len(table)}I", *table).ljust(sectors * sector, b"\xff")
    return header + data + directory + packed


def outlook(subject: str, body: str, streams: Mapping[str, bytes] = {}) -> bytes:
    """Return an Outlook message (MS-OXMSG). `streams`: further ones, for other properties and attachments."""
    return compound(
        {
            "__substg1.0_001A001F": "IPM.Note".encode("utf-16-le"),
            "__substg1.0_0037001F": subject.encode("utf-16-le"),
            "__substg1.0_1000001F": body.encode("utf-16-le"),
            "__properties_version1.0": bytes(32),
            **streams,
        }
    )


def tnef(subject: str, properties: Mapping[tuple[int, int], bytes], attached: Mapping[str, bytes] = {}) -> bytes:
    """Return a winmail.dat (MS-OXTNEF). `properties`: those with a length, by id and type."""

    def attribute(level: int, id: int, content: bytes) -> bytes:
        return struct.pack("<BII", level, id, len(content)) + content + struct.pack("<H", sum(content) & 0xFFFF)

    values = struct.pack("<I", len(properties))
    for (id, kind), value in properties.items():
        values += struct.pack("<HHII", kind, id, 1, len(value)) + value + bytes(-len(value) % 4)
    out = (
        b"\x78\x9f\x3e\x22\1\0"
        + attribute(1, 0x00018004, subject.encode("cp1252") + b"\0")
        + attribute(1, 0x00069003, values)
    )
    for name, content in attached.items():
        out += attribute(2, 0x00069002, bytes(14)) + attribute(2, 0x00018010, name.encode("cp1252") + b"\0")
        out += attribute(2, 0x0006800F, content)
    return out
