"""ZIP and tar archives."""

from __future__ import annotations

import gzip
import io
import tarfile
import warnings
import zipfile

from tests import files
from tests.server.engine.documents.formats.reports import Report


def z(*entries, comp=zipfile.ZIP_DEFLATED):
    o = io.BytesIO()
    with zipfile.ZipFile(o, "w", comp) as p:
        for n, c in entries:
            p.writestr(n, c)
    return o.getvalue()


def tar(mode, *entries):
    o = io.BytesIO()
    with tarfile.open(fileobj=o, mode=mode) as t:
        for n, c in entries:
            i = tarfile.TarInfo(n)
            i.size = len(c)
            t.addfile(i, io.BytesIO(c))
    return o.getvalue()


def rawname(name):  # a name in bytes without the UTF-8 flag
    d = z(("XXXXXXXXXXXXXXXXXXXX"[: len(name)], b"Odd words"))
    return d.replace(b"X" * len(name), name)


def dup():

    warnings.simplefilter("ignore")
    return z(("a.txt", "First"), ("a.txt", "Second"))


def setflag(d):  # encrypt flag
    i = d.index(b"PK\x01\x02")
    j = d.index(b"PK\x03\x04")
    b = bytearray(d)
    b[i + 8] |= 1
    b[j + 6] |= 1
    return bytes(b)


def badcrc(d):
    b = bytearray(d)
    i = d.index(b"PK\x01\x02")
    b[i + 16] ^= 255
    return bytes(b)


REPORTS = [
    Report("absolute", "a.zip", z(("/etc/a.txt", "Words")), ["Words"], [], []),
    Report("dotdot", "a.zip", z(("../../a.txt", "Words")), ["Words"], [], []),
    Report("backslash", "a.zip", z(("dir\\a.txt", "Words")), ["Words"], [], []),
    Report("cp437", "a.zip", rawname("Gr\x94\xe1e.txt".encode("latin-1")), ["Größe.txt", "Odd words"], [], []),
    Report("utf8-noflag", "a.zip", rawname("Größe.txt".encode()), ["Größe.txt", "Odd words"], [], []),
    Report("sjis", "a.zip", rawname("日本語.txt".encode("cp932")), ["日本語.txt", "Odd words"], [], []),
    Report("cp866", "a.zip", rawname("Договор.txt".encode("cp866")), ["Договор.txt", "Odd words"], [], []),
    Report("newline-name", "a.zip", z(("a\nb\x07.txt", "Words")), ["Words"], ["\x07"], []),
    Report("surrogate-name", "a.zip", rawname(b"a\xff\xfe.txt"), ["Odd words"], [], []),
    Report("long-name", "a.zip", z(("a" * 5000 + ".txt", "Words")), ["Words"], [], []),
    Report("dup", "a.zip", dup(), ["First", "Second"], [], []),
    Report("dup-case", "a.zip", z(("A.txt", "First"), ("a.txt", "Second")), ["First", "Second"], [], []),
    Report("space-name", "a.zip", z((" a .txt ", "Words")), ["Words"], [], []),
    Report("dir-only", "a.zip", z(("d/", ""), ("d/a.txt", "Words")), ["Words"], [], []),
    Report("lzma", "a.zip", z(("a.txt", "Words" * 50), comp=zipfile.ZIP_LZMA), ["Words"], [], []),
    Report("bz2", "a.zip", z(("a.txt", "Words" * 50), comp=zipfile.ZIP_BZIP2), ["Words"], [], []),
    Report("encrypted", "a.zip", setflag(z(("a.txt", "Words"), ("b.txt", "Others"))), ["Others"], [], ["a.txt"]),
    Report("bad-crc", "a.zip", badcrc(z(("a.txt", "Words"), ("b.txt", "Others"))), ["Others"], [], ["a.txt"]),
    Report("truncated", "a.zip", z(("a.txt", "Words"), ("b.txt", "Others"))[:-40], ["Words", "Others"], [], ["end"]),
    Report(
        "macosx",
        "a.zip",
        z(("a.txt", "Words"), ("__MACOSX/._a.txt", "junk"), (".DS_Store", "junk2")),
        ["Words"],
        ["junk"],
        [],
    ),
    Report("nested-docx", "a.zip", z(("a.docx", files.word(("Normal", "Docx words")))), ["Docx words"], [], []),
    Report(
        "tar",
        "a.tar",
        tar("w", ("a.txt", b"Words"), ("d/b.html", b"<html><p>Others")),
        ["a.txt", "Words", "Others"],
        [],
        [],
    ),
    Report("tgz", "a.tar.gz", tar("w:gz", ("a.txt", b"Words")), ["Words"], [], []),
    Report("tar.bz2", "a.tar.bz2", tar("w:bz2", ("a.txt", b"Words")), ["Words"], [], []),
    Report("tar.xz", "a.tar.xz", tar("w:xz", ("a.txt", b"Words")), ["Words"], [], []),
    Report("gz", "a.txt.gz", gzip.compress(b"Words in gzip"), ["Words in gzip"], [], []),
    Report("zip-in-tgz", "a.tgz", tar("w:gz", ("a.zip", z(("a.txt", "Words")))), ["Words"], [], []),
    Report(
        "many",
        "a.zip",
        z(*[(f"{i:04}.txt", f"Words {i}") for i in range(1200)]),
        ["Words 999"],
        ["Words 1100"],
        ["files after"],
    ),
    Report("word-folder", "a.zip", z(("word/notes.xml", "<a>Words</a>"), ("word/a.txt", "Others")), ["Others"], [], []),
    Report("emoji", "a.zip", z(("📄.txt", "Words")), ["📄.txt", "Words"], [], []),
]
