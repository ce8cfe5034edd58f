"""`Package`: the parts of a file in Office Open XML (Word, PowerPoint), as ISO/IEC 29500-2 describes them."""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from base64 import b64decode
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

from lxml import etree

from everlong_server.engine.documents.formats.blocks import DAMAGED_ENTRY, Notes, Unreadable
from everlong_server.engine.documents.formats.readers.compound.embedded import embedded_blocks
from everlong_server.engine.documents.formats.readers.shared.trees import parse
from everlong_server.engine.documents.formats.zips import open_zip

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
MC = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_WORD_2003 = b"http://schemas.microsoft.com/office/word/2003/wordml"
# The namespaces of "strict" files differ from those of the others.
_STRICT = re.compile(rb"http://purl\.oclc\.org/ooxml/(officeDocument/relationships|\w+/main|officeDocument/math)")
_TRANSITIONAL = {
    b"officeDocument/relationships": b"http://schemas.openxmlformats.org/officeDocument/2006/relationships",
    b"officeDocument/math": b"http://schemas.openxmlformats.org/officeDocument/2006/math",
}


@dataclass(frozen=True, slots=True)
class Relation:
    """A relationship of a part. `kind`: the last word of its type, such as "footnotes". `target`: a part, or an address if `external`."""

    kind: str
    target: str
    external: bool


class Package:
    """The parts of one file. Part names are compared without regard to case; missing ones become notes."""

    def __init__(self, file: Path, notes: Notes) -> None:
        self._packed = zipfile.ZipFile(packed(file.read_bytes())) if is_xml(file) else open_zip(file, notes)
        self._names = {name.lstrip("/").replace("\\", "/").casefold(): name for name in self._packed.namelist()}
        self._notes = notes

    def main(self, content_type: str, pattern: str) -> str:
        """Return the name of the main part.

        That is the target of the package's "officeDocument" relationship, else a part whose declared type contains
        `content_type`, else one whose name matches `pattern`. Raises `Unreadable`.
        """
        named = [r.target for r in self.relations("").values() if r.kind == "officeDocument"]
        types = self.xml("[Content_Types].xml") if self.has("[Content_Types].xml") else None
        if types is not None:
            named += [o.get("PartName", "") for o in types if content_type in o.get("ContentType", "")]
        named += sorted(name for name in self._names if re.fullmatch(pattern, name))
        for name in named:
            if self.has(name):
                return name.lstrip("/")
        raise Unreadable("the file cannot be read: it has no main part, so it is damaged")

    def has(self, part: str) -> bool:
        """Whether the part exists."""
        return part.lstrip("/").casefold() in self._names

    def matches(self, pattern: str) -> bool:
        """Whether the name of a part matches."""
        return any(re.fullmatch(pattern, name) for name in self._names)

    def read(self, part: str) -> bytes | None:
        """Return the bytes of a part; None, with a note, if it is missing or damaged."""
        name = self._names.get(part.lstrip("/").casefold())
        try:
            if name is not None:
                return self._packed.read(name)
            self._notes.add("the file refers to it, but does not contain it", part=part)
        except DAMAGED_ENTRY as error:
            self._notes.add(f"it is damaged and was left out ({error})", part=part)
        return None

    def xml(self, part: str) -> Any:
        """Return the tree of a part; None, with a note, if it is missing or damaged."""
        if (data := self.read(part)) is None:
            return None
        tree, fault = parse(_STRICT.sub(_transitional, data))
        if fault is not None:
            self._notes.add(fault, part=part)
        return None if tree is None or (fault is not None and not len(tree)) else tree

    def unnamed(self, pattern: str, named: Collection[str], notes: Notes) -> Iterator[str]:
        """Yield the parts that match `pattern` and that the file does not name, by their number, each with a note.

        The list that names them may be damaged.
        """
        known = {name.casefold() for name in named}
        found = {int(match[1]): name for name in self._names if (match := re.fullmatch(pattern, name))}
        for number in sorted(found):
            if found[number] not in known:
                notes.add("the file does not refer to it; it was added at the end", part=found[number])
                yield found[number]

    def open(self, part: str) -> IO[bytes]:
        """Open a part that exists."""
        return self._packed.open(self._names[part.lstrip("/").casefold()])

    def embedded(self, relation: Relation | None) -> Iterator[str]:
        """Yield the text of an embedded file, such as a sheet in a text. What cannot be read becomes a note."""
        if relation is None or relation.external:
            self._notes.left_out("embedded objects that are not in the file")
        elif (data := self.read(relation.target)) is not None:
            yield from (block.text for block in embedded_blocks(data, relation.target, self._notes) if block.text)

    def relations(self, part: str) -> dict[str, Relation]:
        """Return the relationships of a part by their id; "" is the package itself."""
        folder, name = posixpath.split(part)
        rels = posixpath.join(folder, "_rels", f"{name}.rels")
        tree = self.xml(rels) if self.has(rels) else None
        found = {}
        for rel in tree if tree is not None else ():
            if not isinstance(rel.tag, str):
                continue
            target, external = rel.get("Target", ""), rel.get("TargetMode") == "External"
            if not external:
                target = posixpath.normpath(posixpath.join("/", folder, unquote(target))).lstrip("/")
            found[rel.get("Id", "")] = Relation(rel.get("Type", "").rpartition("/")[2], target, external)
        return found


def is_xml(file: Path) -> bool:
    """Whether a file is one XML file, and not a ZIP file."""
    with file.open("rb") as stream:
        return stream.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")


def packed(data: bytes) -> io.BytesIO:
    """Return the parts of a file that is one XML file: a "flat" package, or a Word file of 2003. Raises `Unreadable`."""
    tree, _ = parse(data.replace(_WORD_2003, W[1:-1].encode()))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        if tree is None or tree.tag == f"{W}wordDocument":
            made.writestr("word/document.xml", b"" if tree is None else etree.tostring(tree))
        for part in () if tree is None else tree.iterchildren("{*}part"):
            name = next((value for key, value in part.attrib.items() if str(key).endswith("}name")), "").lstrip("/")
            for content in part.iterchildren("{*}xmlData", "{*}binaryData"):
                is_xml = len(content) > 0
                made.writestr(
                    name, etree.tostring(content[0]) if is_xml else b64decode(content.text or "", validate=False)
                )
    return out


def _transitional(match: re.Match[bytes]) -> bytes:
    what = match[1]
    return _TRANSITIONAL.get(what) or b"http://schemas.openxmlformats.org/" + what.replace(b"/main", b"/2006/main")
