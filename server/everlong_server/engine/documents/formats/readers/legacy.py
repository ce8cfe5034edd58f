"""Reads files through the library kreuzberg: Excel files in binary form, and damaged Office files of 1997 to 2003."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everlong_server.engine.documents.formats.blocks import Block, Notes, Unreadable
from everlong_server.engine.documents.formats.catalogue import FORMATS

_LAYERS = {"header": "[Header] ", "footer": "[Footer] ", "footnote": "[Footnote] "}
_REPEATED = {"ppt": "footnote"}
"""Parts that the library returns a second time, without their spaces."""
_MISSING = {
    "doc": "it is damaged: its footnotes, headers and comments were not read",
    "ppt": "it is damaged: its slides are not told apart, and texts of its masters are among theirs",
    "xls": "it is damaged: its comments, text boxes, charts, pictures and headers were not read",
}


def read(file: Path, notes: Notes, kind: str) -> Iterator[Block]:
    """Yield the paragraphs, tables and headings of the file. A sheet is a section."""
    import kreuzberg  # noqa: PLC0415

    config = kreuzberg.ExtractionConfig(
        use_cache=False,
        enable_quality_processing=False,
        include_document_structure=True,
        content_filter=kreuzberg.ContentFilterConfig(
            include_headers=True, include_footers=True, strip_repeating_text=False, include_watermarks=True
        ),
        concurrency=kreuzberg.ConcurrencyConfig(max_threads=1),
    )
    try:
        result = kreuzberg.extract_file_sync(str(file), FORMATS[kind].media_types[0], config=config)
    except kreuzberg.KreuzbergError as error:
        why = "is encrypted" if "password" in str(error).lower() or "encrypt" in str(error).lower() else "is damaged"
        raise Unreadable(f"the file {why} ({str(error)[:200]})") from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of Rust; it is no `Exception`
            raise
        raise Unreadable("the file is damaged") from None
    for warning in result.processing_warnings or ():
        notes.add(str(warning))
    if kind in _MISSING:
        notes.add(_MISSING[kind])
    for node in result.document["nodes"] if result.document else []:
        if _REPEATED.get(kind, "") in (node["content"]["node_type"], node.get("content_layer")):
            continue
        yield _block(node)


def _block(node: Mapping[str, Any]) -> Block:
    content = node["content"]
    match content["node_type"]:
        case "group" | "list":  # contains other nodes
            return Block("")
        case "heading":
            return Block(content["text"], section=" ".join(content["text"].split()))
        case "table":
            return Block(_table(content["grid"]["cells"]))
        case "metadata_block":
            return Block("\n".join(f"{name}: {value}" for name, value in content["entries"]))
        case "slide":
            return Block("", page=content["number"])
    text = content.get("text") or content.get("description") or ""
    return Block(_LAYERS.get(node.get("content_layer", ""), "") + text.strip() if text.strip() else "")


def _table(cells: list[Mapping[str, Any]]) -> str:
    rows: dict[int, list[str]] = {}
    for cell in cells:
        rows.setdefault(cell["row"], []).append(cell["content"].strip())
    return "\n".join("\t".join(row).rstrip() for row in rows.values()).strip("\n")
