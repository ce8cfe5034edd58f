"""Checkpoints: a run that was stopped and resumed gives the same result as one that was not."""

from __future__ import annotations

import json
import re

import pytest
import torch
from safetensors import safe_open

from everlong_lab.train import checkpoint
from everlong_lab.train import run as running
from everlong_models.errors import RunError, StateNotFinite
from tests.lab.train.conftest import DROPPING, LASTING, assert_same, full_disk, recipe, take, weights
from tests.tinymodel import STORY


@pytest.mark.parametrize("of", [recipe(), DROPPING, recipe(rows_at_once=3, checkpointed=True), LASTING])
@pytest.mark.parametrize("cut", [1, 2, 5])
def test_resumed_is_uninterrupted(start, of, cut):
    """Figures and weights are equal bit for bit, wherever the run was stopped: within a stage and between two."""
    whole = start(of, "whole")
    expected = take(whole, 99)
    first = start(of, "cut")
    got = take(first, cut)
    second = start(of, "cut", resume=True)
    assert second.position.step == cut
    got += take(second, 99)
    assert got == expected
    assert len(got) == 6
    assert_same(weights(second), weights(whole))
    assert_same(second._average, whole._average)
    steps = [entry["step"] for entry in second.journal.read() if "loss" in entry]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_the_journal_forgets_what_came_after_the_checkpoint(start):
    run = start(recipe())
    for update in run.steps():
        if update.step == 3:
            run.save()
        if update.step == 5:
            break  # killed: steps 4 and 5 are in the journal, not in the checkpoint
    assert [entry["step"] for entry in run.journal.read()] == [1, 2, 3, 4, 5]
    again = start(recipe(), resume=True)
    assert [entry["step"] for entry in again.journal.read()] == [1, 2, 3]


def test_nan_stops_and_the_last_good_checkpoint_stays(start, tmp_path):
    run = start(recipe(stages=[{"segments": 1, "steps": 50}]))
    take(run, 2)
    good = (tmp_path / "run" / checkpoint.FILE).read_bytes()
    next(iter(run.learner.parameters.values())).data.fill_(float("nan"))
    with pytest.raises(RunError, match=r"step 2.*(nan|NaN).*checkpoint"):
        take(run, 1)
    assert (tmp_path / "run" / checkpoint.FILE).read_bytes() == good
    assert start(recipe(stages=[{"segments": 1, "steps": 50}]), resume=True).position.step == 2


def test_a_full_disk_keeps_the_last_good_checkpoint(start, tmp_path):
    run = start(recipe())
    take(run, 1)
    good = (tmp_path / "run" / checkpoint.FILE).read_bytes()
    with full_disk(len(good) // 2), pytest.raises(RunError, match=r"cannot write a checkpoint.*last good one is kept"):
        take(run, 1)
    assert (tmp_path / "run" / checkpoint.FILE).read_bytes() == good
    assert {file.name for file in (tmp_path / "run").iterdir()} == {checkpoint.FILE, "metrics.jsonl"}


def test_a_checkpoint_that_was_never_written_is_not_said_to_be_kept(start, tmp_path, monkeypatch):
    run = start(recipe())
    with full_disk(1000), pytest.raises(RunError, match=r"cannot write a checkpoint.*there is no earlier one"):
        take(run, 1)

    def broken(*_, **__):
        raise StateNotFinite("memory holds NaN")

    monkeypatch.setattr(running, "unroll", broken)
    with pytest.raises(RunError, match=r"step 1: memory holds NaN; last good checkpoint: none was written yet"):
        take(run, 1)


def test_random_numbers_of_every_cuda_device_are_kept(start, tmp_path, monkeypatch):
    """Two fake devices, of which only the random states are used."""
    states = [torch.full((16,), device, dtype=torch.uint8) for device in (3, 4)]
    restored = {}
    run = start(recipe())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: states)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: restored.update({device: state.tolist()}))
    run.position.step = 1
    run.save()
    start(recipe(), resume=True)
    assert restored == {device: state.tolist() for device, state in enumerate(states)}


def test_what_cannot_be_resumed(start, tmp_path):
    with pytest.raises(RunError, match=r"nothing to resume: no .*checkpoint\.safetensors"):
        start(recipe(), resume=True)
    take(start(recipe()), 1)
    with pytest.raises(RunError, match="contains a run"):
        start(recipe())
    with pytest.raises(RunError, match="belongs to another recipe"):
        start(recipe(seed=1), resume=True)
    file = tmp_path / "run" / checkpoint.FILE
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(RunError, match="is damaged"):
        start(recipe(), resume=True)


def test_a_checkpoint_of_another_architecture(start, tmp_path):
    run = start(recipe())
    take(run, 1)
    name, parameter = next(iter(run.learner.parameters.items()))
    other = {**run.learner.parameters, name: torch.nn.Parameter(parameter.data[:1])}
    with pytest.raises(RunError, match=f"has another architecture: {re.escape(name)} has"):
        checkpoint.restore(
            tmp_path / "run",
            recipe=recipe().digest(),
            tokenizer=run.learner.tokenizer.digest(),
            parameters=other,
            optimizer=torch.optim.AdamW(other.values()),
            average={},
        )


def test_a_run_goes_on_with_the_data_that_it_was_begun_with(start, data, tmp_path):
    """A tokenizer made from other texts has other words under the same ids."""
    take(start(recipe()), 1)
    other = tmp_path / "other" / "books-260"
    other.mkdir(parents=True)
    (other / "book.txt").write_text(STORY.read_text().upper())
    (other / "another.txt").write_text(STORY.read_text()[:3000])
    with pytest.raises(RunError, match=r"was started with other data: its tokenizer is [0-9a-f]{12}…"):
        start(recipe(), resume=True, data=other.parent)
    assert start(recipe(), resume=True).position.step == 1


def test_memories_that_nobody_goes_on_from_are_not_kept(start):
    run = start(recipe())
    take(run, 1)
    assert run._carried == []
    language = start(
        recipe(task={"name": "language", "vocabulary": 300}, mixed=0, stages=[{"segments": 1, "steps": 2}]), "l"
    )
    take(language, 1)
    assert [state.rows for state in language._carried] == [4]


def test_a_checkpoint_is_no_pickle(start, tmp_path):
    take(start(recipe()), 1)
    with safe_open(tmp_path / "run" / checkpoint.FILE, "pt") as opened:
        assert json.loads(opened.metadata()["position"])["step"] == 1
        assert any(name.startswith("optimizer.exp_avg.") for name in opened.keys())  # noqa: SIM118
