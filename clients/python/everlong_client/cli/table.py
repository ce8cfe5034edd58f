"""Tables as text for a terminal, such as that of a session's memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rich.filesize import decimal

from everlong_client.types.memory import Memory, MemoryLayer, MemoryPhrase

_WIDEST = 60


def table(memory: Memory) -> str:
    """Return the whole memory as lines of text: the documents, the parts, and the layers of an ∞-former."""
    return "".join(f"{line.rstrip()}\n" for line in _lines(memory))


def headline(memory: Memory) -> str:
    """Return a summary of the memory in one line."""
    segments = "segment" if memory.segments == 1 else "segments"
    return (
        f"{memory.memory}: {memory.tokens:,} tokens read in {memory.segments:,} {segments} of {memory.segment_length}, "
        f"{memory.open} in the open one; {decimal(memory.bytes)}"
    )


def phrase_text(phrase: MemoryPhrase) -> str:
    """Return a phrase as one line: its quoted words, or its token positions if the words are unknown."""
    if phrase.quote is None:
        return _span(phrase.start, phrase.end)
    return f"“{shortened(phrase.quote.text)}”"


def shortened(text: str, widest: int = _WIDEST) -> str:
    """Return a text as one line of at most `widest` characters."""
    text = " ".join(text.split())
    return text if len(text) <= widest else text[: widest - 1] + "…"


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[str] = ()) -> Iterator[str]:
    """Yield the head and the rows with aligned columns: the first one and those named in `left` to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    to_left = [name in (head[0], *left) for name in head]
    for row in (head, *rows):
        yield "  ".join(
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(row, widths, to_left, strict=True)
        )


def _lines(memory: Memory) -> Iterator[str]:
    yield headline(memory)
    for document in memory.documents:
        yield f"{document.document} is tokens {_span(document.start, document.end)}"
    if memory.parts:
        yield ""
        yield from aligned(
            ("part", "tokens", "used", "of", "age", "change"),
            [
                (
                    part.name if part.layer is None else f"{part.name} {part.layer}",
                    _span(part.start, part.end),
                    f"{part.used:,.0f}" if part.used == int(part.used) else f"{part.used:,.1f}",
                    f"{part.slots:,}",
                    f"{part.age:,}",
                    "" if part.change is None else f"{part.change:.1%}",
                )
                for part in memory.parts
            ],
        )
    if memory.layers:
        yield ""
        yield from aligned(
            ("layer", "half of the attention", "space", "most space"),
            [(str(layer.layer), _half_of_attention(layer), *_largest_phrase(layer)) for layer in memory.layers],
            left=("most space",),
        )


def _largest_phrase(layer: MemoryLayer) -> tuple[str, str]:
    if not layer.phrases:
        return "", "all have the same"
    return f"{layer.phrases[0].space:.1%}", phrase_text(layer.phrases[0])


def _half_of_attention(layer: MemoryLayer) -> str:
    """Return the shortest span of tokens that gets half of the attention."""
    if layer.attention is None:
        return ""
    edges, cumulative = layer.edges, [0.0]
    for share in layer.attention:
        cumulative.append(cumulative[-1] + share)
    best, last = (edges[0], edges[-1]), 0
    for first in range(len(cumulative)):
        while last < len(cumulative) and cumulative[last] - cumulative[first] < cumulative[-1] / 2:
            last += 1
        if last == len(cumulative):
            break
        if edges[last] - edges[first] < best[1] - best[0]:
            best = edges[first], edges[last]
    return _span(round(best[0]), round(best[1]))


def _span(start: int, end: int) -> str:
    return f"{start:,} – {end:,}" if end > start else "none"
