"""The lines below an answer on the terminal: how its question was understood, its sources, and why it ended early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from everlong_client.cli.originals import Originals
from everlong_client.cli.table import shortened
from everlong_client.types.message import Citation, Evidence, Message

_MAX_CHARS = 160
"""Characters of a sentence or passage that a line shows."""
DOUBTFUL = 0.4
"""An answer with less agreement is probably wrong (docs/guide/asking.md, "Votes")."""
_MAX_PLACES = 5
"""Places that the line for an answer without citations shows."""


def question_lines(message: Message) -> list[str]:
    """Return a line with the question that was searched for and answered, if the server rewrote it; otherwise nothing."""
    asked = message.standalone_question
    return [] if asked is None else [f"the question was understood as “{shortened(asked, _MAX_CHARS)}”"]


def doubt_lines(message: Message) -> list[str]:
    """Return a warning if the model's answers to the question differ too much; otherwise nothing."""
    doubtful = message.agreement is not None and message.agreement < DOUBTFUL
    return ["probably wrong: the model answered the question several times, and the answers differ"] if doubtful else []


def source_lines(message: Message, originals: Originals, filename: Callable[[str], str | None]) -> list[str]:
    """Return the citations of an answer as lines; if it has none, one line with the passages that the model was shown.

    `filename` returns the name of the document with an id, or None if it is unknown.
    """
    if message.citations:
        return citation_lines(message, originals)
    if not message.evidence:
        return ["the search found no passage"]
    left, places = [*message.evidence], dict[str, None]()
    # Finds only the places that are shown, because `place` reads the file up to each line.
    while left and len(places) < _MAX_PLACES:
        passage = left.pop(0)
        places[place(passage, filename(passage.document), originals)] = None
    more = f"; and {len(left):,} more passage{'s' * (len(left) != 1)}" if left else ""
    return [f"the model was shown {'; '.join(places)}{more}"]


def citation_lines(message: Message, originals: Originals) -> list[str]:
    """Return a line for each citation: the file, page or line, section, and the cited words.

    Lines of an answer with several cited sentences begin with the sentence.
    """
    several = len({citation.end for citation in message.citations}) > 1
    return [_line(message, citation, originals, named=several) for citation in message.citations]


def place(passage: Evidence, filename: str | None, originals: Originals) -> str:
    """Return where a passage begins: the file, the page or the line of the original, and the section."""
    name = filename or originals.name(passage.document) or passage.document
    page = None if passage.page is None else f"page {passage.page}"
    if page is None and (line := originals.line(passage.document, passage.start_byte, passage.text)) is not None:
        page = f"line {line:,}"
    return ", ".join(filter(None, (name, page, passage.section)))


def end_lines(message: Message) -> list[str]:
    """Return a line that says why an answer ended early, or nothing for a complete answer."""
    match message.finish_reason:
        case "length":
            return [f"cut off after {token_count(message)}: raise --max-tokens"]
        case "repetition":
            return [f"cut off after {token_count(message)}: the model began to repeat itself"]
        case "cancelled":
            return [f"cancelled after {token_count(message)}"]
    return []


def token_count(message: Message) -> str:
    """Return the length of an answer, such as "7 tokens"."""
    tokens = message.usage.completion_tokens
    return f"{tokens:,} token{'s' * (tokens != 1)}"


def _line(message: Message, citation: Citation, originals: Originals, *, named: bool) -> str:
    passage = message.evidence[citation.evidence]
    before = passage.text[: citation.document_start - passage.start]
    quote = passage.text[len(before) : citation.document_end - passage.start]
    cited = replace(
        passage, start_byte=passage.start_byte + len(before.encode()), text=quote,
        page=citation.page or passage.page, section=citation.section or passage.section,
    )  # fmt: skip
    sentence = f"“{shortened(message.content[citation.start : citation.end], _MAX_CHARS)}” " if named else ""
    return f"{sentence}from {place(cited, citation.filename, originals)}: “{shortened(quote, _MAX_CHARS)}”"
