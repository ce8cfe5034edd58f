"""`everlong eval questions`: runs it and shows what was measured."""

from __future__ import annotations

from pathlib import Path

import httpx

from everlong_client.cli.uploads import exit_on_sigterm
from everlong_lab.cli.common import command, progress_bar, reported, write
from everlong_lab.eval import questions as measured
from everlong_models.backbone.loading import DEFAULT_BACKBONE, find_backbone, load_tokenizer
from everlong_server.cli.common import out
from everlong_server.engine.answering.evidence.grounding import Recall
from everlong_server.engine.answering.evidence.templates import INSTRUCT
from everlong_server.errors import ServerError
from everlong_server.settings import SettingsError, load_settings
from everlong_server.store.search.vectors import load_embedder

_SHOWN = 160


def run(
    file: Path, folders: list[Path], *, url: str | None, key: str | None, model: str | None, evidence_only: bool,
    embeddings: str, recall: Recall | None, tokens: int, one_session: bool, full: bool, output: Path | None,
) -> None:  # fmt: skip
    """Ask or search, and print the report. Ends the command with a message for an error of the input or the server.

    SIGTERM also ends the server that it started.
    """
    with (
        exit_on_sigterm(),
        reported(SettingsError, ServerError, RuntimeError, httpx.HTTPError),
        progress_bar() as progress,
    ):
        asked = measured.questions(file)
        if one_session:
            asked = measured.in_one_session(asked)
        found = measured.find_texts((question.text for question in asked), folders)
        if evidence_only:
            settings = load_settings()
            limits = recall or Recall(settings.recall_passages, settings.recall_tokens or INSTRUCT.tokens)
            tokenizer = load_tokenizer(find_backbone(DEFAULT_BACKBONE, models_dir=settings.models_dir.expanduser()))
            embedder = load_embedder(embeddings)
            results = measured.search(
                asked, found, embedder, lambda text: len(tokenizer.encode(text)), limits, progress
            )
            notes = [
                f"searched by words{' and meaning' if embedder else ' alone'}; at most {limits.passages} passages and "
                f"{limits.tokens} tokens of {DEFAULT_BACKBONE}; seconds: of the search",
            ]
        else:
            with measured.server(url, key, model) as http:
                results = measured.ask(http, asked, found, tokens, progress)
            notes = [f"greedy, at most {tokens} tokens an answer, each conversation in a session of its own"]
    report = measured.report(results, notes)
    if full:
        for result in results:
            marks = ("" if result.right is None else "+" if result.right else "-") + ("e" if result.held else " ")
            answer = "" if result.answer is None else " -> " + " ".join(result.answer.split())[:_SHOWN]
            out.print(
                f"{marks:2} {result.over:6.1f} s  {result.question.question}{answer}", markup=False, highlight=False
            )
    report.show(out)
    write(report.document(command=command()) | {"answers": measured.lines(results)}, output)
