"""`everlong eval`: the experiments as commands."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from everlong_server.cli.eval import eval as eval_


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


def test_what_is_wrong_is_one_line_that_names_it(tmp_path: Path) -> None:
    for arguments, said in (
        (["horizon", "--basis", "15"], "basis=15"),
        (["sorting", str(tmp_path / "nothing")], "nothing"),
        (["language", str(tmp_path / "nothing")], "nothing"),
    ):
        result = CliRunner().invoke(eval_, arguments)
        assert result.exit_code == 1, result.output
        assert "error:" in result.output
        assert said in result.output
        assert "Traceback" not in result.output
