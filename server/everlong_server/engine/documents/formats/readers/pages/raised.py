"""Finds the superscripts that a page makes with styles instead of `sup`, as Google Docs does."""

from __future__ import annotations

from typing import Any

from everlong_server.engine.documents.formats.readers.pages.styles import Styles


def mark_superscripts(tree: Any) -> None:
    """Make a `sup` of each `span` that a style raises: by its own attribute, or by a class of the page's styles."""
    styles = Styles(tree, "vertical-align")
    for span in tree.xpath("//span[@style or @class]"):
        if styles.of(span).split()[:1] == ["super"]:
            span.tag = "sup"
