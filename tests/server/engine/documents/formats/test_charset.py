"""Plain text in other encodings than UTF-8 is decoded, with a note."""

from __future__ import annotations

import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong_server.engine.documents.formats.blocks import Unreadable
from everlong_server.engine.documents.formats.charset import best_encoding, unmarked_utf16
from everlong_server.engine.documents.formats.plausible import odd_share
from everlong_server.engine.documents.formats.zips import entry_names
from tests.files import zipped
from tests.server.engine.documents.formats.reading import notes_of, text_of

FRENCH = "Le cœur a ses raisons que la raison ne connaît point.\r\nL’élève préféré du maître était né à Noël.\r\n"
GERMAN = "Die Straße führt über die Brücke nach München.\nGrößere Häuser stehen für ältere Gäste bereit.\n"
RUSSIAN = "Все счастливые семьи похожи друг на друга.\nВсё смешалось в доме Облонских.\n"
JAPANESE = "吾輩は猫である。\n名前はまだ無い。\nどこで生れたかとんと見当がつかぬ。\n何でも薄暗いじめじめした所でニャーニャー泣いていた事だけは記憶している。\n"
CHINESE = "道可道，非常道；名可名，非常名。\n无名天地之始，有名万物之母。\n故常无欲，以观其妙；常有欲，以观其徼。\n"
KOREAN = "모든 국민은 인간으로서의 존엄과 가치를 가지며,\n행복을 추구할 권리를 가진다.\n"
GREEK = "Άνδρα μοι έννεπε, Μούσα, πολύτροπον.\nΗ γλώσσα είναι όμορφη και παλιά.\n"
ARABIC = "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق.\nوقد وهبوا عقلاً وضميراً.\n"
CASES = [
    (FRENCH, "cp1252"), (GERMAN, "cp1252"), (RUSSIAN, "cp1251"), (RUSSIAN, "koi8_r"), (JAPANESE, "cp932"), (JAPANESE, "euc_jp"),
    (CHINESE, "gb18030"), (KOREAN, "cp949"), (GREEK, "cp1253"), (ARABIC, "cp1256"),
    *[(text, f"utf-16-{order}") for text in (FRENCH, RUSSIAN, JAPANESE, CHINESE, KOREAN, ARABIC) for order in ("le", "be")],
]  # fmt: skip


@pytest.mark.parametrize(("text", "encoding"), CASES)
def test_a_text_is_decoded_by_a_guess(text: str, encoding: str) -> None:
    data = text.encode(encoding)
    assert text_of(data, "a.txt") == text
    (note,) = notes_of(data, "a.txt")  # several encodings may fit, with the same text
    assert note.startswith("its encoding is ")
    assert note.endswith(", not UTF-8; it declares none, so that is a guess")


ORDINARY = [
    ("cp1252", "Der Käufer trägt die Kosten."), ("cp1252", "naïve approach"), ("cp1252", "10 °C ± 0.5"), ("cp1252", "£5 or €6"),
    ("cp1252", "It’s late"), ("cp1252", "“Quite so…” he said."), ("cp1252", "3 µm"), ("cp1252", "§ 5 Abs. 1"), ("cp1252", "½ cup"),
    ("cp1252", "Müller;Zürich;5"), ("cp1252", "een coördinator en een café"), ("cp1252", "Blåbærsyltetøy"), ("cp1252", "São Paulo"),
    ("cp1252", "/* © 2004 */"), ("cp1252", "BMP myndin er með gölluð gögn í hausnum"), ("cp1250", "Antonín Dvořák; Plzeň; 1841"),
    ("cp1250", "Zażółć gęślą jaźń."), ("cp1250", "Łódź; Kraków; 12"), ("cp1250", "Árvíztűrő tükörfúrógép"),
    ("cp1250", "Tento soubor nelze otevřít, protože byl smazán."), ("cp1250", "Fişierul nu poate fi deschis, încercaţi din nou."),
    ("iso8859_2", "Pójdźże, kiń tę chmurność w głąb flaszy!"), ("iso8859_2", "Tento soubor nelze otevřít, protože byl smazán."),
    ("cp1251", "Привет, мир!"), ("cp1251", "Ще не вмерла України"), ("koi8_r", "Привет, мир!"), ("koi8_u", "Ще не вмерли України ні слава"),
    ("cp866", "Привет, мир! Съешь ещё этих мягких булок"), ("cp1254", "Pijamalı hasta yağız şoföre çabucak güvendi."),
    ("cp1255", "שלום עולם, מה שלומך היום?"), ("cp1257", "Rīgas rātsnama šķūnis"), ("cp932", "名前,住所,電話番号"), ("cp932", "株式会社"),
    ("euc_jp", "こんにちは世界"), ("gb18030", "姓名,地址"), ("big5", "你好，世界。這是繁體中文"), ("cp949", "이름,주소"),
    ("cp850", "Größere Häuser stehen für ältere Gäste bereit."), ("cp850", "Le café était fermé à Noël."),
    ("cp852", "Tento soubor nelze otevřít, protože byl smazán."), ("mac_roman", "Größere Häuser stehen für ältere Gäste bereit."),
    ("cp1252", "Größe: 5 × 3 m"), ("cp1252", "¿Qué tal?…"), ("cp1252", "È vero."), ("cp1252", "Nº 5"), ("cp1252", "50 ÷ 2"),
    ("cp1252", "NÃO É POSSÍVEL"), ("cp1252", "OPTIONS AVANCÉES"), ("cp1252", "¡Olé!"), ("cp1252", "FOR Å SIKRE"), ("cp1252", "12;più;3"),
    ("cp1250", "ŁÓDŹ, KRAKÓW"), ("cp1251", "ПРИВЕТ МИР"), ("cp1251", "ВСТРОЕННЫЕ ФИЛЬТРЫ"),
    ("cp850", "Bitte ein gültiges Datum eingeben. GEÄNDERT FÜR SIE."), ("cp866", "ПОЛЬЗОВАТЕЛЬ С ТАКИМ ИМЕНЕМ УЖЕ СУЩЕСТВУЕТ."),
    ("cp1252", "N° 5 – 3ª"), ("cp1252", "¡Únete!"), ("cp1252", "1;é;2.5"), ("cp1252", "Þú"), ("cp1252", "© 2004 número"),
    ("cp1252", "21º été"), ("cp1252", "GRÖSSE"), ("cp1252", "ESPAÑA"), ("cp1252", "PREÇO: 5 €"), ("cp1252", "À BIENTÔT"),
    ("cp1252", "HÁ ALGO DE ERRADO COM A INSTALAÇÃO"), ("cp1252", "NON È REGISTRATO"), ("cp1252", "NORSK (BOKMÅL)"),
    ("cp1250", "ZAŻÓŁĆ GĘŚLĄ JAŹŃ"), ("cp1250", "PŘÍLIŠ ŽLUŤOUČKÝ KŮŇ"), ("cp1250", "ŁÓDŹ"), ("iso8859_2", "PŘÍLIŠ ŽLUŤOUČKÝ KŮŇ"),
    ("cp1251", "ПРИВЕТ, МИР!"), ("cp1251", "КНИГА"), ("cp1251", "12;да;3"), ("koi8_r", "ПРИВЕТ, МИР!"), ("cp866", "ПРИВЕТ, МИР!"),
    ("cp1253", "ΠΑΡΟΥΣΙΑΣΤΗΚΕ ΣΦΑΛΜΑ"), ("cp850", "GRÖSSERE HÄUSER STEHEN FÜR GÄSTE BEREIT."),
]  # fmt: skip


@pytest.mark.parametrize(("encoding", "text"), ORDINARY)
def test_a_short_text_is_decoded(encoding: str, text: str) -> None:
    assert text_of(text.encode(encoding), "a.txt") == text


def test_an_encoding_of_a_font_is_chosen_by_any_of_its_names() -> None:
    assert best_encoding("Größe über alles".encode("mac_roman"), ["cp1252", "mac_roman"]) == "mac-roman"


def test_japanese_unix_text_has_the_name_of_the_encoding_asked_for() -> None:
    assert best_encoding(JAPANESE.encode("euc_jp")) == "euc_jp"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Größe", "koi8_r"), ("5 × 3 m", "cp1251"), ("50 ÷ 2", "cp874"), ("È vero.", "cp1251"), ("São Paulo", "cp1256"),
        ("¡Únete!", "euc_jp"), ("Þú", "gb18030"), ("À BIENTÔT", "cp850"), ("Qué tal", "mac_roman"), ("NÃO", "koi8_u"),
    ],
)  # fmt: skip
def test_a_text_in_a_wrong_encoding_has_odd_characters(text: str, encoding: str) -> None:
    assert odd_share(text) == 0
    assert odd_share(text.encode("cp1252").decode(encoding)) > 0


@pytest.mark.parametrize(
    "text",
    [
        FRENCH, RUSSIAN, JAPANESE, CHINESE, KOREAN, GREEK, ARABIC, "A и B: привет", "col·lega", "Web页面有效", "12;да;3", "สวัสดีครับ 5",
        "┌──┐ │ ä │", "L’été – 5 € · 3 µm",
    ],
)  # fmt: skip
def test_an_ordinary_text_has_no_odd_characters(text: str) -> None:
    assert odd_share(text) == 0


@pytest.mark.parametrize(
    ("text", "encoding", "damage"),
    [(JAPANESE, "cp932", b"\x81"), (GERMAN, "cp1252", b"\x90"), (RUSSIAN, "cp1251", b"\x98")],
)
def test_a_damaged_character_does_not_change_the_encoding(text: str, encoding: str, damage: bytes) -> None:
    whole = (text * 100).encode(encoding)
    assert text_of(damage + b" " + whole, "a.txt") == f"\ufffd {text * 100}"


@pytest.mark.parametrize(
    ("name", "encoding"),
    [("報告書.txt", "cp932"), ("Příloha č. 1.pdf", "cp852"), ("报告.txt", "gb18030"), ("Отчёт за 2020.txt", "cp866")],
)
def test_a_name_in_a_zip_file_is_decoded(name: str, encoding: str) -> None:
    entry = zipfile.ZipInfo(name.encode(encoding).decode("cp437"))
    assert entry_names([entry]) == [name]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
@pytest.mark.parametrize("text", [FRENCH, RUSSIAN, CHINESE])
def test_a_byte_order_mark_decides(text: str, encoding: str) -> None:
    data = text.encode(encoding)
    assert text_of(data) == text
    assert notes_of(data) == [f"its encoding is {encoding}, not UTF-8"]


def test_a_declared_encoding_is_not_guessed() -> None:
    text = '<?xml version="1.0" encoding="iso-8859-2"?><a>Litwo! ty jesteś jak zdrowie</a>'
    assert text_of(text.encode("iso-8859-2"), "a.xml") == text
    assert notes_of(text.encode("iso-8859-2"), "a.xml") == ["its encoding is iso8859-2, not UTF-8"]


def test_damaged_utf8_stays_utf8() -> None:
    data = RUSSIAN.encode() + b"\xd0 and " + RUSSIAN.encode()
    assert text_of(data) == f"{RUSSIAN}\ufffd and {RUSSIAN}"
    assert notes_of(data) == ["1 damaged characters were replaced by U+FFFD"]


def test_the_first_byte_that_is_not_ascii_may_come_late() -> None:
    text = "All of this is plain. " * 100_000 + RUSSIAN
    assert text_of(text.encode("cp1251")) == text


def test_a_text_inside_an_archive_is_decoded() -> None:
    data = zipped({"a.txt": KOREAN.encode("cp949"), "b.csv": FRENCH.encode("utf-16"), "c.bin": bytes(range(256))})
    assert text_of(data) == f"[File] a.txt\n\n{KOREAN.strip()}\n\n[File] b.csv\n\n{FRENCH.strip()}"
    assert notes_of(data)[0] == "a.txt: its encoding is cp949, not UTF-8; it declares none, so that is a guess"
    assert "c.bin: its format is not supported; it was left out" in notes_of(data)


def test_a_text_with_nul_characters_is_refused() -> None:
    with pytest.raises(Unreadable, match="NUL"):
        text_of("a\0b".encode("utf-16"))


@pytest.mark.parametrize("data", [b"Oh.\0", b"a\0", b"Yes\0" * 40, b"ab\0" * 40, b"\xe9\0\r\0"])
def test_words_that_end_with_a_nul_byte_are_not_utf16(data: bytes) -> None:
    assert unmarked_utf16(data) is None


@pytest.mark.parametrize("text", ["A line.\n", "“Quite so…” he said."])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_short_text_in_utf16_is_recognised(text: str, encoding: str) -> None:
    assert unmarked_utf16(text.encode(encoding)) == encoding


def test_the_only_byte_that_is_not_ascii_may_be_the_last() -> None:
    assert text_of("We met at the café".encode("cp1252")) == "We met at the café"


@given(st.binary(max_size=300))
def test_only_whole_characters_make_utf16(data: bytes) -> None:
    encoding = unmarked_utf16(data)
    if encoding is not None:
        assert "\0" not in data[: len(data) // 2 * 2].decode(encoding, "replace")
