"""Texts whose encoding has another name than the one that they declare, or none."""

from __future__ import annotations

import base64

from tests.server.engine.documents.formats.reports import Report


def web(words: str, encoding: str, declared: str) -> bytes:
    return f"<!doctype html><html><head><meta charset={declared}></head><body>{words}</body></html>".encode(encoding)


def mail(words: bytes, declared: str) -> bytes:
    head = f"From: a@b.c\r\nSubject: s\r\nMIME-Version: 1.0\r\nContent-Type: text/plain; charset={declared}\r\n\r\n"
    return head.encode() + words


def subject(words: bytes, declared: str) -> bytes:
    written = base64.b64encode(words).decode()
    return f"From: a@b.c\r\nSubject: =?{declared}?B?{written}?=\r\n\r\nBody.\r\n".encode()


PREMIER, STATION, SYLLABLES, CANTONESE, THAI, CITY = (
    "朱镕基总理",
    "①髙橋～",
    "똠방각하",
    "喺度嘅嘢",
    "ภาษาไทย “x”",
    "İstanbul “şehir”",
)
NEC = b"\x1b$B-!F|K\\\x1b(B words"
FRENCH = "Le café était fermé à Noël.\rIl a dit : « déjà » et ’l’être’.\rNous sommes allés à l’hôtel."
REPORTS = [
    Report("gbk-named-gb2312", "a.html", web(PREMIER, "gbk", "gb2312"), [PREMIER], [], []),
    Report("windows-31j-named-shift-jis", "a.html", web(STATION, "cp932", "Shift_JIS"), [STATION], [], []),
    Report("windows-949-named-euc-kr", "a.html", web(SYLLABLES, "cp949", "euc-kr"), [SYLLABLES], [], []),
    Report("hkscs-named-big5", "a.html", web(CANTONESE, "big5hkscs", "big5"), [CANTONESE], [], []),
    Report("windows-874-named-tis-620", "a.html", web(THAI, "cp874", "tis-620"), [THAI], [], []),
    Report("windows-1254-named-latin-5", "a.html", web(CITY, "cp1254", "iso-8859-9"), [CITY], [], []),
    Report("hebrew-in-logical-order", "a.html", web("שלום", "iso8859_8", "iso-8859-8-i"), ["שלום"], [], []),
    Report("windows-874", "a.html", web(THAI, "cp874", "windows-874"), [THAI], [], []),
    Report("x-mac-cyrillic", "a.html", web("Привет, мир", "mac_cyrillic", "x-mac-cyrillic"), ["Привет, мир"], [], []),
    Report("mail-gbk-named-gb2312", "a.eml", mail(PREMIER.encode("gbk"), "gb2312"), [PREMIER], [], []),
    Report("mail-of-outlook-in-iso-2022-jp", "a.eml", mail(NEC, "iso-2022-jp"), ["①日本 words"], [], []),
    Report("subject-gbk-named-gb2312", "a.eml", subject(PREMIER.encode("gbk"), "gb2312"), [PREMIER], [], []),
    Report("subject-named-shift-jis", "a.eml", subject(STATION.encode("cp932"), "shift_jis"), [STATION], [], []),
    Report("subject-of-outlook", "a.eml", subject(NEC, "iso-2022-jp"), ["①日本 words"], [], []),
    Report("subject-windows-874", "a.eml", subject("ภาษาไทย".encode("cp874"), "windows-874"), ["ภาษาไทย"], [], []),
    Report("text-in-thai", "a.txt", "ภาษาไทยเป็นภาษาที่มีระดับเสียงของคำแน่นอน".encode("cp874"), ["ภาษาไทยเป็น"], [], ["cp874"]),
    Report("text-of-an-old-macintosh", "a.txt", FRENCH.encode("mac_roman"), ["café était fermé à Noël"], [], ["mac-roman"]),
    Report("rtf-in-utf-8", "a.rtf", r"{\rtf1\ansi café \u233\'e9 日本}".encode(), ["café é 日本"], [], []),
]  # fmt: skip
