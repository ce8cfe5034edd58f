"""A probe finds what separates the prompts, keeps the limit of wrong refusals, and is loaded by the model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from everlong_lab.cli.probe import train_probe
from everlong_lab.probe import prompts
from everlong_lab.probe.prompts import LabelledPrompt, LabelledText
from everlong_lab.probe.training import ProbeTraining, area, values_of
from everlong_models import load_model
from everlong_models.answer_probe import PROBE, AnswerProbe, AnswerProbes
from everlong_models.errors import DataError
from everlong_server.engine.answering.search.question import is_question


def made(count: int, difference: float) -> tuple[list[LabelledPrompt], torch.Tensor]:
    """Prompts about 40 texts, whose values differ in one direction where the passages hold the answer."""
    generator = torch.Generator().manual_seed(0)
    holds = torch.rand(count, generator=generator) < 0.6
    values = torch.randn(count, 2, 4, generator=generator) * torch.tensor([5.0, 0.1, 1, 1]) + 3
    values[:, 1, 1] += holds * difference * 0.1
    return [LabelledPrompt(f"text {n % 40}", "", "?", bool(h)) for n, h in enumerate(holds)], values


def test_it_finds_the_direction_and_keeps_the_limit() -> None:
    examples, values = made(2000, 4.0)
    weight, bias, quality = ProbeTraining(examples, values, wrongly=0.05).fit()
    assert quality.area > 0.98
    assert quality.wrongly <= 0.05
    assert quality.declined > 0.9
    probe, (others, fresh) = AnswerProbe(0, weight, bias), made(2000, 4.0)
    right = [probe.holds_answer(value) == prompt.holds for prompt, value in zip(others, fresh, strict=True)]
    assert sum(right) / len(right) > 0.9
    assert weight.abs().argmax() == 5, "the direction that differs"


def test_without_a_difference_it_declines_as_rarely_in_both_cases() -> None:
    _, _, quality = ProbeTraining(*made(2000, 0.0), wrongly=0.05).fit()
    assert 0.45 < quality.area < 0.55
    assert quality.declined < 0.1


def test_one_text_cannot_be_held_out() -> None:
    examples, values = made(10, 1.0)
    with pytest.raises(DataError, match="at least two texts"):
        ProbeTraining([prompt._replace(source="one") for prompt in examples], values, wrongly=0.1)


def test_the_area_counts_pairs() -> None:
    scores, holds = torch.tensor([3.0, 1.0, 2.0, 2.0]), torch.tensor([True, False, True, False])
    assert area(scores, holds) == pytest.approx((1 + 1 + 1 + 0.5) / 4)
    assert area(100 * scores + 1000, holds) == pytest.approx((1 + 1 + 1 + 0.5) / 4), "whatever their size"


def test_the_values_of_a_conversation_are_those_of_its_prompts_read_one_after_the_other(tiny_model: Path) -> None:
    options = {"segment_length": 16, "sinks": 4, "window": 64}
    model = load_model(str(tiny_model / "backbone"), models_dir=tiny_model, memory="window", options=options)
    first = LabelledPrompt("a note", "It says nine. ", "When?", True, "At nine.")
    alone = LabelledPrompt("a note", "It says nine. ", "When?At nine.How long?", True)
    second = LabelledPrompt("a note", "", "How long?", False, follows=True)
    values = values_of(model, [first, alone, first, second, first], 1, lambda what, done: None)
    assert values.shape == (5, model.memory.backbone.kv_heads, model.memory.backbone.head_dim)
    torch.testing.assert_close(values[2], values[0])
    torch.testing.assert_close(values[4], values[0])
    chat, encode = model.chat, model.tokenizer.encode
    tokens = [
        *chat.head,
        *encode("It says nine. "),
        *encode("When?"),
        *chat.ask,
        *encode("At nine."),
        *chat.turn,
        *encode("How long?"),
        *chat.ask,
    ]
    backbone = model.memory.backbone
    kv = backbone.new_kv(1, len(tokens))
    backbone.hidden(backbone.embed(torch.tensor([tokens])), kv=kv, keep=1)
    torch.testing.assert_close(values[3], kv[0, 1, 1, :, -1].float())
    assert not torch.allclose(values[3], values[1])


PEOPLE = ("Quill", "Barrow", "Finch", "Marsh", "Thorne", "Vane", "Webb", "Yarrow")


NOTES = [
    LabelledText(
        f"{person}.txt",
        f"Dear {person}, the {person} boats leave at {n}.",
        [f"When do {person}'s boats leave?"],
        [f"What did {person} pay for the anchor?"],
    )
    for n, person in enumerate(PEOPLE, 1)
]


@pytest.mark.long
def test_the_command_writes_what_the_model_loads(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, texts = tmp_path / "tiny-window", tmp_path / "texts"
    shutil.copytree(tiny_model / "backbone", folder / "backbone")
    spec = {"name": "window", "segment_length": 16, "sinks": 4, "window": 64}
    (folder / "everlong.json").write_text(
        json.dumps({"backbone": "backbone", "memory": spec, "trained": False, "template": "instruct"})
    )
    texts.mkdir()
    rows = []
    for person in PEOPLE:
        told = f"The inn by the harbour belonged to Mrs. {person}."
        (texts / f"{person}.md").write_text(
            f"{told}\n\n" + f"The boats of {person} were full of fish and rope.\n\n" * 9
        )
        rows.append(
            {
                "text": f"{person}.md",
                "q": "Who owned the inn by the harbour?",
                "a": person,
                "quote": told,
                "answer": person,
            }
        )
    file, to = tmp_path / "q.jsonl", folder / PROBE
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [
        str(file),
        "--texts",
        str(texts),
        "--out",
        str(to),
        "--model",
        str(folder),
        "--wrongly",
        "0.1",
        "--no-packaged",
    ]
    refused = CliRunner().invoke(train_probe, [*arguments, "--layer", "2"])
    assert refused.exit_code == 1
    assert "--layer 2: must be below 2" in " ".join(refused.output.split())
    trained = CliRunner().invoke(train_probe, [*arguments, "--layer", "1"])
    assert trained.exit_code == 0, trained.output
    assert "area under the ROC curve" in " ".join(trained.output.split())
    own = load_model(str(folder), models_dir=tmp_path).probes
    assert own is not None
    assert own.few_pages.layer == 1

    monkeypatch.setattr(prompts, "packaged_texts", lambda: NOTES)
    again = ["--out", str(tmp_path / PROBE), "--model", str(folder), "--wrongly", "0.1", "--extend"]
    refused = CliRunner().invoke(train_probe, [*again, "--layer", "0"])
    assert "--layer 0: the probe of" in " ".join(refused.output.split())
    extended = CliRunner().invoke(train_probe, [*again, "--layer", "1"])
    assert extended.exit_code == 0, extended.output
    (tmp_path / PROBE).rename(to)
    probes = load_model(str(folder), models_dir=tmp_path).probes
    assert probes is not None
    assert torch.equal(probes.long.weight, own.long.weight), "it learnt nothing about longer texts"
    assert probes.long.bias == own.long.bias
    assert not torch.equal(probes.few_pages.weight, own.few_pages.weight)


def test_few_prompts_extend_a_probe_to_a_better_one_than_they_make_alone() -> None:
    weight, bias, _ = ProbeTraining(*made(2000, 4.0), wrongly=0.05).fit()
    probe = AnswerProbe(0, weight, bias)
    few = made(40, 4.0)
    examples, values = made(2000, 4.0)
    holds = torch.tensor([prompt.holds for prompt in examples])

    def area_of(start: AnswerProbes | None) -> float:
        weight, bias, _ = ProbeTraining(*few, wrongly=0.05, start=start).fit()
        return area(values.flatten(1) @ weight.flatten() + bias, holds)

    assert area_of(AnswerProbes(probe, probe)) > area_of(None)


@pytest.mark.long
def test_the_packaged_texts() -> None:
    """Each has as many questions that it answers as others, and is short enough that the probe judges questions about it."""
    texts = prompts.packaged_texts()
    short = [one for one in texts if one.source.startswith("short text")]
    few_pages = [one for one in texts if one not in short]
    assert (len(short), len(few_pages)) == (75, 24)
    for one in short:
        assert len(one.text.encode()) <= 3200
        assert min(len(one.holds), len(one.lacks)) >= 5
        assert all(is_question(question) for question in (*one.holds, *one.lacks))
        assert len(one.conversation) == 9
        assert 4 <= sum(turn.holds for turn in one.conversation) <= 5
        assert all((turn.answer == "The text does not say.") != turn.holds for turn in one.conversation)
    for one in few_pages:
        assert 3200 < len(one.text.encode()) <= 16_000
        assert len(one.holds) == len(one.lacks) == 16
        assert not one.conversation
