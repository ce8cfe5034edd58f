"""Run `everlong eval remembers`, and continue a run that was interrupted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from everlong_lab.eval.remembers import report
from everlong_lab.eval.remembers.measure import DocumentScores, RemembersPlan, measure
from everlong_lab.eval.remembers.texts import documents
from everlong_models import Model
from everlong_models.errors import DataError


class Journal:
    """Results of documents, a line after each way of asking, next to the file of the report. Without a file nothing is kept.

    A journal of another plan or model is replaced; a last line that was cut off is dropped.
    """

    def __init__(self, output: Path | None, plan: RemembersPlan, fingerprint: str) -> None:
        self._file = None if output is None else output.with_name(output.name + ".partial")
        self._key = hashlib.sha256(json.dumps([asdict(plan), fingerprint]).encode()).hexdigest()

    def done(self) -> dict[str, DocumentScores]:
        """Return the newest results of each document."""
        if self._file is None or not self._file.exists():
            return {}
        first, *lines = self._file.read_text(encoding="utf-8").split("\n")
        whole = lines[:-1] if first == self._key else []
        self._file.write_text("".join(f"{line}\n" for line in [self._key, *whole]), encoding="utf-8")
        found = [DocumentScores(**json.loads(line)) for line in whole]
        return {one.document: one for one in found}

    def keep(self, scores: DocumentScores) -> None:
        """Append the results of a document so far."""
        if self._file is not None:
            new = not self._file.exists()
            with self._file.open("a", encoding="utf-8") as to:
                to.write((f"{self._key}\n" if new else "") + json.dumps(asdict(scores), ensure_ascii=False) + "\n")

    def remove(self) -> None:
        """Delete the file: the report has everything."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def evaluate(
    model: Model, plan: RemembersPlan, data: Path, output: Path | None, progress: Callable[[str], None]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the table, and all figures for `--json`. Raises `DataError` or `ConfigError`."""

    def count(text: str) -> int:
        return len(model.tokenizer.encode(text))

    chosen = []
    for name in plan.sets:
        for length in plan.lengths:
            made = documents(data, name, length, plan.split, count=count, questions=plan.questions, seed=plan.seed)
            found = list(islice(made, plan.documents))
            if len(found) < 2:
                progress(f"not measured: the {plan.split} texts of {name} make no two documents of {length:,} tokens")
            else:
                chosen += found
    if not chosen:
        raise DataError(f"{data}: no set has texts for two documents of a length of {plan.lengths}")
    journal = Journal(output, plan, model.fingerprint)
    scores = measure(model, plan, chosen, done=journal.done(), keep=journal.keep, progress=progress)
    journal.remove()
    figures = {
        "model": model.name, "memory": model.memory_name, "fingerprint": model.fingerprint, "plan": asdict(plan),
        "documents": [asdict(one) for one in scores], "notes": report.notes(plan, scores),
    }  # fmt: skip
    return report.rows(plan, scores), figures
