"""A PDF's text is whole: words at line ends, columns, forms, comments; pages without text are noted."""

from __future__ import annotations

import pytest

from tests import files
from tests.server.engine.documents.formats.reading import notes_of, read, text_of


def page(*lines: str) -> bytes:
    return files.pdf_of(files.pdf_lines(*((60, 700 - 14 * n, line) for n, line in enumerate(lines))))


HYPHENS = [
    (("The inspector found a malfunc-", "tioning thermostat."), "The inspector found a malfunctioning thermostat."),
    (
        ("It has been a long-", "term loan. A long-term", "loan is one."),
        "It has been a long-term loan. A long-term\nloan is one.",
    ),
    (("A test for COVID-", "19 was made."), "A test for COVID-19 was made."),
    (("The Anglo-", "American treaty."), "The Anglo-American treaty."),
    (("Either way -", "or not."), "Either way -\nor not."),
]


@pytest.mark.parametrize(("lines", "text"), HYPHENS)
def test_words_that_are_divided_at_the_end_of_a_line_are_whole(lines: tuple[str, ...], text: str) -> None:
    found = text_of(page(*lines))
    assert "\ufffe" not in found
    assert found.replace("\n", " ") == text.replace("\n", " ")


def test_the_words_of_other_pages_show_which_hyphens_belong_to_compounds() -> None:
    data = files.pdf(["The re-", "A re-organised firm and a network."]).replace(
        b"(The re-) Tj", b"(The re-) Tj 0 -14 Td (organised net-) Tj 0 -14 Td (work.) Tj"
    )
    assert "The re-organised network." in text_of(data)


LEFT = ("The committee met", "in Utrecht and chose", "a new chair.")
RIGHT = ("Her name is", "Saskia Blom and", "she begins in May.")


def across(left: tuple[str, ...], right: tuple[str, ...]) -> bytes:
    rows = zip(left, right, strict=True)
    lines = [each for n, (a, b) in enumerate(rows) for each in ((60, 700 - 14 * n, a), (330, 700 - 14 * n, b))]
    return files.pdf_of(
        files.pdf_lines((60, 760, "A title that is wide enough to reach across both of the columns"), *lines)
    )


def test_columns_that_the_file_mixes_are_read_one_after_the_other() -> None:
    data = across(LEFT, RIGHT)
    assert text_of(data).split("\n") == [
        "A title that is wide enough to reach across both of the columns",
        *LEFT,
        *RIGHT,
    ]
    assert notes_of(data) == ["page 1: two columns that the file mixes line by line were put one after the other"]


def test_words_that_are_divided_in_mixed_columns_are_whole() -> None:
    data = across(
        ("The committee of Ut-", "recht met in the green-", "house and chose"),
        ("Her name is Sas-", "kia Blom, and her malfunc-", "tioning lamp is lit."),
    )
    text = text_of(data)
    assert [word for word in ("Utrecht", "greenhouse", "Saskia", "malfunctioning") if word not in text] == []
    assert "-" not in text


def test_words_at_the_right_margin_are_no_column() -> None:
    lines = [
        ("int read_tag of the node, which is", "[Function]"),
        ("given by the caller and must not be empty or gone, since it is read", ""),
    ] * 4
    placed = [
        (x, 700 - 14 * n, words)
        for n, line in enumerate(lines)
        for x, words in zip((60, 450), line, strict=True)
        if words
    ]
    data = files.pdf_of(files.pdf_lines(*placed))
    assert notes_of(data) == []
    assert "is [Function]" in text_of(data)


TABLES = [
    (("Apple", "Pear", "Plum", "Fig"), ("3 crowns", "4 crowns", "5 crowns", "6 crowns")),
    (("dog", "cat", "bird", "fish"), ("chien", "chat", "oiseau", "poisson")),
]


@pytest.mark.parametrize(("left", "right"), TABLES)
def test_tables_are_read_row_by_row(left: tuple[str, ...], right: tuple[str, ...]) -> None:
    data = across(left, right)
    assert f"{left[0]} {right[0]}" in text_of(data)
    assert notes_of(data) == []


def form(field: str, *, appearance: bool = False) -> bytes:
    look = "/AP << /N 7 0 R >>" if appearance else ""
    widget = f"<< /Type /Annot /Subtype /Widget /T (f1) /Rect [200 690 400 710] /P 4 0 R /F 4 /DA (/F1 11 Tf) {field} {look} >>"
    stream = "BT /F1 11 Tf 2 4 Td (Oduya) Tj ET"
    drawn = f"<< /Type /XObject /Subtype /Form /BBox [0 0 200 20] /Resources << >> /Length {len(stream)} >>\nstream\n{stream}\nendstream"
    return files.pdf_of(
        files.pdf_lines((60, 695, "Surname of the applicant:")), page="/Annots [6 0 R]",
        catalog="/AcroForm << /Fields [6 0 R] >>", objects=[widget, drawn],
    )  # fmt: skip


FIELDS = [
    ("/FT /Tx /V (Oduya)", "Oduya"),
    ("/FT /Tx /V <FEFF014C0064>", "Ōd"),
    ("/FT /Ch /Ff 131072 /Opt [(red) (blue)] /V (blue)", "blue"),
    ("/FT /Btn /V /Yes /AS /Yes /AP << /N << /Yes 7 0 R /Off 7 0 R >> >>", "[x]"),
]


@pytest.mark.parametrize(("field", "value"), FIELDS)
def test_the_value_of_a_form_field_follows_its_label(field: str, value: str) -> None:
    assert text_of(form(field)) == f"Surname of the applicant:\n\nSurname of the applicant: {value}"


BOXES = {
    "words after boxes": ((60, 120), [(74, "Yes"), (134, "No")], "No: [x]"),
    "words before boxes": ((90, 150), [(60, "Yes"), (120, "No")], "No: [x]"),
    "words before and after": ((110, 170), [(60, "Member"), (124, "yes"), (184, "no")], "no: [x]"),
}


@pytest.mark.parametrize(("boxes", "words", "value"), BOXES.values(), ids=BOXES)
def test_the_label_of_a_box_is_the_nearest_words(
    boxes: tuple[int, int], words: list[tuple[int, str]], value: str
) -> None:
    """The second box is checked."""
    look = "/AP << /N << /On 8 0 R /Off 8 0 R >> >>"
    drawn = "<< /Type /XObject /Subtype /Form /BBox [0 0 10 10] /Resources << >> /Length 0 >>\nstream\n\nendstream"
    fields = [
        f"<< /Type /Annot /Subtype /Widget /FT /Btn /T (b{x}) /Rect [{x} 693 {x + 10} 703] /P 4 0 R /F 4 {state} {look} >>"
        for x, state in zip(boxes, ("/AS /Off", "/V /On /AS /On"), strict=True)
    ]
    lines = files.pdf_lines(*((x, 695, text) for x, text in words), (60, 675, "Another line of the form"))
    catalog = "/AcroForm << /Fields [6 0 R 7 0 R] >>"
    text = text_of(files.pdf_of(lines, page="/Annots [6 0 R 7 0 R]", catalog=catalog, objects=[*fields, drawn]))
    assert text.endswith(f"\n\n{value}")


def test_a_form_field_with_an_appearance_is_read_once() -> None:
    assert text_of(form("/FT /Tx /V (Oduya)", appearance=True)).count("Oduya") == 1


@pytest.mark.parametrize("field", ["/FT /Tx", "/FT /Btn /V /Off /AS /Off", "/FT /Btn /Ff 65536 /V (press)"])
def test_an_empty_field_adds_nothing(field: str) -> None:
    assert text_of(form(field)) == "Surname of the applicant:"


@pytest.mark.parametrize("kind", ["Text", "FreeText", "Highlight", "Stamp"])
def test_comments_follow_their_page(kind: str) -> None:
    note = f"<< /Type /Annot /Subtype /{kind} /Rect [10 10 50 50] /Contents (Is this right?) /T (Ada) >>"
    data = files.pdf_of(files.pdf_lines((60, 695, "Typed.")), page="/Annots [6 0 R]", objects=[note])
    assert text_of(data) == "Typed.\n\n[Comment by Ada] Is this right?"


def test_pages_without_text_are_noted() -> None:
    data = files.pdf(["One.", files.PICTURE, "", "Four."])
    assert text_of(data) == "One.\n\nFour."
    assert notes_of(data) == [
        "page 2: the page is a picture without text; its text is recognised if pip install 'everlong[ocr]' is run on the server",
        "page 3: the page has drawings and no text",
    ]  # fmt: skip


OCR = "its text is recognised if pip install 'everlong[ocr]' is run on the server"
LETTER = "0 0 m 5 10 l 9 0 l 7 0 l 5 6 l 3 0 l h f"
GLYPHS = (
    "/F1 << /Type /Font /Subtype /Type0 /BaseFont /ABCDEF+X /Encoding /Identity-H /DescendantFonts [<< /Type /Font "
    "/Subtype /CIDFontType2 /BaseFont /ABCDEF+X /CIDSystemInfo << /Registry (Adobe) /Ordering (Identity) /Supplement 0 >> >>] >>"
)
STRIPS = " ".join(f"q 612 0 0 79 0 {79 * n} cm BI /W 2 /H 2 /CS /G /BPC 8 ID 0000 EI Q" for n in range(10))
WITHOUT_TEXT = {
    "outlines": (" ".join(f"q 1 0 0 1 {10 * n} 700 cm {LETTER} Q" for n in range(20)), "the letters of the page are drawings"),
    "a frame": ("10 10 m 90 10 l 90 90 l h s", None),
    "a font without meaning": ("BT /F1 12 Tf 72 700 Td <002400250026> Tj ET", "the file does not say what the letters of the page mean"),
    "strips": (files.pdf_lines((72, 20, "Scanned in 2024")) + STRIPS, "the page is a picture without text"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "why"), WITHOUT_TEXT.values(), ids=WITHOUT_TEXT)
def test_a_page_whose_letters_are_no_text(content: str, why: str | None) -> None:
    data = files.pdf_of(content)
    if "Tj" in content and "Scanned" not in content:
        data = data.replace(b"/F1 3 0 R", GLYPHS.encode())
    notes = read(data)[1]
    assert [note.text for note in notes] == [f"{why}; {OCR}" if why else "the page has drawings and no text"]
    assert notes[0].page == 1


def test_letters_with_a_meaning_are_not_recognised_again() -> None:
    data = files.pdf_of(files.pdf_lines((72, 700, "Words.")) + WITHOUT_TEXT["outlines"][0])
    assert read(data) == ("Words.", [])


def arabic(drawn: str, meanings: dict[str, str]) -> bytes:
    """Return a PDF that draws characters from left to right. `meanings`: the letters that each stands for."""
    lines = "\n".join(f"<{ord(code):02x}> <{letters.encode('utf-16-be').hex()}>" for code, letters in meanings.items())
    table = (
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap 1 begincodespacerange <00> <ff> endcodespacerange\n"
        f"{len(meanings)} beginbfchar\n{lines}\nendbfchar endcmap end end"
    )
    stream = f"<< /Length {len(table)} >>\nstream\n{table}\nendstream"
    data = files.pdf_of(files.pdf_lines((72, 700, drawn)), objects=[stream])
    return data.replace(b"/Encoding /WinAnsiEncoding", b"/ToUnicode 6 0 R")


@pytest.mark.parametrize(
    "word", [["س", "لا", "م"], ["ا", "لإ", "ي", "ج", "ا", "ر"], ["ا", "ل", "ب"], ["الله"]], ids="".join
)
def test_arabic_ligatures(word: list[str]) -> None:
    drawn = "".join(chr(65 + place) for place in range(len(word)))
    assert text_of(arabic(drawn, dict(zip(drawn, reversed(word), strict=True)))) == "".join(word)


@pytest.mark.parametrize(
    "before",
    [
        b"\r\n",
        b"\xef\xbb\xbf",
        b"\0\0",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/pdf\r\n\r\n",
        b"x" * 1000 + b"\n",
    ],
)
def test_bytes_before_the_file_do_not_make_it_text(before: bytes) -> None:
    assert text_of(before + files.pdf(["Hello."])) == "Hello."
    assert text_of(before + files.pdf(["Hello."]), "a.pdf") == "Hello."


def raised(
    before: str, number: str, after: str = "", *, height: float = 4, size: float = 8, x: float = 60, y: float = 700
) -> str:
    """Return a content stream with a line whose middle is raised."""
    return (
        f"BT /F1 12 Tf 1 0 0 1 {x} {y} Tm ({before}) Tj /F1 {size} Tf {height} Ts ({number}) Tj "
        f"/F1 12 Tf 0 Ts ({after}) Tj ET "
    )


FRACTION = "BT /F1 12 Tf 60 700 Td (2) Tj /F1 8 Tf 4 Ts (1) Tj 0 Ts (/) Tj -1 Ts (2) Tj 0 Ts /F1 12 Tf ( cups) Tj ET"
RAISED = [
    (raised("10", "6", " kg"), "10⁶ kg"),
    (raised("10", "-12", " mol."), "10⁻¹² mol."),
    (raised("5 000", "2", " in all"), "5 000² in all"),
    (raised("385207", "4"), "385207⁴"),
    (raised("19", "99"), "19⁹⁹"),
    (raised("10", "2n", "."), "10²ⁿ."),
    (raised("10", "2k", "."), "10^2k."),
    (raised("", "1", " Except in August."), "¹ Except in August."),
    (raised("1", "23", "45", height=0), "12345"),
    (raised("1", "23", "45", height=-3), "12345"),
    (raised("7", "3 items", size=2), "7 3 items"),
    (raised("The 1", "st", " of May"), "The 1st of May"),
    (raised("x", "n", " is odd"), "xⁿ is odd"),
    (raised("rent", "b", " is due"), "rent^b is due"),
    (raised("Le XX", "e", " arr."), "Le XXe arr."),
    (raised("M", "r", " Smith and ") + raised("D", "r", " Jones", x=140), "Mr Smith and Dr Jones"),
    ("BT /F1 28 Tf 60 700 Td (I) Tj /F1 12 Tf 12 Ts (n the beginning) Tj ET", "In the beginning"),
    (FRACTION, "2 1/2 cups"),
    (f"q 0 1 -1 0 800 0 cm {raised('10', '6', ' kg')} Q", "10⁶ kg"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "text"), RAISED, ids=[text for _, text in RAISED])
def test_superscript_numbers_are_not_read_as_digits_of_another_number(content: str, text: str) -> None:
    assert " ".join(text_of(files.pdf_of(content)).split()) == text


def spaced(word: str, x: float, y: float) -> list[tuple[float, float, str]]:
    """Return the letters of a word, of which each is placed by itself."""
    return [(x + 6.2 * n, y, letter) for n, letter in enumerate(word)]


COLUMN = [(60.0, 700 - 14.0 * n, str(n)) for n in range(9)]
BREAKS = {
    "a column of digits": (COLUMN, "0 1 2 3 4 5 6 7 8"),
    "a column of digits beside a word": ([(30, 706, "r"), *COLUMN[:3]], "r 0 1 2"),
    "a number below a column": ([*COLUMN, *spaced("12", 60, 560)], "0 1 2 3 4 5 6 7 8 12"),
    "a word below a column": ([*COLUMN, *spaced("ho", 60, 560)], "0 1 2 3 4 5 6 7 8 ho"),
}


@pytest.mark.parametrize(("drawn", "text"), BREAKS.values(), ids=BREAKS)
def test_cells_above_each_other_are_apart_and_words_are_whole(drawn: list[tuple[float, float, str]], text: str) -> None:
    assert " ".join(text_of(files.pdf_of(files.pdf_lines(*drawn))).split()) == text


def test_a_subscript_does_not_end_its_line() -> None:
    below = raised("Carbon dioxide is CO", "2", ", as you know", height=-3)
    column = files.pdf_lines(*((540.0, 700 - 14.0 * n, str(n)) for n in range(9)))
    assert "CO2, as you know" in text_of(files.pdf_of(column + " " + below))


STACKED = [
    ("a", 4, "2", -3, "1", "a²₁ + b"),
    ("a", -3, "1", 4, "2", "a₁² + b"),
    ("a", 4, "12", -3, "10", "a¹²₁₀ + b"),
    ("a", -3, "i", 4, "2", "ai² + b"),
    ("a", 4, "2", -3, "k", "a²_k + b"),
    ("5", 4, "1", -3, "2", "5¹\n2 + b"),
]


@pytest.mark.parametrize(
    ("base", "first", "one", "second", "other", "text"), STACKED, ids=[each[-1] for each in STACKED]
)
def test_a_superscript_and_a_subscript_of_one_base(
    base: str, first: int, one: str, second: int, other: str, text: str
) -> None:
    content = (
        f"BT /F1 11 Tf 1 0 0 1 60 700 Tm ({base}) Tj /F1 7 Tf 1 0 0 1 66.2 {700 + first} Tm ({one}) Tj "
        f"1 0 0 1 66.2 {700 + second} Tm ({other}) Tj /F1 11 Tf 1 0 0 1 {67 + 4 * len(other)} 700 Tm ( + b) Tj ET"
    )
    assert text_of(files.pdf_of(content)) == text


def test_a_superscript_number_does_not_end_its_line() -> None:
    content = raised("The rent is 300 crowns", "1", " per month", y=700) + raised("for 10", "2", " years.", y=680)
    assert text_of(files.pdf_of(content)) == "The rent is 300 crowns¹ per month\nfor 10² years."


def test_a_superscript_number_on_a_page_that_is_drawn_upwards() -> None:
    lines = [("It covers 10", "6", ""), ("It is for you.", "", ""), ("The plan is new.", "", "")]
    content = "".join(raised(*line, y=600 + 20 * n) for n, line in enumerate(lines))
    assert text_of(files.pdf_of(content)) == "The plan is new.\nIt is for you.\nIt covers 10⁶"


def test_superscript_numbers_in_mixed_columns() -> None:
    title = files.pdf_lines((60, 760, "A title that is wide enough to reach across both of the columns"))
    rows = zip(
        (*LEFT[:2], "a new chair, with 10", "votes of all."),
        (*RIGHT[:2], "she begins on the 4", "of May."),
        strict=True,
    )
    lines = [
        raised(words, "6" if words.endswith("0") else "", "", x=x, y=700 - 14 * n)
        for n, row in enumerate(rows)
        for x, words in zip((60, 330), row, strict=True)
    ]
    assert text_of(files.pdf_of(title + " ".join(lines))).split("\n")[1:] == [
        *LEFT[:2], "a new chair, with 10⁶", "votes of all.", *RIGHT[:2], "she begins on the 4", "of May.",
    ]  # fmt: skip


@pytest.mark.parametrize("shown", [0, 90, 180, 270])
@pytest.mark.parametrize("drawn", ["1 0 0 1 0 0", "0 1 -1 0 612 0", "-1 0 0 -1 612 792", "0 -1 1 0 0 792"])
def test_the_lines_of_a_turned_page_are_in_their_order(drawn: str, shown: int) -> None:
    lines = files.pdf_lines(
        (60, 680, "and needs a malfunc-"), (60, 666, "tioning thermostat."), (60, 640, "It ends here.")
    )
    content = raised("It covers 10", "6", " people") + lines
    found = text_of(files.pdf_of(f"q {drawn} cm {content} Q", page=f"/Rotate {shown}"))
    assert found.split("\n") == ["It covers 10⁶ people", "and needs a malfunctioning thermostat.", "It ends here."]
