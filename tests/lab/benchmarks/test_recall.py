"""`everlong bench recall`: its report, and the error for a text that is too short."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everlong_lab.benchmarks import recall
from everlong_lab.cli.bench import bench
from everlong_models.text.tokenizer import Tokenizer
from tests.tinymodel import NOVEL, make_tokenizer


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a tiny tokenizer, so that no model must be converted."""
    monkeypatch.setattr(recall, "find_backbone", lambda *_, **__: None)
    monkeypatch.setattr(recall, "load_tokenizer", lambda _: Tokenizer(make_tokenizer()))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "b.md").write_text(NOVEL.read_text()[:150_000])
    (folder / "a.txt").write_text("Anna met Boris in the garden. " * 100)
    (folder / "c.pdf").write_text("no text")
    return folder


def test_figures_are_of_one_text_and_hang_together(texts: Path, tmp_path: Path) -> None:
    file = tmp_path / "recall.json"
    how = ["--megabytes", "0.1", "--texts", str(texts), "--questions", "7", "--rounds", "1"]
    done = CliRunner().invoke(bench, ["recall", *how, "--json", str(file), "--models-dir", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())
    (row,) = found["rows"]
    assert row["megabytes"] == pytest.approx(0.1, rel=0.05)
    assert row["questions"] == 7
    assert row["ratio"] == pytest.approx(row["index_cpu_s"] / row["encode_cpu_s"])
    assert 0 < row["search_p50_ms"] <= row["search_p99_ms"] <= row["search_most_ms"]
    assert [target["value"] for target in found["targets"]] == [row["ratio"], row["search_most_ms"]]


def test_a_text_is_as_long_as_it_should_be(texts: Path) -> None:
    assert recall.whole_text(texts, 1000).startswith("Anna met Boris")
    assert len(recall.whole_text(None, 2_000_000)) == 2_000_000


def test_texts_that_are_too_short_are_named(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "numbers").mkdir()
    (tmp_path / "numbers" / "a.txt").write_text("1 2 3 " * 40_000)
    for folder, megabytes, words in (
        (texts, "1", "--megabytes needs 1,000,000"),
        (tmp_path / "numbers", "0.2", "no sentences"),
    ):
        how = ["--megabytes", megabytes, "--texts", str(folder), "--models-dir", str(tmp_path)]
        done = CliRunner().invoke(bench, ["recall", *how])
        assert done.exit_code == 1
        assert words in done.stderr.replace("\n", " ")
