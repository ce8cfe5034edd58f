"""Map the encoding that a page or message declares to the one that it uses, which is often a superset."""

from __future__ import annotations

import codecs
import re

_BROADER = {
    "iso8859-1": "cp1252", "ascii": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874", "gb2312": "gb18030",
    "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949", "big5": "big5hkscs",
}  # fmt: skip
"""Encodings, by Python's names, and those with more characters that programs write under their names."""
_ALIASES = {
    "x-sjis": "cp932", "x-gbk": "gb18030", "x-x-big5": "big5hkscs", "x-euc-jp": "euc_jp", "windows-949": "cp949", "windows-874": "cp874",
    "dos-874": "cp874", "iso-8859-8-i": "cp1255", "iso-8859-8-e": "cp1255", "logical": "cp1255", "x-mac-roman": "mac_roman",
    "x-mac-cyrillic": "mac_cyrillic", "x-mac-ukrainian": "mac_cyrillic",
    **{f"x-cp{page}": f"cp{page}" for page in range(1250, 1259)},
}  # fmt: skip
"""Names of the WHATWG's encoding standard that Python does not know."""
_JAPANESE = re.compile(rb"\x1b\$[@B]([^\x1b]*)|\x1b\(I([^\x1b]*)|\x1b\([BJ]")
"""Characters of two bytes, of one byte, and the way back to ASCII, in ISO-2022-JP."""


def encoding_of(name: str | None) -> str | None:
    """Return Python's name for a declared encoding, as browsers understand it; None for UTF-8, UTF-16 and unknown ones."""
    label = (name or "").strip().lower()
    try:
        codec = codecs.lookup(_ALIASES.get(label, label)) if label else None
    except (LookupError, ValueError):
        return None
    if codec is None or not codec._is_text_encoding or codec.name.startswith("utf"):
        return None
    return _BROADER.get(codec.name, codec.name)


def japanese(data: bytes) -> str:
    """Decode ISO-2022-JP with the characters that Windows adds to it, such as ①, and that Python does not know there."""
    packed = _JAPANESE.sub(lambda part: _marked(part[1] or b"") + _marked(part[2] or b"", b"\x8e"), data)
    return packed.decode("euc_jisx0213", "replace")


def _marked(codes: bytes, before: bytes = b"") -> bytes:
    """Return the codes as EUC-JP writes them."""
    return b"".join(before + bytes([code | 0x80]) if code > 32 else bytes([code]) for code in codes)
