"""`blocks`: the code blocks of the documentation, and which test runs each.

tests/test_pages.py runs blocks of `sh`, `python` and `js`. A comment on the line before a block changes that:

- `<!-- slow -->`: tests/test_pages.py runs the block only with `-m docs`.
- `<!-- run by tests/compat/test_compat.py -->`: the named file runs the block.
- `<!-- not run: needs Docker -->`: no test runs the block, for one of `REASONS`.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
    "clients/js/README.md",
    "clients/python/README.md",
    "deploy/README.md",
]
COMMANDS = ("sh", "python", "js")
SHOWN = ("json", "text", "yaml")
"""Languages of blocks that are shown and not run."""
REASONS = (
    "needs a GPU",
    "needs Docker",
    "needs a cluster",
    "needs a server's data",
    "takes hours",
    "takes minutes and is measured",
)
"""The allowed reasons for not running a block."""

_BLOCK = re.compile(
    r'(?:^<!-- (?:not run: (?P<reason>.+?)|run by (?P<test>\S+)|(?P<slow>slow)) -->\n)?^```(?P<language>\w*)(?: title="(?P<title>[^"\n]+)")?\n'
    r"(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A code block of a page.

    number: its index among the page's blocks, from 0.
    heading: the last heading before it.
    title: the name of the file that the block shows, if it shows one.
    reason: why no test runs it. test: the file that runs it, if not tests/test_pages.py. slow: set if it needs `-m docs`.
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
    """Return the blocks of `page`, a path relative to the repository, in order."""
    text = (ROOT / page).read_text()
    found = []
    for number, match in enumerate(_BLOCK.finditer(text)):
        headings = re.findall(r"^#+ (.+)$", text[: match.start()], re.MULTILINE)
        found.append(Block(page, number, headings[-1], **match.groupdict()))
    return found


def run_by(test: str) -> list[Block]:
    """Return the blocks of all pages that the file `test` must run."""
    return [block for page in PAGES for block in blocks(page) if block.test == test]


def docs_module(name: str) -> ModuleType:
    """Return the module docs/NAME.py."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
