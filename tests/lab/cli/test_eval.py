"""`everlong eval`: the experiments as commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from everlong_lab.cli import eval as eval_module
from everlong_lab.cli.eval import eval as eval_
from everlong_lab.tasks import made_tokenizer
from everlong_lab.tasks.sorting import SortingConfig
from everlong_lab.train.learner import make_learner
from everlong_lab.train.recipe import LearnerRecipe
from tests.lab.tasks.test_babilong import story_file
from tests.lab.tasks.test_dialogue import store
from tests.lab.train.conftest import full_disk
from tests.tinymodel import NOVEL, STORY, make_tokenizer


def test_horizon_prints_writes_and_draws(tmp_path: Path) -> None:
    figures, plot = tmp_path / "horizon.json", tmp_path / "horizon.png"
    small = ["--basis", "16", "--segment-length", "8", "--updates", "3"]
    result = CliRunner().invoke(eval_, ["horizon", *small, "--json", str(figures), "--plot", str(plot)])
    assert result.exit_code == 0, result.output
    assert "plain, τ = 0.5" in result.output
    document = json.loads(figures.read_text())
    assert len(document["curves"][0]["points"]) == 3
    assert document["machine"]
    assert plot.stat().st_size > 1000


def test_babilong_and_dialogue_of_a_tiny_model(tiny_model: Path, tmp_path: Path) -> None:
    """With random weights the figures mean nothing, but all of them exist."""
    story_file(tmp_path / "babi" / "en-10k" / "qa1_one_test.txt", 1, stories=3)
    for file in (NOVEL, STORY):
        (tmp_path / "books-260").mkdir(exist_ok=True)
        (tmp_path / "books-260" / file.name).write_text(file.read_text()[:30_000])
    figures, of = tmp_path / "figures.json", ["--model", str(tiny_model), "--data", str(tmp_path)]
    asked = ["--tasks", "qa1", "--samples", "2", "--prompt", "bare", "--json", str(figures)]
    through = CliRunner().invoke(eval_, ["babilong", *of, *asked, "--lengths", "0k,1k"])
    assert through.exit_code == 0, through.output
    document = json.loads(figures.read_text())
    assert [(cell["length"], cell["samples"]) for cell in document["cells"]] == [("0k", 2), ("1k", 2)]
    assert document["prompt"] == "bare"
    alone = CliRunner().invoke(eval_, ["babilong", *of, *asked, "--lengths", "0k,1k", "--plain"])
    assert alone.exit_code == 0, alone.output
    assert "not run: 1k; the backbone's window holds 256 tokens" in " ".join(alone.output.split())
    none = CliRunner().invoke(eval_, ["babilong", *of, *asked, "--lengths", "1k,4k", "--plain"])
    assert none.exit_code == 1
    assert "lengths='1k,4k': must be at most 256 tokens, the backbone's window" in " ".join(none.output.split())
    store(tmp_path, [[("a", 0, "Hello?"), ("b", 0, "Yes.")]], saw=("b",))
    spoken = CliRunner().invoke(
        eval_, ["dialogue", *of, "--samples", "1", "--written", "1", "--json", str(figures), "--ways", "none,memory"]
    )
    assert spoken.exit_code == 0, spoken.output
    ways = json.loads(figures.read_text())["ways"]
    assert [(way["way"], way["responses"]) for way in ways] == [("none", 1), ("memory", 1)]
    assert all(way["perplexity"] > 1 for way in ways)
    assert "published: ∞-former, sticky" in " ".join(spoken.output.split())


@pytest.mark.parametrize("memory", ["rmt", "transformer_xl"])
def test_babilong_and_dialogue_of_a_model_from_scratch(memory: str, tmp_path: Path) -> None:
    """The model is built by a recipe and saved. It uses its memory, because no window holds a document."""
    sizes: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2, "feed_forward": 16}
    if memory == "rmt":
        options = {"segment_length": 32, "memory_tokens": 2}
        recipe = LearnerRecipe(memory=memory, options=options, backbone=sizes | {"positions": 48}, learn="all")
    else:
        recipe = LearnerRecipe(memory=memory, options=sizes | {"segment_length": 32, "memory_length": 8}, learn="all")
    cpu, made = torch.device("cpu"), make_tokenizer(400)
    learner = make_learner(recipe, made_tokenizer=made, models_dir=tmp_path, device=cpu, seed=0)
    learner.save(tmp_path / "model", "toy")
    story_file(tmp_path / "babi" / "en-10k" / "qa1_one_test.txt", 1, stories=3)
    for file in (NOVEL, STORY):
        (tmp_path / "books-260").mkdir(exist_ok=True)
        (tmp_path / "books-260" / file.name).write_text(file.read_text()[:30_000])
    store(tmp_path, [[("a", 0, "Hello?"), ("b", 0, "Yes.")]], saw=("b",))
    figures, of = tmp_path / "figures.json", ["--model", str(tmp_path / "model"), "--data", str(tmp_path)]
    asked = ["babilong", *of, "--tasks", "qa1", "--samples", "2", "--json", str(figures)]
    through = CliRunner().invoke(eval_, [*asked, "--lengths", "0k,1k"])
    assert through.exit_code == 0, through.output
    document = json.loads(figures.read_text())
    assert [(cell["length"], cell["samples"]) for cell in document["cells"]] == [("0k", 2), ("1k", 2)]
    assert document["prompt"] == "bare", "as it was taught"
    spoken = CliRunner().invoke(eval_, ["dialogue", *of, "--samples", "1", "--written", "1", "--json", str(figures)])
    assert spoken.exit_code == 0, spoken.output
    assert [way["way"] for way in json.loads(figures.read_text())["ways"]] == ["dialogue", "memory"]
    assert "no document, dialogue through the memory" in " ".join(spoken.output.split())
    window = CliRunner().invoke(eval_, ["dialogue", *of, "--samples", "1", "--written", "1", "--ways", "window"])
    assert window.exit_code == 1
    assert "error: " in window.output
    assert "Traceback" not in window.output
    plain = CliRunner().invoke(eval_, [*asked, "--lengths", "1k", "--plain"])
    assert plain.exit_code == 1
    assert ("must be at most 48 tokens, the backbone's window" if memory == "rmt" else "has no backbone") in " ".join(
        plain.output.split()
    )


def test_facts_of_a_model_of_the_package_are_drawn_too(tmp_path: Path) -> None:
    plot = tmp_path / "facts.png"
    few = ["--kind", "memorize", "--lengths", "1,7", "--samples", "8", "--plot", str(plot)]
    result = CliRunner().invoke(eval_, ["facts", "rmt-detect", *few])
    assert result.exit_code == 0, result.output
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_seeds_of_a_recipe_are_one_row(tmp_path: Path) -> None:
    sizes = {"segment_length": 16, "width": 8, "layers": 1, "heads": 1, "feed_forward": 8, "memory_length": 16}
    recipe = LearnerRecipe(memory="transformer_xl", options=sizes, learn="all")
    for seed in range(2):
        made = made_tokenizer(SortingConfig(symbols=4), tmp_path)
        cpu = torch.device("cpu")
        learner = make_learner(recipe, made_tokenizer=made, models_dir=tmp_path, device=cpu, seed=seed)
        learner.save(tmp_path / str(seed), "XL: sorting")
    figures, plot = tmp_path / "sorting.json", tmp_path / "sorting.png"
    how = ["--lengths", "32", "--samples", "4", "--json", str(figures), "--plot", str(plot)]
    result = CliRunner().invoke(eval_, ["sorting", str(tmp_path / "0"), str(tmp_path / "1"), *how])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(figures.read_text())["rows"]
    assert (row["model"], row["symbols"]) == ("XL", 32)
    assert row["least"] <= row["accuracy"] <= row["most"]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_what_is_wrong_is_one_line_that_names_it(tmp_path: Path) -> None:
    for arguments, said in (
        (["horizon", "--basis", "15"], "basis=15"),
        (["sorting", str(tmp_path / "nothing")], "nothing"),
        (["language", str(tmp_path / "nothing")], "nothing"),
        (["babilong", "--model", str(tmp_path / "nothing")], "nothing"),
        (["babilong", "--tasks", "qa1,qa6"], "unknown name 'qa6'"),
        (["dialogue", "--ways", "aloud"], "unknown name 'aloud'"),
        (["language", str(tmp_path / "nothing"), "--plot", str(tmp_path / "x.png")], "--memory-lengths"),
        (["sorting", str(tmp_path / "nothing"), "--device", "meta"], "device='meta'"),
        (["language", str(tmp_path / "nothing"), "--device", "meta"], "device='meta'"),
        (["facts", "rmt-detect", "--kind", "detect", "--device", "meta"], "device='meta'"),
    ):
        result = CliRunner().invoke(eval_, arguments)
        assert result.exit_code == 1, result.output
        assert "error:" in result.output
        assert said in result.output
        assert "Traceback" not in result.output


def test_what_horizon_cannot_measure_is_a_wrong_option() -> None:
    for option, least in (("--segment-length", 2), ("--basis", 1), ("--updates", 1)):
        result = CliRunner().invoke(eval_, ["horizon", option, "0"])
        assert result.exit_code == 2, result.output
        said = " ".join(result.output.replace("│", " ").split())
        assert f"Invalid value for '{option}': Input should be greater than or equal to {least}" in said


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("horizon", ["--json", "--plot"]),
        ("sorting", ["--json", "--plot"]),
        ("language", ["--json", "--plot"]),
        ("facts", ["--json", "--plot"]),
        ("grounded", ["--json"]),
        ("babilong", ["--json"]),
        ("dialogue", ["--json"]),
    ],
)
def test_a_file_that_cannot_be_written_is_an_error_before_anything_is_measured(
    tmp_path: Path, command: str, options: list[str]
) -> None:
    (tmp_path / "file").write_text("kept")
    needed = {"facts": ["rmt-detect", "--kind", "detect"], "grounded": ["--data", str(tmp_path)]}
    models = {"sorting": ["nothing"], "language": ["nothing", "--memory-lengths", "8"]}
    for option in options:
        for place in (tmp_path, tmp_path / "file" / "below"):
            arguments = [command, *needed.get(command, []), *models.get(command, []), option, str(place)]
            result = CliRunner().invoke(eval_, arguments)
            assert result.exit_code == 1, result.output
            assert result.output.startswith(f"error: cannot write {place}: "), result.output
    assert (tmp_path / "file").read_text() == "kept"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_disk_that_is_full_by_then_costs_the_file_and_not_the_figures(tmp_path: Path) -> None:
    small = ["horizon", "--basis", "16", "--segment-length", "8", "--updates", "3"]
    for option in ("--json", "--plot"):
        with full_disk(100):
            result = CliRunner().invoke(eval_, [*small, option, str(tmp_path / "new" / "file")])
        assert result.exit_code == 1, result.output
        assert "plain, τ = 0.5" in result.output
        assert f"error: cannot write {tmp_path / 'new' / 'file'}: " in result.output


def test_a_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eval_module, "find_spec", lambda name: None)
    result = CliRunner().invoke(eval_, ["horizon", "--plot", "x.png"])
    assert result.exit_code == 1
    assert "error: --plot needs matplotlib: pip install 'everlong-lab[train]'" in result.output
