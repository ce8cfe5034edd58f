"""PowerPoint files of 1997 to 2003: slides in their order, and what belongs to them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import kreuzberg
import pytest

from everlong_server.engine.documents.formats.blocks import Unreadable
from tests import files
from tests.server.engine.documents.formats.reading import notes_of, read, text_of

TITLE, FOOTER = 1, 9
"""Kinds of placeholders in a master."""


def record(kind: int, body: bytes = b"", instance: int = 0) -> bytes:
    return struct.pack("<HHI", instance << 4, kind, len(body)) + body


def container(kind: int, *inside: bytes, instance: int = 0) -> bytes:
    body = b"".join(inside)
    return struct.pack("<HHI", 15 | instance << 4, kind, len(body)) + body


def words(text: str) -> bytes:
    wide = not text.isascii()
    return record(0x0FA0, text.encode("utf-16-le")) if wide else record(0x0FA8, text.encode())


def string(text: str, instance: int) -> bytes:
    return record(0x0FBA, text.encode("utf-16-le"), instance)


def properties(**values: bytes) -> bytes:
    names = {"picture": 0x0104, "letters": 0xC0C0, "description": 0xC381, "table": 0x03A0}
    fixed, data = b"", b""
    for name, value in values.items():
        is_complex = names[name] & 0x8000
        fixed += struct.pack("<HI", names[name], len(value) if is_complex else 1)
        data += value if is_complex else b""
    return record(0xF00B, fixed + data, len(values))


def shape(*inside: bytes, place: tuple[int, int] | None = None) -> bytes:
    anchor = record(0xF00F, struct.pack("<4i", *place, 0, 0)) if place else b""
    return container(0xF004, record(0xF00A, bytes(8)), *inside, anchor)


def box(text: str, place: tuple[int, int] | None = None, placeholder: int | None = None) -> bytes:
    data = (
        [] if placeholder is None else [container(0xF011, record(0x0BC3, struct.pack("<iBBH", -1, placeholder, 0, 0)))]
    )
    return shape(container(0xF00D, words(text)), *data, place=place)


def outline(number: int) -> bytes:
    return shape(container(0xF00D, record(0x0F9E, struct.pack("<I", number))))


def group(*shapes: bytes) -> bytes:
    return container(0xF003, *shapes)


def page(kind: int, *shapes: bytes, more: Sequence[bytes] = (), notes: int = 0) -> bytes:
    """Return a slide (0x03EE), a master (0x03F8) or a page of notes (0x03F0)."""
    atom = record(0x03EF, struct.pack("<16xII", notes, 0)) if kind != 0x03F0 else b""
    return container(kind, atom, container(0x040C, container(0xF002, group(shape(), *shapes))), *more)


def slides(
    *pages: bytes, texts: Sequence[Sequence[str]] = (), masters: Sequence[bytes] = (), spoken: Sequence[bytes] = (),
    objects: Sequence[bytes] = (), key: bool = False,
) -> tuple[bytes, bytes]:  # fmt: skip
    """Return the two streams of a file. `texts`: of each slide, those in the list of slides. Slide n + 1 is written before slide n."""
    stored = [*pages, *masters, *spoken, *objects]
    texts = [*texts, *[()] * len(stored)]

    def listed(group: Sequence[bytes], first: int, instance: int) -> bytes:
        entries = [
            record(0x03F3, struct.pack("<5I", first + index, 0, 0, 256 + first + index, 0))
            + (b"".join(map(words, texts[index])) if instance == 0 else b"")
            for index in range(len(group))
        ]
        return container(0x0FF0, *entries, instance=instance)

    last = 2 + len(pages) + len(masters) + len(spoken)
    embedded = [record(0x0FC3, struct.pack("<6I", 1, 0, n, 0, last + n, 0)) for n in range(len(objects))]
    document = container(
        0x03E8, listed(pages, 2, 0), listed(masters, 2 + len(pages), 1), listed(spoken, 2 + len(pages) + len(masters), 2),
        container(0x0409, *(container(0x0FCC, each) for each in embedded)),
    )  # fmt: skip
    places, stream = [0], document
    for each in reversed(stored):
        places.insert(1, len(stream))
        stream += each
    directory = len(stream)
    stream += record(0x1772, struct.pack("<I", 1 | len(places) << 20) + struct.pack(f"<{len(places)}I", *places))
    edit = len(stream)
    stream += record(0x0FF5, struct.pack("<IIIIIII", 0, 0, 0, directory, 1, 0, 0) + (bytes(4) if key else b""))
    return stream, record(0x0FF6, struct.pack("<III", 20, 0xE391C05F, edit))


def old_slides(*pages: bytes, **more: object) -> bytes:
    stream, user = slides(*pages, **more)  # type: ignore[arg-type]
    return files.compound({"PowerPoint Document": stream, "Current User": user})


def texts(data: bytes) -> Sequence[str]:
    return text_of(data).split("\n\n")


SLIDE, MASTER, NOTES = 0x03EE, 0x03F8, 0x03F0


def test_texts_of_shapes_in_the_order_of_the_slides() -> None:
    data = old_slides(
        page(SLIDE, outline(1), outline(0), box("*")),
        page(SLIDE, box("Žluť\rand\x0bmore"), group(shape(), box("Inside"))),
        texts=[("Points", "Title"), ("Not drawn",)],
    )
    assert texts(data) == ["Title", "Points", "Žluť\nand\nmore", "Inside", "Not drawn"]


def test_a_slide_without_text() -> None:
    assert notes_of(old_slides(page(SLIDE, box("One")), page(SLIDE))) == ["page 2: the slide has no text"]


def test_a_table() -> None:
    cells = [box("d", (50, 20)), box("b", (50, 10)), box("a", (0, 10)), box("c", (0, 20)), shape(place=(0, 15))]
    assert texts(old_slides(page(SLIDE, group(shape(properties(table=b"")), *cells)))) == ["a\tb\nc\td"]


def test_notes_comments_footers_and_hidden_slides() -> None:
    comment = container(
        0x1388, container(0x138A, record(0x138B, container(0x2EE0, string("Bo", 0), string("Check this", 1))))
    )
    hidden = record(0x03F9, struct.pack("<10xH4x", 4))
    footer = container(0x0FD9, string("Acme", 2), instance=3)
    data = old_slides(
        page(SLIDE, box("One"), more=[comment, hidden, footer], notes=260), spoken=[page(NOTES, box("Say it slowly"))], masters=[page(MASTER)],
    )  # fmt: skip
    assert texts(data) == ["One", "[Comment by Bo] Check this", "[Speaker notes] Say it slowly", "[Footer] Acme"]
    assert notes_of(data) == ["page 1: the slide is hidden"]


def test_what_a_master_draws_once() -> None:
    master = page(
        MASTER,
        box("Click to edit Master title style", placeholder=TITLE),
        box("Confidential"),
        box("May 2001", placeholder=FOOTER),
    )
    data = old_slides(page(SLIDE, box("One")), page(SLIDE, box("Two")), masters=[master])
    assert texts(data) == ["One", "Two", "[On each slide] Confidential", "[On each slide] May 2001"]


def test_kreuzberg_loses_comments_and_word_art() -> None:
    """If a later version does not, our reader may be obsolete."""
    comment = container(0x1388, container(0x138A, record(0x138B, container(0x2EE0, string("Check this", 1)))))
    data = old_slides(
        page(SLIDE, box("One"), shape(properties(letters="Growth\0".encode("utf-16-le"))), more=[comment])
    )
    theirs = kreuzberg.extract_bytes_sync(data, "application/vnd.ms-powerpoint").content
    assert [text for text in ("Check this", "Growth") if text in theirs or text not in text_of(data)] == []


def test_pictures_and_word_art() -> None:
    art = shape(properties(letters="Growth\0".encode("utf-16-le")))
    picture = shape(properties(picture=b"", description="A red barn\0".encode("utf-16-le")))
    data = old_slides(page(SLIDE, art, picture, shape(properties(picture=b""))))
    assert texts(data) == ["Growth", "[A red barn]"]
    assert notes_of(data) == ["page 1: left out: pictures without a description (1)"]


def test_numbers_of_lists_are_noted() -> None:
    styles = struct.pack("<IHIII", 0x03000000, 1, 0x10003, 0, 0) + struct.pack("<IIIH", 0, 0, 1, 0)
    tags = container(0x1388, container(0x138A, record(0x138B, record(0x0FAC, styles))))
    numbered = shape(container(0xF00D, words("One\rTwo")), container(0xF011, tags))
    data = old_slides(page(SLIDE, box("Plan")), page(SLIDE, numbered))
    assert texts(data) == ["Plan", "One\nTwo"]
    assert notes_of(data) == ["page 2: left out: list numbers (1)"]


def test_embedded_files() -> None:
    packed = files.compound({"\x01Ole10Native": files.ole_package("b.csv", b"x,y\n")})
    stored = record(0x1011, struct.pack("<I", len(packed)) + zlib.compress(packed), 1)
    data = old_slides(page(SLIDE, box("One")), objects=[stored, record(0x1011, b"????not deflated", 1)])
    assert texts(data) == ["One", "[Embedded file] b.csv", "x,y"]
    assert notes_of(data) == ["left out: embedded objects that are not in the file (1)"]


def test_a_file_that_powerpoint_95_can_open_too() -> None:
    stream, user = slides(page(SLIDE, box("One")))
    older = b"\3\0\0\0\xff\xff\0\0 of 1995"
    streams = {"PP97_DUALSTORAGE/PowerPoint Document": stream, "PP97_DUALSTORAGE/Current User": user}
    assert texts(files.compound({"PowerPoint Document": older, "Current User": b"Ada", **streams})) == ["One"]
    for only in ({"PowerPoint Document": older, "Current User": b"Ada"}, {"PP40": b"x"}):
        with pytest.raises(Unreadable, match="older than PowerPoint 97"):
            read(files.compound(only))


def test_an_encrypted_file_is_refused() -> None:
    with pytest.raises(Unreadable, match="encrypted"):
        text_of(old_slides(page(SLIDE, box("One")), key=True))


def test_a_slide_that_is_missing() -> None:
    stream, user = slides(page(SLIDE, box("One")), page(SLIDE, box("Two")))
    place = stream.index(struct.pack("<5I", 3, 0, 0, 259, 0))
    stream = stream[:place] + struct.pack("<I", 99) + stream[place + 4 :]
    data = files.compound({"PowerPoint Document": stream, "Current User": user})
    assert texts(data) == ["One"]
    assert notes_of(data) == ["a slide is not in the file"]


def test_a_file_whose_end_is_missing() -> None:
    stream, _ = slides(page(SLIDE, box("One")))
    user = record(0x0FF6, struct.pack("<III", 20, 0xE391C05F, 1 << 20))
    assert notes_of(files.compound({"PowerPoint Document": stream, "Current User": user})) == [
        "it is damaged: its slides are not told apart, and texts of its masters are among theirs"
    ]
