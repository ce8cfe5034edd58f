"""`everlong models` with LoRA adapters: `pull BACKBONE+ADAPTER` gets both, and `list` shows which folders are adapters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from everlong_models.lora import ADAPTER_CONFIG
from everlong_server.cli.models import models


def run(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(models, [*words, "--models-dir", str(folder)])


def adapter(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / ADAPTER_CONFIG).write_text("{}")
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A hub that has adapters, except those named `…/model`. Returns what was downloaded."""
    asked = []

    def download(name: str, *, local_dir: Path, **_: object) -> None:
        asked.append(name)
        local_dir.mkdir(parents=True)
        (local_dir / ("config.json" if name.endswith("/model") else ADAPTER_CONFIG)).write_text("{}")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return asked


def test_pull_gets_backbone_and_adapter(tiny_model: Path, tmp_path: Path, hub: list[str]) -> None:
    for _ in range(2):
        done = run(tmp_path, "pull", f"{tiny_model / 'backbone'}+some/mine")
        assert done.exit_code == 0, done.output
        assert done.stdout.split() == [str(tiny_model / "backbone"), str(tmp_path / "some--mine")]
    assert hub == ["some/mine"], "the second time it is here"
    done = run(tmp_path, "pull", f"some/model+{adapter(tmp_path / 'own/mine')}")
    assert done.stdout.split() == [str(tmp_path / "some--model"), str(tmp_path / "own/mine")]


def test_pull_refuses_what_is_no_adapter(tiny_model: Path, tmp_path: Path, hub: list[str]) -> None:
    for name in ("some/model", "nowhere"):
        done = run(tmp_path, "pull", f"{tiny_model / 'backbone'}+{name}")
        assert done.exit_code == 1
        assert f"no adapter '{name}'" in done.stderr


def test_list_shows_which_folders_are_adapters(tmp_path: Path) -> None:
    adapter(tmp_path / "some--mine")
    (tmp_path / "some--model").mkdir()
    (tmp_path / "some--model/config.json").write_text("{}")
    rows = {row["name"]: row for row in json.loads(run(tmp_path, "list", "--json").stdout)}
    assert {name: rows[name]["adapter"] for name in ("some/mine", "some/model")} == {
        "some/mine": True,
        "some/model": False,
    }
    assert rows["some/mine"]["path"] == str(tmp_path / "some--mine")
    assert "some/mine (adapter)" in run(tmp_path, "list").stdout
