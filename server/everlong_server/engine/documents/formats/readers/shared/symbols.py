"""Unicode characters for the symbol fonts of Office files, whose characters have codes of their own."""

from __future__ import annotations

# After the tables that the Unicode consortium publishes for Adobe's Symbol and Microsoft's Wingdings.
_SYMBOL = dict(
    zip(
        [*range(0x20, 0x7F), *range(0xA0, 0xFF)],
        " !∀#∃%&∋()∗+,−./0123456789:;<=>?≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}∼"
        "€ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…⏐⎯↵ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊〈®©™∑⎛⎜⎝⎡⎢⎣⎧⎨⎩⎪\uf8ff〉∫⌠⎮⌡⎞⎟⎠⎤⎥⎦⎫⎬⎭",
        strict=True,
    )
)
_WINGDINGS = {
    0x22: "✂", 0x28: "☎", 0x2A: "✉", 0x36: "⌛", 0x46: "☞", 0x4A: "☺", 0x4C: "☹", 0x6C: "●", 0x6D: "❍", 0x6E: "■", 0x6F: "□",
    0x71: "❑", 0x75: "◆", 0x76: "❖", 0x78: "☒", 0x9F: "•", 0xA7: "▪", 0xA8: "☐", 0xAB: "★", 0xD8: "➢", 0xDF: "←", 0xE0: "→",
    0xE1: "↑", 0xE2: "↓", 0xE8: "➔", 0xEF: "⇦", 0xF0: "⇨", 0xFB: "✗", 0xFC: "✓", 0xFD: "☒", 0xFE: "☑",
}  # fmt: skip
_FONTS = {
    "symbol": _SYMBOL,
    "wingdings": _WINGDINGS,
    "wingdings 2": {0x4F: "✗", 0x50: "✓", 0x51: "☒", 0x52: "☑", 0x53: "☒", 0x97: "●", 0xA3: "☐"},
    "webdings": {0x34: "▶", 0x61: "✓", 0x63: "☐", 0x67: "■", 0x6E: "●", 0x72: "✗"},
}


def is_symbol_font(font: str) -> bool:
    """Whether the characters of the font have codes of their own."""
    return font.lower() in _FONTS


def character(font: str, code: int) -> str | None:
    """Return the Unicode character for a character of a font; None if it is not known.

    `code`: as in Office files, where U+F000 may be added to the code of a symbol font.
    """
    private = 0xE000 <= code <= 0xF8FF
    if is_symbol_font(font):
        return _FONTS[font.lower()].get(code & 0xFF)
    return None if private else chr(code)
