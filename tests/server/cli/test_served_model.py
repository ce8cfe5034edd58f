"""Which model a server takes if none is named, and what it says about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.text import Text

from everlong_models.catalogue.entry import entries
from everlong_models.catalogue.machine import Machine
from everlong_models.errors import BackboneError, PullError
from everlong_server.process import served_model as choosing
from everlong_server.process.served_model import served_model
from everlong_server.settings import Settings

GB = 10**9
BACKBONE = "qwen2.5-coder-1.5b-instruct"
LARGE, SMALL, SHIPPED = "qwen2.5-coder-1.5b-reader", "qwen2.5-coder-0.5b-instruct", "smollm2-135m-reader"


@pytest.fixture
def pulled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were pulled, on a machine with four cores and 16 GB. Nothing is downloaded."""
    names: list[str] = []
    monkeypatch.setattr(choosing, "this_machine", lambda *_, **__: Machine(4, 16 * GB, 100 * GB))
    monkeypatch.setattr(choosing, "require_memory", lambda name, size: None)
    monkeypatch.setattr(choosing, "pull", lambda entry, folder, progress: names.append(entry.name))
    return names


def served(tmp_path: Path, **settings: object) -> tuple[str, str]:
    """The model's name, and what was announced."""
    told: list[str] = []
    name = served_model(Settings(models_dir=tmp_path, **settings), told.append)  # type: ignore[arg-type]
    return name, "\n".join(told)


def test_a_named_model_is_taken_without_a_word(tmp_path: Path, pulled: list[str]) -> None:
    assert served(tmp_path, model=SMALL) == (SMALL, "")
    assert served(tmp_path, memory="rmt") == ("smollm2-135m-instruct", "")
    assert pulled == []


def test_a_memory_that_the_default_takes_does_not_change_it(tmp_path: Path, pulled: list[str]) -> None:
    assert served(tmp_path, memory="compact")[0] == served(tmp_path)[0] == LARGE


def test_the_default_is_pulled_and_explained(tmp_path: Path, pulled: list[str]) -> None:
    name, told = served(tmp_path)
    assert (name, pulled) == (LARGE, [BACKBONE])
    assert f"[bold]{LARGE}[/], the default for 4 cores, 16.0 GB of memory and 100.0 GB of free disk" in told
    for way in ("make serve MODEL=", "--model", "EVERLONG_MODEL", "everlong models list"):
        assert way in told
    assert "warning" not in told


def test_offline_the_next_smaller_one_that_is_here_stands_in(
    tmp_path: Path, pulled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object) -> None:
        raise PullError("cannot download: no [/network]")

    monkeypatch.setattr(choosing, "pull", offline)
    name, told = served(tmp_path)
    assert name == SHIPPED
    assert Text.from_markup(told).plain.count("cannot download: no [/network]") == 2
    assert f"Serving [bold]{SMALL}[/] instead" in told
    assert f"Serving [bold]{SHIPPED}[/] instead, which is smaller and answers worse." in told


def test_a_default_that_does_not_fit_into_the_free_memory(
    tmp_path: Path, pulled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(name: str, size: int) -> None:
        if size == entries()[BACKBONE].bytes:
            raise BackboneError(f"{name} does not fit into memory")

    monkeypatch.setattr(choosing, "require_memory", full)
    name, told = served(tmp_path)
    assert (name, pulled) == (SMALL, [SMALL])
    assert f"{LARGE} does not fit into memory.\nServing [bold]{SMALL}[/] instead" in told
