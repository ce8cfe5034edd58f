"""Reads EPUB: the pages of its spine, in their order. What is missing or damaged is left out with a note."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urldefrag

from everlong_server.engine.documents.formats.blocks import DAMAGED_ENTRY, Block, Notes, Unreadable
from everlong_server.engine.documents.formats.catalogue import HEAD, PAGE_NAMES, binary_kind
from everlong_server.engine.documents.formats.charset import decode
from everlong_server.engine.documents.formats.readers.html import render
from everlong_server.engine.documents.formats.readers.shared.trees import parse
from everlong_server.engine.documents.formats.zips import entry_names, open_zip

_DECLARATION = re.compile(r"^\s*<\?xml[^>]*\?>")
_PAGE_TYPES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml", "text/x-oeb1-document")
_OTHER_NAMES = (".ncx", ".opf", ".css", ".js", ".smil", ".pls")
"""Files of a book that are text, but no pages."""
_NOT_NAMED = ("meta-inf/", "__macosx/")
"""Folders whose files are no pages of a book."""
_DUBLIN_CORE = "http://purl.org/dc/elements/1."
_FIRST_PAGES = 2000
"""Characters at the beginning of a book where its title and authors may be."""
_WORD = re.compile(r"\w+")


class _Book:
    """The files of an EPUB. Names are compared without regard to case, percent-encoding and fragments."""

    def __init__(self, file: Path, notes: Notes) -> None:
        self._notes = notes
        self.packed = open_zip(file, notes)
        entries = self.packed.infolist()
        self._names = {
            _plain(name): entry.filename
            for name, entry in reversed(list(zip(entry_names(entries), entries, strict=True)))
        }

    def find(self, reference: str, folder: str = "") -> str | None:
        """Return the name of the file that is referred to in `folder`; None if there is none."""
        try:
            target = unquote(urldefrag(reference)[0])
        except ValueError:  # an address with brackets around what is no number, such as "http://[x]/"
            return None
        for name in (posixpath.join(folder, target), target):
            if found := self._names.get(posixpath.normpath(_plain(name)).lstrip("/")):
                return found
        return None

    def xml(self, name: str) -> Any:
        """Return the tree of an XML file, even if it is damaged; None if nothing of it can be read."""
        try:
            data = self.packed.read(name)
        except DAMAGED_ENTRY as error:
            self._notes.add(f"it is damaged and was left out ({error})", part=name)
            return None
        source = _DECLARATION.sub("", decode(data, self._notes, part=name).lstrip("\N{ZERO WIDTH NO-BREAK SPACE}"))
        return parse(source.encode())[0]


def _plain(name: str) -> str:
    """Return a name without what programs write differently: case, accents in two characters, separators of Windows."""
    return unicodedata.normalize("NFC", name.replace("\\", "/")).casefold()


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the title and the authors, unless the first pages have them, and then the pages of the book, a block for each section."""
    book = _Book(file, notes)
    name = _package(book, notes)
    package = book.xml(name)
    if package is None:
        raise Unreadable("the EPUB cannot be read: its package file is damaged")
    pages = _pages(book, package, posixpath.dirname(name), notes)
    first, size = list[Block](), 0
    for block in pages:
        first.append(block)
        size += len(block.text)
        if size >= _FIRST_PAGES:
            break
    if size:
        yield Block("\n".join(_missing_metadata(package, " ".join(block.text for block in first)[:_FIRST_PAGES])))
    yield from first
    yield from pages


def _missing_metadata(package: Any, text: str) -> Iterator[str]:
    """Yield the book's titles and authors that `text` does not have."""
    words = _words(text)
    shown = f" {' '.join(words)} "
    for kind, is_name in (("title", False), ("creator", True)):
        for value in _metadata(package, kind):
            own = _words(value)
            # The package may have the last name first.
            if not (set(own) <= set(words) if is_name else f" {' '.join(own)} " in shown):
                yield value


def _metadata(package: Any, kind: str) -> list[str]:
    """Return the values of one kind (Dublin Core), each once."""
    found = package.xpath(f"//*[starts-with(namespace-uri(), '{_DUBLIN_CORE}')]")
    values = (
        " ".join("".join(each.itertext()).split()) for each in found if each.tag.rpartition("}")[2].lower() == kind
    )
    return [value for value in dict.fromkeys(values) if value]


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFC", text).casefold())


def _pages(book: _Book, package: Any, folder: str, notes: Notes) -> Iterator[Block]:
    """Yield the pages, a block for each section. `folder`: of the package file, which `package` is the tree of."""
    encrypted = _encrypted(book)
    seen = set[str]()
    for reference in _reading_order(book, package, folder, notes):
        name = book.find(reference, folder)
        if name is None:
            notes.add("the book refers to it, but it is not in the file", part=reference)
        elif name in encrypted:
            raise Unreadable("the EPUB is encrypted; upload it without encryption")
        elif name in seen:
            notes.left_out("repeated chapters")
        else:
            seen.add(name)
            yield from _page(book, name, notes)


def _page(book: _Book, name: str, notes: Notes) -> Iterator[Block]:
    try:
        data = book.packed.read(name)
    except DAMAGED_ENTRY as error:
        notes.add(f"it is damaged and was left out ({error})", part=name)
        return
    if name.lower().endswith(_OTHER_NAMES) or binary_kind(data[:HEAD]) is not None:
        notes.add("it is not a page of text; it was left out", part=name)
        return
    if name.lower().endswith(".txt"):
        yield Block(decode(data, notes, part=name).strip())
        return
    with notes.at(part=name):
        blocks = list(render(decode(data, notes, part=name), notes))
    if name.lower().endswith(".svg") and not any(block.text for block in blocks):
        notes.add("it is not a page of text; it was left out", part=name)
    yield from blocks


def _package(book: _Book, notes: Notes) -> str:
    """Return the name of the package file."""
    container = book.find("META-INF/container.xml")
    tree = book.xml(container) if container else None
    roots = tree.xpath("//*[local-name()='rootfile']/@full-path") if tree is not None else []
    found = [name for root in roots if (name := book.find(root))]
    found += [name for name in book.packed.namelist() if name.lower().endswith(".opf")]
    if not found:
        raise Unreadable("the EPUB cannot be read: it has no package file (.opf)")
    for other in dict.fromkeys(found[1:]):
        if other != found[0]:
            notes.add("it is another version of the book and was left out", part=other)
    return found[0]


def _reading_order(book: _Book, tree: Any, folder: str, notes: Notes) -> list[str]:
    """Return the references to the pages: those of the spine, then pages that only the manifest lists."""
    items = tree.xpath("//*[local-name()='manifest']/*[@href]")
    by_id = {item.get("id", "").strip(): item for item in reversed(items)}
    order = []
    for reference in tree.xpath("//*[local-name()='spine']/*/@idref"):
        if reference.strip() in by_id:
            order.append(by_id[reference.strip()].get("href"))
        else:
            notes.add("the book's spine names it, but its manifest does not", part=reference)
    has_spine = bool(order)
    listed = {book.find(href, folder) for href in order}
    for item in items:
        # Navigation repeats the headings of the chapters.
        is_page = _is_page(item) and "nav" not in (item.get("properties") or "").split()
        if is_page and book.find(item.get("href"), folder) not in listed:
            if has_spine:
                notes.add("the book's spine does not name it; it was added at the end", part=item.get("href"))
            order.append(item.get("href"))
    known = listed | {book.find(item.get("href"), folder) for item in items}
    return order + [f"/{quote(name)}" for name in _unnamed(book, known, notes)]


def _is_page(item: Any) -> bool:
    kind = item.get("media-type")
    return kind in _PAGE_TYPES or (not kind and item.get("href").lower().endswith(PAGE_NAMES))


def _unnamed(book: _Book, known: Collection[str | None], notes: Notes) -> Iterator[str]:
    """Yield the pages that the package does not name, with a note on each. Those of another version of the book are none."""
    names = book.packed.namelist()
    if sum(name.lower().endswith(".opf") for name in names) > 1:
        return
    for name in names:
        if name.lower().endswith(PAGE_NAMES) and name not in known and not name.lower().startswith(_NOT_NAMED):
            notes.add("the book does not name it; it was added at the end", part=name)
            yield name


def _encrypted(book: _Book) -> set[str | None]:
    """Return the names of the encrypted files, which are often fonts alone."""
    name = book.find("META-INF/encryption.xml")
    tree = book.xml(name) if name else None
    if tree is None:
        return set()
    return {book.find(uri) for uri in tree.xpath("//*[local-name()='CipherReference']/@URI")}
