"""Whoever changes what the readers produce must raise their version, as converted documents are reused by it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from everlong_server.engine.documents import ingest
from tests.server.engine.documents.formats.reading import read
from tests.server.engine.documents.formats.test_reports import REPORTS

MADE = Path(__file__).parents[4] / "data" / "formats"
VERSION = 5
"""The version of the readers that `DIGESTS` belongs to."""
DIGESTS = {
    "archives-absolute": "45a13297dcd4",
    "archives-tar": "db42dbc11858",
    "archives-tar.bz2": "486c0d941d5d",
    "archives-tar.xz": "486c0d941d5d",
    "archives-tgz": "486c0d941d5d",
    "archives-zip-in-tgz": "98884d4987d4",
    "encodings-gbk-named-gb2312": "45a753f0b980",
    "encodings-mail-gbk-named-gb2312": "e05f39edf0be",
    "encodings-rtf-in-utf-8": "a0f44f2d8c8f",
    "encodings-text-in-thai": "37689a752985",
    "libreoffice.doc": "9ed3286931f1",
    "libreoffice.docx": "f20d206693e2",
    "libreoffice.odp": "3ed473a77fbe",
    "libreoffice.ods": "4c92e3b99cbc",
    "libreoffice.odt": "98d5508372a4",
    "libreoffice.rtf": "b66769a91095",
    "libreoffice.xhtml": "ad8889e5b824",
    "libreoffice.xls": "49cf34e8821c",
    "messages-alt": "458aa3f1011e",
    "messages-attach-noname": "fe6297d561a6",
    "messages-bad-charset": "c9cf042d558b",
    "messages-bcc-reply": "b91670fdb0b8",
    "messages-emlx": "0a9b7c6b8c31",
    "messages-mbox": "b0e63f52929f",
    "messages-wrong-boundary": "ec45e42b8fb0",
    "mistakes-ampersand-in-a-sheet": "4f7e6be23995",
    "mistakes-ampersand-in-a-word-file": "f1cf6c79d745",
    "mistakes-ampersand-in-an-odt": "8efd2d552251",
    "mistakes-ampersand-in-the-package-of-a-book": "7c13d57b3510",
    "mistakes-box-in-a-form-of-rtf": "6a0ec36a0e24",
    "mistakes-elements-with-a-prefix": "9dbdcce94604",
    "mistakes-id-with-a-space": "37b29333fece",
    "mistakes-label-of-an-option": "49e03aa6e981",
    "mistakes-large-first-letter-of-rtf": "cf4dee0053da",
    "mistakes-list-in-a-form-of-rtf": "0ec494f81561",
    "mistakes-number-with-parts": "6edbaf33cb02",
    "mistakes-page-that-nothing-names": "37b29333fece",
    "mistakes-page-with-another-extension": "7c13d57b3510",
    "mistakes-pdf-after-the-head-of-a-form": "af754fc234de",
    "mistakes-postcode": "4a8c20d5e999",
    "mistakes-quote-field": "c0acef956c10",
    "mixed-a-wide-cell": "95648e51dfe0",
    "mixed-saved-page-with-frames": "adbc3a68675c",
    "opendocument-embedded-ole": "06080c3436b6",
    "opendocument-flat": "2d2e45df06fc",
    "opendocument-group": "34aa8194cd5b",
    "opendocument-hidden-text": "27fe0846e73f",
    "opendocument-list-display": "12bd716d5bb5",
    "opendocument-list-in-styles": "022541248678",
    "opendocument-odg": "21b87fba6e01",
    "opendocument-rows-huge": "3f42a51e5f9a",
    "opendocument-tracked": "382189c59f66",
    "opendocument-value-only": "3326554d62c2",
    "openpyxl.xlsx": "be7e59175a71",
    "pages-deep-list": "eebdf3744e9b",
    "pages-plaintext-frag": "1d977fea3bc7",
    "pages-rowspan": "4332c37e90f2",
    "pages-title": "157403d622ee",
    "pandoc.docx": "70a61a5efe20",
    "pandoc.epub": "a75fdc79ebb6",
    "pandoc.html": "4854074b1774",
    "pandoc.pptx": "5c6acc3b65cb",
    "places-fictionbook": "6b5bfe3967df",
    "places-field-that-never-ends": "75080b92f898",
    "portable-actualtext": "40477d35db39",
    "portable-count-neg": "3ca753bff3fd",
    "portable-freetext-both": "ba5143faba5a",
    "portable-popup-reply": "b1af63076882",
    "presentations-layout-that-is-not-drawn": "aa0dbcfffacd",
    "presentations-list-of-slides-damaged": "7a8ee4d175dc",
    "presentations-replies-to-comments": "d1ce458690d0",
    "presentations-words-of-the-layout": "f649d8dfbd74",
    "python-pptx.pptx": "ed1aa6f96e1a",
    "words-chart": "21e5312b18c0",
    "words-deep-sdt-900": "9bb846efe274",
    "words-doc-html": "ce5c38587894",
    "words-doc-html-frag": "ce5c38587894",
    "words-doc-mht": "18df6804a40a",
    "words-flat-opc": "2d2e45df06fc",
    "words-no-doc-rels": "ee17ae72575e",
    "words-numbers-bad": "7c4571d6353f",
    "words-wordart": "5918eef99a9e",
    "words-xls-html": "a0736e7b3ffd",
    "words-xls-xml2003": "9ae5d4cb88ce",
}
"""Digests of the text and the notes of some reports and files of programs, by name."""


def digest(name: str) -> str:
    """Return the digest of what the readers produce for a file."""
    report = REPORTS.get(name)
    data, filename = (report.data, report.filename) if report else ((MADE / name).read_bytes(), name)
    text, notes = read(data, filename)
    found = [text, [[note.text, note.page, note.part] for note in notes]]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:12]


def test_a_new_output_has_a_new_version() -> None:
    changed = {name: made for name in DIGESTS if (made := digest(name)) != DIGESTS[name]}
    assert changed == {}, (
        f"The readers' output changed for {', '.join(changed)}. If you mean it, raise `_READERS` in engine/documents/ingest.py once per "
        f"release, so that documents converted earlier are not reused. Then set VERSION and DIGESTS here: {json.dumps(changed, indent=4)}"
    )
    assert ingest._READERS == VERSION, "Set VERSION to `_READERS` of engine/documents/ingest.py."
