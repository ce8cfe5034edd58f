"""`everlong sentences`: put the answers of prompts into sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from everlong_lab.cli.common import Device, progress_bar, reported, writable
from everlong_server.cli.common import ModelsDir, chosen_models_dir, err

sentences = Typer(add_completion=False)


@sentences.command()
def _sentences(
    file: Annotated[Path, Argument(help="A file that `everlong prompts` has written.", metavar="FILE")],
    to: Annotated[Path, Option("--out", callback=writable, help="Write the prompts with sentences to this file.")],
    model: Annotated[str, Option(help="Let this instruct model write the sentences.")] = "qwen2.5-coder-1.5b-instruct",
    device: Device = "cpu",
    models_dir: ModelsDir = None,
) -> None:
    """Rewrite the short answers of prompts as sentences, unless the question asks for a few words."""
    from everlong_lab.eval.grounded import sentences as grounded
    from everlong_models.backbone.loading import load_backbone

    with reported(OSError):
        lines = grounded.read(file)
    with reported(OSError), progress_bar("loading") as progress:
        backbone, tokenizer = load_backbone(
            model,
            models_dir=chosen_models_dir(models_dir),
            device=device,
            progress=lambda message: progress(message, 0),
        )
        writer = grounded.SentenceWriter(backbone, tokenizer, lambda done: progress("writing sentences", done))
        written, asked = grounded.write(lines, to, writer)
    err.print(f"{written:,} of {asked:,} answers are sentences now, the others stay as they were, in {to}")
