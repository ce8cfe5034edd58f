"""Decodes pages and texts of unknown encoding."""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import mean

from everlong_server.engine.documents.formats.blocks import Notes, Unreadable
from everlong_server.engine.documents.formats.labels import encoding_of, japanese
from everlong_server.engine.documents.formats.plausible import odd_share

_SIGNATURES = {
    codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
    b"<\0": "utf-16-le", b"\0<": "utf-16-be",
}  # fmt: skip
_DECLARED = re.compile(
    rb"""<\?xml\s[^>]*?encoding\s*=\s*["']([\w.:-]+)|<meta\s[^>]*?charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE
)
_TAG = re.compile(rb"<[^>]*>")
_OTHER = re.compile(rb"[\x80-\xff]")
_DOS_AND_MAC = ("cp850", "cp852", "mac-roman")
"""Encodings of old computers."""
_LATIN = ("cp1252", "cp1250", "cp1254", "cp1257", "cp1258", "iso8859-2", *_DOS_AND_MAC)
_CANDIDATES = (
    *_LATIN, "cp1251", "cp1253", "cp1255", "cp1256", "cp874", "koi8-r", "koi8-u", "cp866", "iso8859-7", "cp932", "gb18030",
    "big5hkscs", "cp949", "euc-jp",
)  # fmt: skip
"""The encodings of texts that declare none. Rarer ones make a guess worse."""
_CONTROL = re.compile(rb"[\x80-\x9f]")
"""The bytes of most letters outside ASCII in encodings of DOS and Macintosh. The bytes of their other letters are mostly signs in
Windows-1252, and a sign inside a word is odd."""
_RUN = re.compile(rb"[\x80-\xff]+")
_LETTER = re.compile(rb"[A-Za-z]")
_AMONG_LETTERS = re.compile(rb"(?<=[A-Za-z])[\x84-\xff](?![\x80-\xff])|(?<![\x80-\xff])[\x84-\xff](?=[A-Za-z])")
"""A byte that is not ASCII, next to a letter of ASCII and no other such byte. Those up to 83 also begin Japanese letters."""
_SIGN = re.compile(
    rb"(?<![A-Za-z\x80-\xff])[\xa0\xa2-\xa7\xa9\xae\xb0\xb1\xb4\xb7\xbc-\xbe\x95](?![A-Za-z\x80-\xff])"  # © ± · ½ and others, alone
    rb"|(?<![A-Za-z])[\x80\x85\x91-\x94\x96\x97\xab\xbb]+|[\x80\x85\x91-\x94\x96\x97\xab\xbb]+(?![A-Za-z])"  # quotes, dashes, €
    rb"|(?<=\d)[\xaa\xba](?![A-Za-z\x80-\xff])|(?<=[Nn])[\xb0\xba](?=\s?\d)"  # 3ª, 5º, Nº 5
    rb"|\x92|\xb0(?=[CF]\b)|(?<=\d)\xb5|(?<=\d )\xb5|(?<=[A-Za-z])[\xae\x99](?![A-Za-z])"  # ’, °C, 5 µm, ® and ™
)
"""Signs of Windows-1252 where they are no letters of another encoding."""
_ALONE = re.compile(rb"(?<![A-Za-z\x80-\xff])[\xa0-\xff](?![A-Za-z\x80-\xff])")
"""A byte that has no letter beside it, so that nothing tells its encoding. In those of old computers, letters are often below a0."""
_MARGIN = 1.1
"""How many times better another encoding must fit than the preferred one."""
FONT_CHARSETS = {
    77: "mac_roman", 128: "cp932", 129: "cp949", 130: "johab", 134: "gb18030", 136: "big5hkscs", 161: "cp1253", 162: "cp1254",
    163: "cp1258", 177: "cp1255", 178: "cp1256", 186: "cp1257", 204: "cp1251", 222: "cp874", 238: "cp1250", 254: "cp437",
}  # fmt: skip
"""The encodings of fonts in Office files, by the number of their character set; the others' is Windows-1252."""
_SAMPLE = 1 << 18
"""Number of bytes that are enough to recognise an encoding."""
_BEFORE = 64
"""Bytes of a sample before its first byte that is not ASCII."""
_MIN_VALID = 3
"""A text counts as UTF-8 if at least this many characters outside ASCII, damaged ones included, come with each damaged one. In other
encodings, some byte sequences are valid UTF-8 by accident."""
_PART = 4096
"""Number of bytes, about, of a part whose encoding is guessed on its own."""
_SPACE = re.compile(rb"\s")
_WORD = re.compile(r"[^\W\d_]{2,}")
_PYTHON_NAMES = {"euc_jis_2004": "euc_jp", "shift_jis_2004": "cp932"}
"""For an encoding that chardet answers, the one that it was asked about. Both have Python's names."""
_POWER = 4
"""How strongly odd characters count against an encoding."""
_MIN_SINGLE = 225
"""Minimum number of bytes that are a character alone, in an encoding of single bytes. Other encodings have fewer."""
_CONTROLS = bytes({*range(32), 127} - {*b"\t\n\f\r"})
_NONE = "ascii"
"""Stands for none of the candidates."""
_PIECE = 1 << 20
_ODD_CATEGORIES = ("Cc", "Cn", "Co", "Cs")
_ODD_SHARE = 0.02
"""Share of control characters and unassigned ones from which on bytes are no text."""
_MIN_UTF16 = 8
"""Bytes from which on a text is recognised as UTF-16 without a mark: too many shorter ones could be that by chance."""


def iso2022(head: bytes) -> str | None:
    """Return the encoding of a text whose escapes switch to Japanese or Korean characters, as ISO-2022; None for other texts.

    Such texts have bytes of ASCII alone, so that they are valid UTF-8 by accident.
    """
    for encoding, escape in (("iso2022_jp_2", rb"\x1b\$[@B]"), ("iso2022_kr", rb"\x1b\$\)C")):
        if re.search(escape, head) and head.isascii():
            try:
                decoder = codecs.getincrementaldecoder(encoding)()
                return encoding if "\x1b" not in decoder.decode(head) else None
            except UnicodeDecodeError:
                return None
    return None


def unmarked_utf16(head: bytes) -> str | None:
    """Return "utf-16-le" or "utf-16-be" for a text that begins with `head` and has no byte order mark; None for anything else.

    In such texts the NUL bytes of spaces and line ends are in every script. Half of the bytes of one in ASCII letters are NUL.
    """
    nuls = head.count(0)
    if not nuls or len(head) < _MIN_UTF16:
        return None
    is_ascii = all(31 < byte < 127 or byte in b"\0\t\n\f\r" for byte in head)
    if is_ascii and 5 * nuls < 2 * len(head):  # words in ASCII that NUL bytes end or separate
        return None
    scores = {}
    for order in ("utf-16-le", "utf-16-be"):
        text = head[: len(head) // 2 * 2].decode(order, "replace")
        if text and "\0" not in text and _odd(text) <= _ODD_SHARE * len(text):
            scores[order] = sum(character < "\x7f" for character in text)
    return max(scores, key=lambda order: scores[order], default=None)


def is_utf8(head: bytes) -> bool:
    """Whether the bytes are UTF-8, up to a character that may be cut at their end."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def has_controls(head: bytes) -> bool:
    """Whether bytes that are not UTF-8 have control characters as in a binary file, and not as in a text."""
    controls = sum(byte < 32 and byte not in b"\t\n\f\r\x1b" for byte in head)
    return controls > _ODD_SHARE * len(head)


def _odd(text: str) -> int:
    plain = text.translate({ord(character): None for character in "\t\n\f\r\ufeff"})
    return sum(unicodedata.category(character) in _ODD_CATEGORIES for character in plain)


def pieces(file: Path, notes: Notes, *, part: str | None = None) -> Iterator[str]:
    """Yield a plain text in pieces. Its encoding is chosen as by `decode`, except that there must be one that fits.

    Raises `Unreadable` if there is none, or the text has NUL characters.
    """
    encoding, is_guess = _of_file(file)
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    damaged = 0
    with file.open("rb") as stream:
        while True:
            data = stream.read(_PIECE)
            text = decoder.decode(data, final=not data)
            if "\0" in text:
                raise Unreadable("it is not text: it has NUL characters")
            damaged += text.count("\N{REPLACEMENT CHARACTER}")
            yield text
            if not data:
                break
    if encoding not in ("utf-8", "utf-8-sig"):
        guess = "; it declares none, so that is a guess" if is_guess else ""
        notes.add(f"its encoding is {encoding}, not UTF-8{guess}", part=part)
    if damaged:
        notes.add(f"{damaged} damaged characters were replaced by U+FFFD", part=part)


def _of_file(file: Path) -> tuple[str, bool]:
    """Return the encoding of a plain text, and whether it is a guess."""
    with file.open("rb") as stream:
        head = stream.read(_SAMPLE)
        for signature, signed in _SIGNATURES.items():
            if head.startswith(signature):
                return signed, False
        if unmarked := unmarked_utf16(head[:4096]):
            return unmarked, True
        if encoding := _declared_in(head):
            return encoding, False
        if encoding := iso2022(head):
            return encoding, True
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        damaged = others = at = 0
        first: int | None = None  # byte that is not ASCII
        stream.seek(0)
        while True:
            data = stream.read(_PIECE)
            text = decoder.decode(data, final=not data)
            others += _others(text)
            damaged += text.count("\N{REPLACEMENT CHARACTER}")
            if first is None and not data.isascii():
                first = at + _first_other(data)
            if not data:
                break
            at += len(data)
        stream.seek(max(0, (first or 0) - _BEFORE))  # a long text before it would outweigh it
        sample = stream.read(_SAMPLE)
    if _MIN_VALID * damaged <= others:
        return "utf-8", False
    best = best_encoding(sample)
    if best is None:
        raise Unreadable("it is not UTF-8, and no other encoding fits: save it as UTF-8")
    return best, True


def _others(text: str) -> int:
    """Return the number of characters that are not ASCII."""
    return 0 if text.isascii() else len(text) - len(text.encode("ascii", "ignore"))


def _first_other(data: bytes) -> int:
    """Return the place of the first byte that is not ASCII; 0 if there is none."""
    found = _OTHER.search(data)
    return found.start() if found else 0


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
    encoding: str | None = encoding_of(declared) or _declared_in(data) or iso2022(data)
    text = data.decode(encoding or "utf-8", "replace")
    if encoding is not None and encoding.startswith("iso2022_jp") and "\N{REPLACEMENT CHARACTER}" in text:
        text = japanese(data)
    damaged = text.count("\N{REPLACEMENT CHARACTER}")
    if damaged and encoding is None and _MIN_VALID * damaged > _others(text):
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
    return encoding_of((declared[1] or declared[2]).decode("ascii", "replace")) if declared else None


def _guess(page: bytes) -> str:
    """Return the likeliest legacy encoding of a page. As in browsers, it is Windows-1252 unless another one fits better."""
    words = _TAG.sub(b" ", page)
    return best_encoding(words[max(0, _first_other(words) - _SAMPLE // 2) :][:_SAMPLE]) or "cp1252"


def best_encoding(sample: bytes, candidates: Sequence[str] = _CANDIDATES, preferred: str = "cp1252") -> str | None:
    """Return the legacy encoding that fits best, the preferred one before others that fit about as well; None if none fits.

    An encoding must fit most parts of the sample, not all: one damaged byte can rule out the right encoding for its part. How well
    the letters follow each other is chardet's judgement; in a short text it is chance, so odd characters at the beginning count, too.
    """
    words = _SIGN.sub(b"", sample)
    if preferred == "cp1252" and not _RUN.search(_ALONE.sub(b"", words)):
        return preferred
    names = [codecs.lookup(each).name for each in candidates]
    if _is_latin(sample):
        names = [each for each in names if each in (*_LATIN, "cp437")] or names
    fits: dict[str, list[float]] = {}
    parts = list(_parts(sample.translate(None, _CONTROLS)))
    for part in parts:
        for encoding, confidence in _fits(part, names).items():
            fits.setdefault(encoding, []).append(confidence)
    means = {encoding: mean(values) for encoding, values in fits.items() if 2 * len(values) >= len(parts)}
    if not means:
        return None
    odd = {each: odd_share(parts[0].decode(each, "replace")) for each in means}
    scores = {each: means[each] * (1 - odd[each]) ** _POWER for each in means}
    if odd.get("cp1252") == 0 and not _CONTROL.search(words):
        scores = {each: score for each, score in scores.items() if each not in _DOS_AND_MAC}
    best = max(scores, key=lambda encoding: scores[encoding])
    return preferred if scores.get(codecs.lookup(preferred).name, 0) * _MARGIN >= scores[best] else best


def _fits(part: bytes, encodings: Sequence[str]) -> dict[str, float]:
    """Return how well each encoding fits a part. Words in capitals count as small letters, which the statistics know better."""
    import chardet  # noqa: PLC0415 - optional, and only the conversion process needs it

    variants: dict[bytes, list[str]] = {}
    for encoding in encodings:
        variants.setdefault(_small(part, encoding), []).append(encoding.replace("_", "-"))
    fits: dict[str, float] = {}
    for variant, those in variants.items():
        # The line end keeps words such as "BMP" from looking like the first bytes of a binary file.
        found = chardet.detect_all(
            b"\n" + variant, ignore_threshold=True, compat_names=False, include_encodings=[*those, _NONE], no_match_encoding=_NONE
        )  # fmt: skip
        for each in found:
            if each["encoding"] not in (None, _NONE):
                name = codecs.lookup(each["encoding"]).name
                fits[_PYTHON_NAMES.get(name, name)] = each["confidence"]
    return fits


def _small(part: bytes, encoding: str) -> bytes:
    """Return the bytes of a text with its words in capitals changed to small letters."""
    small = _small_letters(encoding)
    if not small:
        return part
    text = part.decode(encoding, "surrogateescape")
    text = _WORD.sub(lambda word: word[0].translate(small) if word[0].isupper() else word[0], text)
    return text.encode(encoding, "surrogateescape")


@cache
def _small_letters(encoding: str) -> dict[int, str]:
    """Return the small letter of each capital of an encoding of single bytes that has both; nothing for other encodings."""
    letters = bytes(range(256)).decode(encoding, "ignore")
    if len(letters) < _MIN_SINGLE:
        return {}
    capitals = [each for each in letters if each.isupper() and each.lower() in letters]
    return {ord(each): each.lower() for each in capitals if each.isascii() == each.lower().isascii()}


def _is_latin(sample: bytes) -> bool:
    """Whether most letters are ASCII, and most others single letters inside words, as in languages in Latin script."""
    runs = _RUN.findall(sample)
    is_mostly_ascii = len(_LETTER.findall(sample)) > sum(map(len, runs))
    return is_mostly_ascii and 3 * len(_AMONG_LETTERS.findall(sample)) >= 2 * len(runs)


def _parts(sample: bytes) -> Iterator[bytes]:
    """Yield the parts of a text that are not ASCII. They end with white space, which is no part of a character in any encoding."""
    at = 0
    while at < len(sample):
        end = _SPACE.search(sample, at + _PART)
        part = sample[at : end.end() if end else None]
        at += len(part)
        if not part.isascii():
            yield part
