"""Decodes pages of unknown encoding."""

from __future__ import annotations

import codecs
import re

from everlong_server.engine.documents.formats.blocks import Notes

_SIGNATURES = {
    codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
    b"<\0": "utf-16-le", b"\0<": "utf-16-be",
}  # fmt: skip
_DECLARED = re.compile(
    rb"""<\?xml\s[^>]*?encoding\s*=\s*["']([\w.:-]+)|<meta\s[^>]*?charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE
)
_TAG = re.compile(rb"<[^>]*>")
_CANDIDATES = [
    "cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "koi8_r", "iso8859_2", "cp932", "gb18030",
    "big5", "cp949", "euc_jp",
]  # fmt: skip
"""The legacy encodings of the WHATWG's encoding standard that pages still use. Rarer ones make a guess worse."""
_SAMPLE = 1 << 18
"""Number of bytes that are enough to recognise an encoding."""


def decode(data: bytes, notes: Notes, *, declared: str | None = None, part: str | None = None) -> str:
    """Decode a page or a text.

    Its encoding is, in this order: that of its byte order mark or first bytes; UTF-8, if it is valid as that; the declared
    one, by `declared` or the page, unless it is UTF-8; UTF-8 with damaged characters, if most are valid; a guess.
    """
    for signature, signed in _SIGNATURES.items():
        if data.startswith(signature):
            return data.decode(signed, "replace")
    # ISO-2022 writes other characters in ASCII bytes after an escape, so such pages are valid UTF-8 by accident.
    if b"\x1b" not in data:
        try:
            return data.decode()
        except UnicodeDecodeError:
            pass
    encoding: str | None = _known(declared) or _declared_in(data)
    text = data.decode(encoding or "utf-8", "replace")
    damaged = text.count("\N{REPLACEMENT CHARACTER}")
    if damaged and encoding is None and 2 * damaged > sum(character > "\x7f" for character in text):
        encoding = _guess(data)
        text = data.decode(encoding, "replace")
        damaged = text.count("\N{REPLACEMENT CHARACTER}")
        notes.add(f"it is not UTF-8 and declares no other encoding; it was read as {encoding}", part=part)
    if damaged:
        notes.add(f"{damaged} damaged characters were replaced by U+FFFD", part=part)
    return text


def _declared_in(data: bytes) -> str | None:
    """Return the encoding that a page declares; None for UTF-8, which it is not, and for unknown ones."""
    declared = _DECLARED.search(data[:4096])
    return _known((declared[1] or declared[2]).decode("ascii", "replace")) if declared else None


def _known(name: str | None) -> str | None:
    try:
        codec = codecs.lookup(name) if name else None
    except (LookupError, ValueError):
        return None
    if codec is None or not codec._is_text_encoding or codec.name.startswith("utf"):
        return None
    # As in browsers, Latin-1 means Windows-1252.
    return "cp1252" if codec.name in ("iso8859-1", "ascii") else codec.name


def _guess(data: bytes) -> str:
    """Return the likeliest legacy encoding. As in browsers, it is Windows-1252 unless another one fits better."""
    from charset_normalizer import from_bytes  # noqa: PLC0415 - optional, and only the conversion process needs it

    words = _TAG.sub(b" ", data)
    first = next((at for at, byte in enumerate(words) if byte > 0x7F), 0)
    matches = from_bytes(words[max(0, first - _SAMPLE // 2) :][:_SAMPLE], cp_isolation=_CANDIDATES)
    best = matches.best()
    if best is None or any(match.encoding == "cp1252" and match.chaos <= best.chaos for match in matches):
        return "cp1252"
    return best.encoding
