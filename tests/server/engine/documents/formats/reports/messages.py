"""E-mail."""

from __future__ import annotations

import base64

from tests import files
from tests.server.engine.documents.formats.reports import Report


def m(head, body):
    return (head.replace("\n", "\r\n") + "\r\n\r\n" + body.replace("\n", "\r\n")).encode()


HD = "From: Ada <ada@x.org>\nTo: bo@y.org\nSubject: Rent\nMIME-Version: 1.0\n"


def mixed(*parts, kind="mixed"):
    return m(
        HD + f'Content-Type: multipart/{kind}; boundary="B"', "".join("--B\n" + p + "\n" for p in parts) + "--B--\n"
    )


T = "Content-Type: text/plain; charset=utf-8\n\nPlain words"
ICS = "BEGIN:VCALENDAR\nBEGIN:VEVENT\nSUMMARY:Rent meeting\nLOCATION:Room 5\nDTSTART:20240102T100000Z\nEND:VEVENT\nEND:VCALENDAR"


def nest(depth: int) -> bytes:
    inner = m(HD + "Content-Type: text/plain", "Innermost words")
    for number in range(depth):
        head = (
            f'{HD}Content-Type: multipart/mixed; boundary="B{number}"\n\n--B{number}\nContent-Type: message/rfc822\n\n'
        )
        inner = head.replace("\n", "\r\n").encode() + inner + f"\r\n--B{number}--\r\n".encode()
    return inner


def multi(n):
    out = "Content-Type: text/plain\n\nDeep words\n"
    for i in range(n):
        out = f'Content-Type: multipart/mixed; boundary="b{i}"\n\n--b{i}\n{out}\n--b{i}--\n'
    return (HD + out).replace("\n", "\r\n").encode()


def b64(b):
    return base64.encodebytes(b).decode()


REPORTS = [
    Report(
        "simple", "a.eml", m(HD + "Content-Type: text/plain", "Body words"), ["Body words", "Subject: Rent"], [], []
    ),
    Report("no-ct", "a.eml", m("From: a@b\nSubject: x", "Body words"), ["Body words"], [], []),
    Report(
        "unknown-charset",
        "a.eml",
        m(HD + "Content-Type: text/plain; charset=unknown-8bit", "Body café"),
        ["Body café"],
        [],
        [],
    ),
    Report(
        "bad-charset",
        "a.eml",
        m(HD + 'Content-Type: text/plain; charset="iso-8859-1\\"', "Body words"),
        ["Body words"],
        [],
        [],
    ),
    Report(
        "boundary-lost-in-a-long-name",
        "a.eml",
        m(HD + f"Content-Type: multipart/mixed; boundar{'y' * 300}=B", f"--B\n{T}\n--B--\n"),
        ["Plain words"],
        [],
        [],
    ),
    Report(
        "bad-base64",
        "a.eml",
        m(HD + "Content-Type: text/plain\nContent-Transfer-Encoding: base64", "Qm9keSB3b3Jkcw"),
        ["Body words"],
        [],
        [],
    ),
    Report(
        "bad-cte",
        "a.eml",
        m(HD + "Content-Type: text/plain\nContent-Transfer-Encoding: x-unknown", "Body words"),
        ["Body words"],
        [],
        [],
    ),
    Report(
        "raw-header",
        "a.eml",
        "From: Adaé <a@b>\r\nSubject: Größe\r\nMIME-Version: 1.0\r\n\r\nBody".encode(),
        ["Größe"],
        [],
        [],
    ),
    Report(
        "raw-header-latin",
        "a.eml",
        "From: a <a@b>\r\nSubject: Größe\r\nMIME-Version: 1.0\r\n\r\nBody".encode("latin-1"),
        ["Größe"],
        [],
        [],
    ),
    Report(
        "encoded-split",
        "a.eml",
        m("From: a@b\nSubject: =?utf-8?B?R3LD?= =?utf-8?B?tsOfZQ==?=\nMIME-Version: 1.0", "Body"),
        ["Größe"],
        [],
        [],
    ),
    Report(
        "encoded-q",
        "a.eml",
        m("From: =?iso-8859-1?q?Ad=E1?= <a@b>\nSubject: =?gb2312?B?xOO6ww==?=\nMIME-Version: 1.0", "Body"),
        ["Adá", "你好"],
        [],
        [],
    ),
    Report(
        "rfc2231",
        "a.eml",
        mixed(
            T,
            "Content-Type: text/plain\nContent-Disposition: attachment; filename*=utf-8''Gr%C3%B6%C3%9Fe.txt\n\nAttached words",
        ),
        ["Größe.txt", "Attached words"],
        [],
        [],
    ),
    Report(
        "alt",
        "a.eml",
        mixed(T, "Content-Type: text/html\n\n<p>Html words</p>", kind="alternative"),
        ["Plain words"],
        ["Html words"],
        [],
    ),
    Report(
        "alt-empty-plain",
        "a.eml",
        mixed("Content-Type: text/plain\n\n \n", "Content-Type: text/html\n\n<p>Html words</p>", kind="alternative"),
        ["Html words"],
        [],
        [],
    ),
    Report(
        "calendar",
        "a.eml",
        mixed(T, "Content-Type: text/calendar; method=REQUEST\n\n" + ICS, kind="alternative"),
        ["Plain words", "Rent meeting"],
        [],
        [],
    ),
    Report("calendar-only", "a.eml", m(HD + "Content-Type: text/calendar", ICS), ["Rent meeting"], [], []),
    Report(
        "report",
        "a.eml",
        mixed(
            T,
            "Content-Type: message/delivery-status\n\nReporting-MTA: dns; x\n\nFinal-Recipient: rfc822; bo@y.org\nStatus: 5.1.1\nDiagnostic-Code: smtp; 550 no such user\n",
            "Content-Type: text/rfc822-headers\n\nSubject: Original subject\n",
            kind="report",
        ),
        ["Plain words", "no such user", "Original subject"],
        [],
        [],
    ),
    Report(
        "signed",
        "a.eml",
        mixed(
            T,
            "Content-Type: application/pgp-signature; name=signature.asc\n\n-----BEGIN PGP SIGNATURE-----\nabc",
            kind="signed",
        ),
        ["Plain words"],
        [],
        [],
    ),
    Report(
        "smime-opaque",
        "a.eml",
        m(
            HD
            + "Content-Type: application/pkcs7-mime; name=smime.p7m; smime-type=enveloped-data\nContent-Transfer-Encoding: base64",
            "MIAGCSqGSIb3DQEHA6CAMIACAQAx",
        ),
        [],
        [],
        ["encrypted"],
    ),
    Report(
        "attached-eml-octet",
        "a.eml",
        mixed(
            T,
            "Content-Type: application/octet-stream; name=fwd.eml\nContent-Transfer-Encoding: base64\n\n"
            + b64(m(HD + "Content-Type: text/plain", "Forwarded words")),
        ),
        ["Forwarded words"],
        [],
        [],
    ),
    Report(
        "attached-docx",
        "a.eml",
        mixed(
            T,
            "Content-Type: application/octet-stream; name=x.docx\nContent-Transfer-Encoding: base64\n\n"
            + b64(files.word(("Normal", "Docx words"))),
        ),
        ["Docx words"],
        [],
        [],
    ),
    Report(
        "attach-noname",
        "a.eml",
        mixed(
            T, "Content-Type: application/pdf\nContent-Transfer-Encoding: base64\n\n" + b64(files.pdf(["Pdf words."]))
        ),
        ["Pdf words."],
        [],
        [],
    ),
    Report(
        "inline-text-named",
        "a.eml",
        mixed(T, "Content-Type: text/plain; name=log.txt\nContent-Disposition: inline\n\nLog words"),
        ["Log words"],
        [],
        [],
    ),
    Report(
        "vcard",
        "a.eml",
        mixed(
            T,
            "Content-Type: text/vcard; name=ada.vcf\nContent-Disposition: attachment\n\nBEGIN:VCARD\nFN:Ada Quill\nEND:VCARD",
        ),
        ["Ada Quill"],
        [],
        [],
    ),
    Report("nested-3", "a.eml", nest(3), ["Innermost words"], [], []),
    Report("nested-30", "a.eml", nest(30), ["Rent"], [], []),
    Report("multipart-deep", "a.eml", multi(90), ["Deep words"], [], []),
    Report("multipart-deep-2000", "a.eml", multi(2000), ["Rent"], [], []),
    Report("no-closing", "a.eml", mixed(T)[:-8], ["Plain words"], [], []),
    Report(
        "no-boundary",
        "a.eml",
        m(HD + "Content-Type: multipart/mixed", "--B\nContent-Type: text/plain\n\nLost words"),
        ["Lost words"],
        [],
        [],
    ),
    Report(
        "wrong-boundary",
        "a.eml",
        m(HD + 'Content-Type: multipart/mixed; boundary="X"', "--B\nContent-Type: text/plain\n\nLost words\n--B--"),
        ["Lost words"],
        [],
        [],
    ),
    Report(
        "mbox",
        "a.mbox",
        b"From ada@x.org Mon Jan  1 00:00:00 2024\r\nFrom: Ada <a@b>\r\nSubject: First\r\n\r\nWords one\r\n\r\nFrom bo@x.org Mon Jan  1 00:00:00 2024\r\nFrom: Bo <a@b>\r\nSubject: Second\r\nContent-Type: text/html\r\n\r\n<p>Words two</p>\r\n",
        ["Subject: First", "Words one", "Subject: Second", "Words two"],
        ["<p>"],
        [],
    ),
    Report(
        "from-line-eml",
        "a.eml",
        b"From ada@x.org Mon Jan  1 00:00:00 2024\r\nFrom: Ada <a@b>\r\nSubject: First\r\n\r\nWords one\r\n",
        ["Subject: First", "Words one"],
        [],
        [],
    ),
    Report(
        "emlx",
        "a.emlx",
        b'90\nFrom: Ada <a@b>\nSubject: First\nMIME-Version: 1.0\nContent-Type: text/html\n\n<p>Words one</p>\n<?xml version="1.0"?><plist></plist>',
        ["Subject: First", "Words one"],
        ["<p>"],
        [],
    ),
    Report(
        "blank-first",
        "a.eml",
        b"\r\n\r\nFrom: Ada <a@b>\r\nSubject: First\r\nMIME-Version: 1.0\r\nContent-Type: text/html\r\n\r\n<p>Words one</p>\r\n",
        ["Subject: First", "Words one"],
        ["<p>"],
        [],
    ),
    Report(
        "bom-first",
        "a.eml",
        b"\xef\xbb\xbfFrom: Ada <a@b>\r\nSubject: First\r\n\r\nWords one\r\n",
        ["From: Ada", "Words one"],
        [],
        [],
    ),
    Report("lf-only", "a.eml", b"From: Ada <a@b>\nSubject: First\n\nWords one\n", ["Words one"], [], []),
    Report("cr-only", "a.eml", b"From: Ada <a@b>\rSubject: First\r\rWords one\r", ["Words one"], [], []),
    Report(
        "uuencode",
        "a.eml",
        m(HD + "Content-Type: text/plain", "See file\nbegin 644 a.txt\n%:&5L;&\\\n`\nend\nafter"),
        ["See file", "after"],
        [],
        [],
    ),
    Report(
        "flowed",
        "a.eml",
        m(HD + "Content-Type: text/plain; format=flowed", "A long line that \nflows on."),
        ["A long line that flows on."],
        [],
        [],
    ),
    Report("enriched", "a.eml", m(HD + "Content-Type: text/enriched", "<bold>Now</bold> is"), ["is"], [], []),
    Report(
        "bcc-reply",
        "a.eml",
        m(HD + "Reply-To: rt@x.org\nBcc: hid@x.org\nContent-Type: text/plain", "Body"),
        ["hid@x.org", "rt@x.org"],
        [],
        [],
    ),
    Report(
        "related-html",
        "a.eml",
        mixed(
            'Content-Type: text/html\n\n<p>Html words <img src="cid:1" alt="logo"></p>',
            "Content-Type: image/png\nContent-ID: <1>\nContent-Transfer-Encoding: base64\n\niVBORw0K",
            kind="related",
        ),
        ["Html words"],
        [],
        [],
    ),
    Report("date-bad", "a.eml", m("From: a@b\nDate: not a date\nSubject: x", "Body"), ["not a date"], [], []),
    Report(
        "many-headers",
        "a.eml",
        m("From: a@b\n" + "\n".join(f"X-{i}: y" for i in range(3000)) + "\nSubject: Late subject", "Body words"),
        ["Late subject", "Body words"],
        [],
        [],
    ),
    Report(
        "long-received-first",
        "a.eml",
        (
            "Received: from x\r\n" * 400
            + "MIME-Version: 1.0\r\nFrom: a@b\r\nSubject: S\r\nContent-Type: text/html\r\n\r\n<p>Words</p>"
        ).encode(),
        ["Subject: S", "Words"],
        ["<p>"],
        [],
    ),
    Report(
        "html-only-cp1252",
        "a.eml",
        (HD.replace("\n", "\r\n") + "Content-Type: text/html; charset=us-ascii\r\n\r\n").encode() + b"<p>caf\xe9</p>",
        ["café"],
        [],
        [],
    ),
    Report(
        "partial",
        "a.eml",
        m(HD + 'Content-Type: message/partial; id="x"; number=1; total=2', "Subject: y\n\nPart words"),
        ["Part words"],
        [],
        [],
    ),
    Report(
        "alt-rtf",
        "a.eml",
        mixed(
            "Content-Type: text/plain\n\nPlain words",
            "Content-Type: text/rtf\n\n{\\rtf1 Rtf words}",
            kind="alternative",
        ),
        ["Plain words"],
        [],
        [],
    ),
    Report(
        "alternative-in-mixed-amp",
        "a.eml",
        mixed(
            "Content-Type: text/x-amp-html\n\n<html>amp</html>",
            "Content-Type: text/html\n\n<p>Html words</p>",
            kind="alternative",
        ),
        ["Html words"],
        ["amp"],
        [],
    ),
]
