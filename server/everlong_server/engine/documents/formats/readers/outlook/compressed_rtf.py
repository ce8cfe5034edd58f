"""Unpacks the compressed RTF of Outlook messages (MS-OXRTFCP)."""

from __future__ import annotations

import struct

_MAGIC, _PLAIN = b"LZFu", b"MELA"
_DICTIONARY = (
    b"{\\rtf1\\ansi\\mac\\deff0\\deftab720{\\fonttbl;}{\\f0\\fnil \\froman \\fswiss \\fmodern \\fscript \\fdecor MS Sans "
    b"SerifSymbolArialTimes New RomanCourier{\\colortbl\\red0\\green0\\blue0\r\n\\par \\pard\\plain\\f0\\fs20\\b\\i\\u\\tab\\tx"
)
"""What every text may refer to."""


def unpacked(data: bytes) -> bytes:
    """Return the RTF, as far as it is not damaged. Raises `ValueError` for something else."""
    if len(data) < 16 or data[8:12] not in (_MAGIC, _PLAIN):
        raise ValueError("it is not compressed RTF")
    size = struct.unpack_from("<I", data, 4)[0]
    if data[8:12] == _PLAIN:
        return data[16 : 16 + size]
    out = bytearray(_DICTIONARY)
    at = 16
    while at < len(data) and len(out) < size + len(_DICTIONARY):
        flags = data[at]
        at += 1
        for bit in range(8):
            if not flags >> bit & 1:
                out += data[at : at + 1]
                at += 1
                continue
            reference = int.from_bytes(data[at : at + 2], "big")
            at += 2
            # A place in a buffer of 4,096 bytes that is written in a circle.
            distance = (len(out) - (reference >> 4)) % 4096 or 4096
            if (reference >> 4) == len(out) % 4096 or distance > len(out):  # the end of the text
                return bytes(out[len(_DICTIONARY) :])
            for _ in range((reference & 15) + 2):
                out.append(out[-distance])
    return bytes(out[len(_DICTIONARY) :][:size])
