"""The tokens of RTF (version 1.9.1), and what its control words stand for."""

from __future__ import annotations

import codecs
import re

from everlong_server.engine.documents.formats.readers.rich_text import equations

TOKEN = re.compile(
    rb"\\(?P<word>[a-zA-Z]{1,32})(?P<number>-?\d{1,10})? ?|\\'(?P<hex>[0-9a-fA-F]{2})|\\(?P<sign>[^a-zA-Z])"
    rb"|(?P<brace>[{}])|[\r\n\0]+|(?P<text>[^\\{}\r\n\0]+)|\\",
    re.DOTALL,
)
CHARACTERS = {
    "tab": "\t", "line": "\n", "lbr": "\n", "emdash": "—", "endash": "–", "bullet": "•", "lquote": "‘", "rquote": "’",
    "ldblquote": "“", "rdblquote": "”", "emspace": " ", "enspace": " ", "qmspace": " ", "nestcell": "\t", "nestrow": "\n",
}  # fmt: skip
SIGNS = {
    b"~": "\N{NO-BREAK SPACE}", b"_": "\N{NON-BREAKING HYPHEN}", b"-": "", b"{": "{", b"}": "}", b"\\": "\\",
    b"\t": "\t", b":": "",
}  # fmt: skip
SYSTEMS = {"mac": "mac_roman", "pc": "cp437", "pca": "cp850"}
PROPERTIES = {"fonttbl", "stylesheet"}
UNSEEN = {"v": "passages that the file hides", "deleted": "deleted passages (tracked changes)", "plain": ""}
FURNITURE = {"header", "headerl", "headerr", "headerf", "footer", "footerl", "footerr", "footerf"}
WORDS = {
    *FURNITURE,
    *equations.PARTS,
    "footnote",
    "annotation",
    "shptxt",
    "dptxbxtext",
    "atnauthor",
    "sn",
    "sv",
    "htmltag",
    "objdata",
    "fldinst",
    "ffl",
}
"""Destinations whose text is collected."""
TRANSPARENT = {
    "cs", "ud", "shppict", "nesttableprops", "moMath", "moMathPara", "mmath", "mr", "shp", "result", "fldrslt", "field", "shpgrp",
}  # fmt: skip
QUIET = {"shpinst", "do", "upr", "pict", "picprop", "sp", "object", "nesttableprops", "formfield"}
"""Destinations without text of their own; those inside them may have some."""
SILENT = {
    *equations.PROPERTIES,
    "shprslt", "nonshppict", "nonesttables", "colortbl", "info", "listtable", "listoverridetable", "revtbl", "rsidtbl",
    "filetbl", "bkmkstart", "bkmkend", "pn", "tc", "xe", "template", "datafield", "mmathPr", "atnid",
    "leveltext", "levelnumbers", "listname",
}  # fmt: skip
DESCRIPTIONS = ("wzDescription", "gtextUNICODE")
"""Properties of shapes that are words: a picture's description, and the text of WordArt."""


def codec_of_page(page: int) -> str:
    """Return the encoding of a code page."""
    name = {65001: "utf-8", 10000: "mac_roman", 936: "gb18030"}.get(page, f"cp{page}")
    try:
        return codecs.lookup(name).name
    except LookupError:
        return "cp1252"
