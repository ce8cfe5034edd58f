"""Runs: steps, scores, files, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from everlong_lab.train import checkpoint
from everlong_lab.train import run as running
from everlong_lab.train.run import MODEL, Run
from everlong_models.errors import ConfigError, RunError
from everlong_models.model import load_model
from tests.lab.train.conftest import DROPPING, LASTING, assert_same, full_disk, recipe, take, weights


def test_rows_at_once_changes_nothing_but_memory(start):
    whole, parts = start(recipe(), "whole"), start(recipe(rows_at_once=1), "parts")
    take(whole, 1), take(parts, 1)
    for name, parameter in weights(whole).items():
        torch.testing.assert_close(parameter, weights(parts)[name], rtol=1e-4, atol=2e-5)


def test_it_learns(start):
    """After fifty steps on the same four documents, the loss must be small."""
    run = start(recipe(stages=[{"segments": 2, "steps": 60}], mixed=0, optimizer={"lr": 1e-2, "warmup": 5}))
    batch = run.task.batch(0, 4, 2)
    run.task.batch = lambda step, rows, segments: batch
    losses = [figures["loss"] for figures in take(run, 60)]
    assert losses[-1] < 0.2 < 2 < losses[0]


def test_a_stage_ends_early_when_it_is_learnt(start):
    run = start(recipe(stages=[{"segments": 1, "steps": 200, "until": 0.001}, {"segments": 2, "steps": 1}], rows=16))
    take(run, 999)
    assert 51 <= run.position.step < 201


def test_the_learning_rate(start):
    run = start(recipe(optimizer={"lr": 1.0, "warmup": 2, "decay": 0.5, "final": 0.1}), "rate")
    rates = []
    for stage, step in ((0, 0), (0, 1), (1, 2), (1, 3), (1, 4), (1, 5)):
        run.position.stage, run.position.step, run.position.step_in_stage = stage, step, step - 2 * stage
        rates.append(run._learning_rate(run.recipe.stages[stage]))
    assert rates == pytest.approx([0.5, 1, 1, 1, 1, 0.55])


def files(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_model_that_cannot_be_written_leaves_the_one_before(start, tmp_path, monkeypatch):
    run, folder = start(recipe()), tmp_path / "run" / MODEL
    run.learner.save(folder, "the first")
    before = files(folder)
    for name, content in before.items():  # each of them written by another library
        with full_disk(len(content) - 1), pytest.raises(RunError, match=f"cannot write the model to {folder}: ."):
            run.learner.save(folder, "the second, which is longer")
        assert files(folder) == before, name
    rename = Path.rename

    def renamed(source, target):
        if source.parent.name.startswith(".saving-") and source.name == "model":
            raise OSError("the disk is gone")
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", renamed)
    with pytest.raises(RunError, match=f"cannot write the model to {folder}: the disk is gone"):
        run.learner.save(folder, "the third")
    assert files(folder) == before
    assert {file.name for file in folder.parent.iterdir()} == {MODEL, "metrics.jsonl"}
    with pytest.raises(RunError, match=r"cannot write the model to .*metrics\.jsonl/model"):
        run.learner.save(tmp_path / "run" / "metrics.jsonl" / "model", "")


def test_a_curve_that_cannot_be_written(start, tmp_path):
    run = start(recipe())
    take(run, 1)
    with full_disk(1000), pytest.raises(RunError, match=r"cannot write .*run/curve\.png: .*too large"):
        run.journal.draw("")
    (tmp_path / "run" / "curve.png").unlink(missing_ok=True)
    (tmp_path / "run" / "curve.png").mkdir()
    with pytest.raises(RunError, match=r"cannot write .*run/curve\.png: .*directory"):
        run.journal.draw("")


def test_a_folder_that_cannot_be_made_or_written_to(start, tmp_path):
    (tmp_path / "file").write_text("")
    for name in ("file", "file/run"):
        with pytest.raises(RunError, match=f"cannot create the run's folder {tmp_path / name}: ."):
            start(recipe(), name)
    (tmp_path / "run" / "metrics.jsonl").mkdir(parents=True)
    with pytest.raises(RunError, match=r"cannot write .*run/metrics\.jsonl: "):
        start(recipe())


def test_a_finished_run_that_is_resumed_keeps_its_scores(start):
    first = start(recipe())
    take(first, 99)
    scores = first.score()
    again = start(recipe(), resume=True)
    assert take(again, 99) == []
    assert again.score() == scores
    assert [entry["step"] for entry in again.journal.read() if "scores" in entry] == [6]


def test_the_average_of_the_weights_is_what_is_scored_and_saved(start, tmp_path, monkeypatch):
    run = start(recipe(average=0.75))
    average = weights(run)
    for _ in range(6):
        take(run, 1)
        average = {name: 0.75 * average[name] + 0.25 * weight for name, weight in weights(run).items()}
    last, scored = weights(run), []
    monkeypatch.setattr(run.task, "evaluate", lambda *_, **__: scored.append(weights(run)) or {})
    run.score()
    run.save_model()
    saved = load_model(str(tmp_path / "run" / MODEL), models_dir=tmp_path).memory
    for name, weight in average.items():
        torch.testing.assert_close(scored[0][name], weight)
    memory, text = run.learner.memory.eval(), torch.arange(24)[None]
    with torch.no_grad():
        given, trained = (model.forward(text, model.read(text, model.initial_state())) for model in (saved, memory))
        with run._averaged():
            torch.testing.assert_close(given, memory.forward(text, memory.read(text, memory.initial_state())))
    assert not torch.allclose(given, trained)
    assert_same(weights(run), last)
    assert any(not torch.equal(last[name], scored[0][name]) for name in last)


def test_drift_is_part_of_what_is_learnt(start):
    """The augmentation changes memories between segments, and so the loss, from the first step on."""
    stages = [{"segments": 6, "steps": 1}]
    still, moved = (
        take(start(recipe(stages=stages, mixed=0, rows=16, drift=drift), name), 1)[0]["loss"]
        for drift, name in ((None, "still"), ({"segments": 40, "share": 1}, "moved"))
    )
    assert moved != still
    assert moved == pytest.approx(still, abs=0.5)


def test_drift_is_refused_where_it_cannot_be(start):
    with pytest.raises(ConfigError, match=r"drift=9\.0: needs the memory rmt, not lamemo"):
        start(DROPPING.model_copy(update={"drift": LASTING.drift}))
    language = {"name": "language", "vocabulary": 300}
    run = start(recipe(task=language, drift={"segments": 9}, mixed=0, stages=[{"segments": 4, "steps": 1}]), "l")
    with pytest.raises(ConfigError, match=r"drift=9\.0: language does not mark segments without facts"):
        take(run, 1)


def test_a_folder_with_a_model_is_not_begun_anew(start, tmp_path):
    run = start(recipe())
    take(run, 99)
    run.learner.save(tmp_path / "run" / MODEL, "of a test")
    (tmp_path / "run" / checkpoint.FILE).unlink()
    written = (tmp_path / "run" / "metrics.jsonl").read_text()
    with pytest.raises(RunError, match=r"contains a run \(model\)"):
        start(recipe())
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == written


def test_no_room_for_the_rows_names_what_to_change(start, monkeypatch):
    run = start(recipe(rows_at_once=3))
    take(run, 1)
    run.save()

    def full(*_, **__):
        raise torch.OutOfMemoryError("tried to allocate 2.00 GiB")

    monkeypatch.setattr(running, "unroll", full)
    with pytest.raises(
        RunError, match=r"step 1: rows_at_once=3 rows of \d+ tokens.*2\.00 GiB.*last good checkpoint: step 1"
    ):
        take(run, 1)
    monkeypatch.setattr(run.task, "evaluate", full)
    with pytest.raises(RunError, match="step 1: out of memory scoring documents of 2 segments"):
        run.score()
    assert start(recipe(rows_at_once=1, checkpointed=True), resume=True).position.step == 1


def test_what_cannot_be_scored_is_not_lost(start):
    run = start(recipe(check={"every": 2, "samples": 3}))
    run.task.evaluate = lambda *_, **__: (_ for _ in ()).throw(RunError("killed while it scores"))
    with pytest.raises(RunError, match="killed"):
        take(run, 3)
    again = start(recipe(check={"every": 2, "samples": 4}), resume=True)
    assert again.position.step == 2
    take(again, 1)
    assert [(e["step"], "scores" in e) for e in again.journal.read()] == [(1, False), (2, False), (2, True), (3, False)]


@pytest.mark.parametrize("rows", [1, 3, None])
def test_a_task_that_goes_on_may_be_resumed_with_other_rows_at_once(start, data, rows):
    of = {
        "learner": {
            "memory": "transformer_xl", "learn": "all",
            "options": {"segment_length": 16, "width": 16, "layers": 1, "heads": 2, "memory_length": 16, "dropout": 0.0},
        },
        "task": {"name": "language", "texts": "books-260", "vocabulary": 300, "characters": 50_000},
        "stages": [{"segments": 2, "steps": 4}], "mixed": 0,
    }  # fmt: skip
    whole, first = start(recipe(**of, rows_at_once=2), "whole"), start(recipe(**of, rows_at_once=2), "first")
    take(whole, 3), take(first, 2)
    first.save()
    resumed = start(recipe(**of, rows_at_once=rows), "first", resume=True)
    take(resumed, 1)
    for name, parameter in weights(whole).items():
        torch.testing.assert_close(parameter, weights(resumed)[name], rtol=1e-4, atol=2e-5)


def test_small_figures_are_written_as_they_are(start):
    run = start(recipe(optimizer={"lr": 1e-5, "warmup": 500}))
    take(run, 1)
    assert [entry["lr"] for entry in run.journal.read()] == [pytest.approx(2e-8)]


def test_a_line_that_was_cut_off_is_no_obstacle(start, tmp_path):
    take(start(recipe()), 2)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as journal:
        journal.write('{"step": 3, "lo')
    again = start(recipe(), resume=True)
    assert [entry["step"] for entry in again.journal.read()] == [1, 2]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 2: Expecting property name"),
        ("\xff", "line 2: Expecting value"),
        ("[2]", "line 2: must be an object with an integer `step`"),
        ('{"loss": 1}', "line 2: must be an object with an integer `step`"),
        ('{"step": "2"}', "line 2: must be an object with an integer `step`"),
        ('{"step": 2, "loss": 1, "correct": 0}', "line 2: a training step lacks segments"),
    ],
)
def test_a_journal_that_is_broken_is_named_with_its_line(start, tmp_path, line, complaint):
    take(start(recipe()), 2)
    file = tmp_path / "run" / "metrics.jsonl"
    file.write_text(file.read_text().splitlines()[0] + f"\n{line}\n", encoding="latin-1")
    with pytest.raises(RunError, match=f"{file}, {complaint}"):
        start(recipe(), resume=True)


def test_what_cannot_be_trained_is_refused_at_the_start(start):
    adapted = recipe().learner.model_dump() | {"adapters": {"rank": 2}}
    with pytest.raises(ConfigError, match=r"learner\.learn='all'.*the backbone is frozen"):
        start(recipe(learner=adapted))
    language = {"name": "language", "vocabulary": 300}
    with pytest.raises(ConfigError, match=r"mixed=0\.5.*all stages alike"):
        start(recipe(task=language, mixed=0.5))
    with pytest.raises(ConfigError, match=r"mixed=0\.0.*all stages alike"):
        start(recipe(task=language, mixed=0))
    for device in ("cuda:7", "meta", "toaster"):
        with pytest.raises(ConfigError, match=f"device='{device}'"):
            Run(recipe(), Path("nowhere"), data=Path(), models_dir=Path(), device=device)
