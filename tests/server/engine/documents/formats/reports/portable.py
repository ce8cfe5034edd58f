"""PDF files."""

from __future__ import annotations

from tests.files import pdf, pdf_lines, pdf_of
from tests.server.engine.documents.formats.reports import Report

L = pdf_lines((72, 700, "Body words on the page."))


def annot(a, *objs, content=L):
    return pdf_of(content, page="/Annots [6 0 R]", objects=[a, *objs])


def appearance(t):
    return f"<< /Type /XObject /Subtype /Form /BBox [0 0 200 50] /Resources << /Font << /F1 3 0 R >> >> /Length {len(t)} >>\nstream\n{t}\nendstream"


def stream(d, extra=""):
    return f"<< {extra} /Length {len(d)} >>\nstream\n{d}\nendstream"


LAB = "/PageLabels << /Nums [0 << /S /r >> 2 << /S /D /St 1 >>] >>"


def labelled():
    d = pdf(["Preface.", "More preface.", "Chapter."])
    return d.replace(b"/Type /Catalog", b"/Type /Catalog " + LAB.encode())


REPORTS = [
    Report("labels", "a.pdf", labelled(), ["Preface.", "Chapter."], [], []),
    Report(
        "freetext",
        "a.pdf",
        annot(
            "<< /Type /Annot /Subtype /FreeText /Rect [10 10 200 60] /DA (/F1 12 Tf) /Contents (Typed on the page) >>"
        ),
        ["Typed on the page"],
        [],
        [],
    ),
    Report(
        "freetext-ap",
        "a.pdf",
        annot(
            "<< /Type /Annot /Subtype /FreeText /Rect [10 10 200 60] /AP << /N 7 0 R >> /DA (/F1 12 Tf) >>",
            appearance("BT /F1 12 Tf 5 5 Td (Drawn free text) Tj ET"),
        ),
        ["Drawn free text"],
        [],
        [],
    ),
    Report(
        "freetext-both",
        "a.pdf",
        annot(
            "<< /Type /Annot /Subtype /FreeText /Rect [10 10 200 60] /Contents (Same words) /AP << /N 7 0 R >> >>",
            appearance("BT /F1 12 Tf 5 5 Td (Same words) Tj ET"),
        ),
        ["Same words"],
        ["Same words Same words"],
        [],
    ),
    Report(
        "freetext-rc",
        "a.pdf",
        annot("<< /Type /Annot /Subtype /FreeText /Rect [10 10 200 60] /RC (<body><p>Rich words</p></body>) >>"),
        ["Rich words"],
        [],
        [],
    ),
    Report(
        "stamp",
        "a.pdf",
        annot(
            "<< /Type /Annot /Subtype /Stamp /Name /Approved /Rect [10 10 200 60] /AP << /N 7 0 R >> >>",
            appearance("BT /F1 12 Tf 5 5 Td (APPROVED by Ada) Tj ET"),
        ),
        ["APPROVED by Ada"],
        [],
        [],
    ),
    Report(
        "stamp-name",
        "a.pdf",
        annot("<< /Type /Annot /Subtype /Stamp /Name /Confidential /Rect [10 10 200 60] >>"),
        ["Confidential"],
        [],
        [],
    ),
    Report(
        "ink",
        "a.pdf",
        annot("<< /Type /Annot /Subtype /Ink /Rect [10 10 200 60] /InkList [[10 10 20 20 30 30]] >>"),
        ["Body words"],
        [],
        ["drawn"],
    ),
    Report(
        "highlight",
        "a.pdf",
        annot(
            "<< /Type /Annot /Subtype /Highlight /Rect [72 695 120 712] /QuadPoints [72 712 120 712 72 695 120 695] /Contents (Check this) /T (Ada) >>"
        ),
        ["[Comment by Ada] Check this"],
        [],
        [],
    ),
    Report(
        "highlight-quote",
        "a.pdf",
        annot(
            "<< /Type /Annot /Subtype /Highlight /Rect [72 695 99 712] /QuadPoints [72 712 99 712 72 695 99 695] /Contents (Check this) >>"
        ),
        ["Check this"],
        [],
        [],
    ),
    Report(
        "fileattach",
        "a.pdf",
        annot(
            "<< /Type /Annot /Subtype /FileAttachment /Rect [10 10 30 30] /Contents (See it) /FS 7 0 R >>",
            "<< /Type /Filespec /F (n.txt) /EF << /F 8 0 R >> >>",
            stream("Attached words", "/Type /EmbeddedFile"),
        ),
        ["Attached words"],
        [],
        [],
    ),
    Report(
        "popup-reply",
        "a.pdf",
        pdf_of(
            L,
            page="/Annots [6 0 R 7 0 R]",
            objects=[
                "<< /Type /Annot /Subtype /Text /Rect [1 1 9 9] /Contents (First note) /T (Ada) >>",
                "<< /Type /Annot /Subtype /Text /Rect [1 1 9 9] /IRT 6 0 R /Contents (A reply) /T (Bo) >>",
            ],
        ),
        ["First note", "A reply"],
        [],
        [],
    ),
    Report(
        "form-xobject",
        "a.pdf",
        pdf_of(L + " /X1 Do", page="", objects=[])
        .replace(b"/Font << /F1 3 0 R >>", b"/Font << /F1 3 0 R >> /XObject << /X1 6 0 R >>")
        .replace(
            b"trailer",
            b"6 0 obj\n" + appearance("BT /F1 12 Tf 5 5 Td (In a form) Tj ET").encode() + b"\nendobj\ntrailer",
        ),
        ["In a form"],
        [],
        [],
    ),
    Report("junk-before", "a.pdf", b"junk\n" * 50 + pdf(["Late words."]), ["Late words."], [], []),
    Report("junk-after", "a.pdf", pdf(["Early words."]) + b"\0" * 3000, ["Early words."], [], []),
    Report("truncated", "a.pdf", pdf(["Cut words."])[:-120], ["Cut words."], [], []),
    Report("no-startxref", "a.pdf", pdf(["Cut words."]).replace(b"startxref", b"startxxxx"), ["Cut words."], [], []),
    Report("bad-xref", "a.pdf", pdf(["Cut words."]).replace(b"xref\n0", b"xref\n9"), ["Cut words."], [], []),
    Report("count-lie", "a.pdf", pdf(["One.", "Two."]).replace(b"/Count 2", b"/Count 9"), ["One.", "Two."], [], []),
    Report("count-neg", "a.pdf", pdf(["One.", "Two."]).replace(b"/Count 2", b"/Count -1"), ["One.", "Two."], [], []),
    Report(
        "hyphen",
        "a.pdf",
        pdf_of(pdf_lines((72, 700, "The thermo-"), (72, 686, "stat is broken."))),
        ["thermostat"],
        [],
        [],
    ),
    Report(
        "invisible", "a.pdf", pdf_of("BT 3 Tr /F1 12 Tf 72 700 Td (Ocr layer words) Tj ET"), ["Ocr layer words"], [], []
    ),
    Report(
        "duplicate-bold",
        "a.pdf",
        pdf_of("BT /F1 12 Tf 72 700 Td (Bold) Tj ET BT /F1 12 Tf 72.3 700 Td (Bold) Tj ET"),
        ["Bold"],
        ["Bold Bold", "BoldBold", "BBoolldd"],
        [],
    ),
    Report(
        "ligature-fi",
        "a.pdf",
        pdf_of("BT /F1 12 Tf 72 700 Td (\\256nance) Tj ET").replace(
            b"/Encoding /WinAnsiEncoding",
            b"/Encoding << /Type /Encoding /BaseEncoding /WinAnsiEncoding /Differences [174 /fi] >>",
        ),
        ["finance"],
        ["\ufb01"],
        [],
    ),
    Report("rotated", "a.pdf", pdf_of(L, page="/Rotate 90"), ["Body words on the page."], [], []),
    Report(
        "cropped",
        "a.pdf",
        pdf_of(L + pdf_lines((72, 100, "Outside.")), page="/CropBox [0 600 612 792]"),
        ["Body words"],
        [],
        [],
    ),
    Report("ocg-hidden", "a.pdf", pdf_of("/OC /MC0 BDC " + L + " EMC"), ["Body words"], [], []),
    Report(
        "actualtext",
        "a.pdf",
        pdf_of("/Span << /ActualText (Real words) >> BDC BT /F1 12 Tf 72 700 Td (xq) Tj ET EMC"),
        ["Real words"],
        [],
        [],
    ),
    Report(
        "checkbox-as",
        "a.pdf",
        pdf_of(
            L,
            page="/Annots [6 0 R]",
            catalog="/AcroForm << /Fields [6 0 R] >>",
            objects=[
                "<< /Type /Annot /Subtype /Widget /FT /Btn /T (Paid) /Rect [10 10 20 20] /V /Yes /AS /Yes /AP << /N << /Yes 7 0 R /Off 7 0 R >> >> >>",
                appearance(""),
            ],
        ),
        ["Paid: [x]"],
        [],
        [],
    ),
    Report(
        "field-text",
        "a.pdf",
        pdf_of(
            L,
            page="/Annots [6 0 R]",
            catalog="/AcroForm << /Fields [6 0 R] >>",
            objects=["<< /Type /Annot /Subtype /Widget /FT /Tx /T (Name) /V (Ida Roth) /Rect [10 10 90 20] >>"],
        ),
        ["Name: Ida Roth"],
        [],
        [],
    ),
    Report(
        "field-parent",
        "a.pdf",
        pdf_of(
            L,
            page="/Annots [7 0 R]",
            catalog="/AcroForm << /Fields [6 0 R] >>",
            objects=[
                "<< /FT /Tx /T (Name) /V (Ida Roth) /Kids [7 0 R] >>",
                "<< /Type /Annot /Subtype /Widget /Parent 6 0 R /Rect [10 10 90 20] >>",
            ],
        ),
        ["Name: Ida Roth"],
        [],
        [],
    ),
    Report(
        "field-password",
        "a.pdf",
        pdf_of(
            L,
            page="/Annots [6 0 R]",
            catalog="/AcroForm << /Fields [6 0 R] >>",
            objects=["<< /Type /Annot /Subtype /Widget /FT /Tx /Ff 8192 /T (Pw) /V (secret) /Rect [10 10 90 20] >>"],
        ),
        ["Body"],
        ["secret"],
        [],
    ),
    Report(
        "field-push",
        "a.pdf",
        pdf_of(
            L,
            page="/Annots [6 0 R]",
            catalog="/AcroForm << /Fields [6 0 R] >>",
            objects=[
                "<< /Type /Annot /Subtype /Widget /FT /Btn /Ff 65536 /T (B) /MK << /CA (Send) >> /Rect [10 10 90 20] >>"
            ],
        ),
        ["Body"],
        [],
        [],
    ),
    Report(
        "sig",
        "a.pdf",
        pdf_of(
            L,
            page="/Annots [6 0 R]",
            catalog="/AcroForm << /Fields [6 0 R] >>",
            objects=[
                "<< /Type /Annot /Subtype /Widget /FT /Sig /T (Sig1) /Rect [10 10 200 60] /AP << /N 7 0 R >> >>",
                appearance("BT /F1 12 Tf 5 5 Td (Signed by Ada) Tj ET"),
            ],
        ),
        ["Signed by Ada"],
        [],
        [],
    ),
    Report(
        "hidden-annot",
        "a.pdf",
        annot("<< /Type /Annot /Subtype /FreeText /F 2 /Rect [10 10 200 60] /Contents (Hidden words) >>"),
        ["Body words"],
        [],
        [],
    ),
    Report(
        "line-annot",
        "a.pdf",
        annot("<< /Type /Annot /Subtype /Line /Rect [10 10 200 60] /L [1 1 9 9] /Contents (A measure) >>"),
        ["A measure"],
        [],
        [],
    ),
    Report(
        "outline",
        "a.pdf",
        pdf_of(
            L,
            catalog="/Outlines 6 0 R",
            objects=[
                "<< /Type /Outlines /First 7 0 R /Last 7 0 R /Count 1 >>",
                "<< /Title (Chapter One) /Parent 6 0 R /Dest [4 0 R /Fit] >>",
            ],
        ),
        ["Body words"],
        [],
        [],
    ),
    Report("cr-only", "a.pdf", pdf(["Mac words."]).replace(b"\n", b"\r"), ["Mac words."], [], []),
    Report("loop-tree", "a.pdf", pdf(["One."]).replace(b"/Kids [5 0 R]", b"/Kids [5 0 R 2 0 R]"), ["One."], [], []),
]
