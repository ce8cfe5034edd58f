"""`blocks`: what stands in the code blocks of the documentation, and who runs it.

A block of `sh`, `python` or `js` runs in tests/test_pages.py, unless a comment before it says otherwise: `<!-- slow -->`
(there, with `-m docs`), `<!-- run by tests/compat/test_compat.py -->`, or `<!-- not run: needs Docker -->`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
    "clients/js/README.md",
    "clients/python/README.md",
    "deploy/README.md",
]
COMMANDS = ("sh", "python", "js")
SHOWN = ("text", "yaml")
"""Languages of blocks that there is nothing to run in."""
REASONS = ("needs a GPU", "needs Docker", "needs a cluster", "takes hours")
"""Why a block may not be run."""

_BLOCK = re.compile(
    r'(?:^<!-- (?:not run: (?P<reason>.+?)|run by (?P<test>\S+)|(?P<slow>slow)) -->\n)?^```(?P<language>\w*)(?: title="(?P<title>.+)")?\n'
    r"(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """`number`: of the page's blocks, from 0. `heading`: the last one before it. `title`: the file that it is, if it is one.

    `reason`: why nobody runs it; `test`: the file that does, if it is not tests/test_pages.py.
    """

    page: str
    number: int
    heading: str
    language: str
    code: str
    title: str | None
    reason: str | None
    test: str | None
    slow: str | None

    def __str__(self) -> str:
        return f"{self.page}[{self.number}]"


def blocks(page: str) -> list[Block]:
    """The page's blocks, in its order."""
    text = (ROOT / page).read_text()
    found = []
    for number, match in enumerate(_BLOCK.finditer(text)):
        headings = re.findall(r"^#+ (.+)$", text[: match.start()], re.MULTILINE)
        found.append(Block(page, number, headings[-1], **match.groupdict()))
    return found


def run_by(test: str) -> list[Block]:
    """The blocks of all pages that say that the file `test` runs them."""
    return [block for page in PAGES for block in blocks(page) if block.test == test]
