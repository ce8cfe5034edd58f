"""The sources of an answer as lines for the terminal."""

from __future__ import annotations

from dataclasses import replace

from everlong_client.cli.originals import Originals
from everlong_client.types.message import Citation, Evidence, Message

_MAX_CHARS = 160
"""Characters of a sentence or passage that a line shows."""


def citation_lines(message: Message, originals: Originals) -> list[str]:
    """Return a line for each citation: its number, the file, page or line, section, and the cited words.

    The number is that of the passage in the answer's evidence, from 1. Lines of an answer with several cited sentences name
    the sentence.
    """
    several = len({citation.end for citation in message.citations}) > 1
    return [_line(message, citation, originals, named=several) for citation in message.citations]


def place(passage: Evidence, filename: str | None, originals: Originals) -> str:
    """Return where a passage begins: the file, the page or the line of the original, and the section."""
    page = None if passage.page is None else f"page {passage.page}"
    if page is None and (line := originals.line(passage.document, passage.start_byte, passage.text)) is not None:
        page = f"line {line:,}"
    return ", ".join(filter(None, (filename or passage.document, page, passage.section)))


def _line(message: Message, citation: Citation, originals: Originals, *, named: bool) -> str:
    passage = message.evidence[citation.evidence]
    quote = passage.text[citation.document_start - passage.start : citation.document_end - passage.start]
    cited = passage if citation.page is None else replace(passage, page=citation.page)
    sentence = f"“{_shortened(message.content[citation.start : citation.end])}” " if named else ""
    return f"{sentence}[{citation.evidence + 1}] {place(cited, citation.filename, originals)}: “{_shortened(quote)}”"


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 1] + "…"
