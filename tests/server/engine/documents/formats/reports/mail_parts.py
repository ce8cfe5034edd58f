"""Parts of e-mails: heads, bodies, attachments, and nesting of any depth."""

from __future__ import annotations

import base64


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
