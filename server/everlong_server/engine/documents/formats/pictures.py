"""`draw_page`: draws a page of a PDF in a process of its own, with limits as for a conversion."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

from everlong_server.engine.documents.formats.conversion import MEMORY
from everlong_server.errors import InvalidRequest, NotFound

log = logging.getLogger(__name__)

NO_PAGE = 3
"""Exit code of the process for a page number that the PDF does not have."""
_SECONDS = 20
"""CPU seconds that a page may take."""


def draw_page(file: Path, number: int, width: int, passage: str) -> bytes:
    """Return the page as PNG, `width` pixels wide, with the words of the passage marked where it has them. Blocks.

    Raises `NotFound` for a page that the PDF lacks, and `InvalidRequest` for one that cannot be drawn.
    """
    module = "everlong_server.engine.documents.formats.page_worker"
    numbers = map(str, (number, width, _SECONDS, MEMORY))
    try:
        process = subprocess.run(
            [sys.executable, "-m", module, str(file), *numbers], input=passage.encode(), capture_output=True,
            timeout=3 * _SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise _not_drawn(number, "it takes too long") from None
    if process.returncode == NO_PAGE:
        raise NotFound(f"page: the PDF has no page {number}", param="page", code="page_not_found")
    if process.returncode != 0:
        log.warning("a page could not be drawn: %s", process.stderr.decode(errors="replace")[-2000:])
        raise _not_drawn(number, "it is damaged, or takes too much time or memory")
    return process.stdout


def _not_drawn(number: int, why: str) -> InvalidRequest:
    return InvalidRequest(f"page: page {number} cannot be drawn: {why}", param="page", code="unreadable_page")
