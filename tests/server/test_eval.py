"""`everlong eval`: the experiments as commands."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from everlong_server.cli.eval import eval as eval_
from tests.models.tasks.test_babilong import story_file
from tests.models.tasks.test_dialogue import store
from tests.tinymodel import NOVEL, STORY


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
    """Random weights: the figures mean nothing, but they are all there."""
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
    assert "lengths='1k,4k': the backbone's window holds 256 tokens" in " ".join(none.output.split())
    store(tmp_path, [[("a", 0, "Hello?"), ("b", 0, "Yes.")]], saw=("b",))
    spoken = CliRunner().invoke(
        eval_, ["dialogue", *of, "--samples", "1", "--written", "1", "--json", str(figures), "--ways", "none,memory"]
    )
    assert spoken.exit_code == 0, spoken.output
    ways = json.loads(figures.read_text())["ways"]
    assert [(way["way"], way["responses"]) for way in ways] == [("none", 1), ("memory", 1)]
    assert all(way["perplexity"] > 1 for way in ways)
    assert "published: ∞-former, sticky" in " ".join(spoken.output.split())


def test_what_is_wrong_is_one_line_that_names_it(tmp_path: Path) -> None:
    for arguments, said in (
        (["horizon", "--basis", "15"], "basis=15"),
        (["sorting", str(tmp_path / "nothing")], "nothing"),
        (["language", str(tmp_path / "nothing")], "nothing"),
        (["babilong", "--model", str(tmp_path / "nothing")], "nothing"),
        (["babilong", "--tasks", "qa1,qa6"], "no 'qa6'"),
        (["dialogue", "--ways", "aloud"], "no 'aloud'"),
    ):
        result = CliRunner().invoke(eval_, arguments)
        assert result.exit_code == 1, result.output
        assert "error:" in result.output
        assert said in result.output
        assert "Traceback" not in result.output
