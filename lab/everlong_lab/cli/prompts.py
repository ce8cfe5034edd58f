"""`everlong prompts`: write prompts to train on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, get_args

from typer import Option, Typer

from everlong_lab.cli.common import DataDir, Seed, names_of, progress_bar, reported, sizes, writable
from everlong_lab.harness.files import replacing
from everlong_server.cli.common import ModelsDir, chosen_models_dir, err, fail

prompts = Typer(add_completion=False)


@prompts.command()
def _prompts(
    to: Annotated[Path, Option("--out", callback=writable, help="Write JSON lines to this file.")],
    data: DataDir = Path("data"),
    sets: Annotated[str, Option(help="Use these sets of questions.")] = "squad,xquad,fairytaleqa",
    labelled: Annotated[
        Path | None,
        Option(
            help="Use the questions of this file instead of sets (their options are then ignored): JSON lines of text, q, a, quote and answer, as in docs/research/data.md."
        ),
    ] = None,
    texts: Annotated[
        list[Path] | None, Option(help="Find the texts of --labelled in this folder. Repeat it for more folders.")
    ] = None,
    questions: Annotated[int, Option(min=1, help="Use this many answerable questions per set.")] = 1_000,
    impossible: Annotated[int, Option(min=1, help="Use this many unanswerable questions of SQuAD.")] = 300,
    without: Annotated[float, Option(min=0, max=1, help="Hide the right passages of this share of questions.")] = 0.1,
    room: Annotated[str, Option(help="Use one of these numbers of tokens for passages.")] = "130,250,400",
    turns: Annotated[int, Option(min=1, help="Ask at most this many questions about the same passages.")] = 3,
    lengths: Annotated[
        str, Option(help="Hide the texts in documents of these lengths, in tokens.")
    ] = "2000,8000,32000",
    per_document: Annotated[int, Option(min=1, help="Write at most this many prompts about a document.")] = 10,
    template: Annotated[
        str, Option(help="Use this template of the server's: few-words, or instruct for instruct models.")
    ] = "few-words",
    passages: Annotated[
        int | None, Option(min=1, help="Let the search find this many passages; default: as on the server.")
    ] = None,
    embeddings: Annotated[str, Option(help="Search by meaning too: auto, off, or a model's folder.")] = "auto",
    seed: Seed = 0,
    models_dir: ModelsDir = None,
) -> None:
    """Write the prompts that the server would build for questions about training texts, for `everlong train`."""
    from everlong_lab.eval.grounded.labelled_prompts import LabelledPromptsPlan, write_labelled
    from everlong_lab.eval.grounded.prompts import RECALL_PASSAGES, PromptsPlan, write
    from everlong_lab.eval.grounded.questions import TRAINING_SETS
    from everlong_models.backbone.loading import DEFAULT_BACKBONE, find_backbone, load_tokenizer
    from everlong_models.weights import TemplateName
    from everlong_server.errors import ServerError
    from everlong_server.store.search.vectors import load_embedder

    if template not in (names := get_args(TemplateName)):
        raise fail(f"--template={template}: must be one of {', '.join(names)}")
    rooms, found = sizes(room, "--room"), passages or RECALL_PASSAGES
    with reported(ServerError, OSError):
        tokenizer = load_tokenizer(
            find_backbone(DEFAULT_BACKBONE, models_dir=chosen_models_dir(models_dir), progress=err.print)
        )
        with (
            replacing(to) as part,  # so that an unfinished file is never trained on
            part.open("w", encoding="utf-8") as file,
            progress_bar("preparing the data") as progress,
        ):

            def count(text: str) -> int:
                return len(tokenizer.encode(text))

            embedder = load_embedder(embeddings)
            if labelled is None:
                plan = PromptsPlan(
                    names_of(sets, TRAINING_SETS, "--sets"), questions, impossible, without, rooms, turns,
                    sizes(lengths, "--lengths"), per_document, found, template, seed,
                )  # fmt: skip
                written = asyncio.run(write(plan, count, data, file, progress, embedder))
            else:
                own = LabelledPromptsPlan(labelled, texts or [], rooms, found, template, seed)
                written = asyncio.run(write_labelled(own, count, file, progress, embedder))
    err.print(f"{written:,} prompts in {to}")
