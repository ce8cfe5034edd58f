"""Print the figures of `everlong bench … --json FILE` as Markdown tables: python benchmarks/tables.py FILE …"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from everlong_lab.harness.report import shown


def tables(document: dict[str, Any]) -> list[str]:
    """Return the table of a document's rows, and that of its targets if it has any."""
    rows = [[shown(value) for value in row.values()] for row in document["rows"]]
    targets = [
        [
            target["name"],
            shown(target["value"]),
            f"{target['comparison']} {shown(target['target'])}",
            str(target["met"]),
        ]
        for target in document["targets"]
    ]
    return [
        _table([name.replace("_", " ") for name in document["rows"][0]], rows),
        *([_table(["target", "value", "should be", "met"], targets)] if targets else []),
    ]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        document = json.loads(Path(name).read_text())
        sys.stdout.write("\n\n".join([f"`{document['command']}`", *tables(document)]) + "\n\n")
