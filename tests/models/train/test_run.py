from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from everlong_models.errors import ConfigError, EverlongModelError, RunError, StateNotFinite
from everlong_models.model import load_model
from everlong_models.train import checkpoint
from everlong_models.train import run as running
from everlong_models.train.learner import make_learner
from everlong_models.train.run import MODEL, Run
from tests.models import folders
from tests.models.train.conftest import full_disk, made_once, recipe, take
from tests.tinymodel import STORY


def weights(run):
    return {name: parameter.detach().clone() for name, parameter in run.learner.parameters.items()}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


DROPPING = recipe(
    learner={
        "memory": "lamemo",
        "options": {"segment_length": 24, "memory_length": 8, "width": 16, "layers": 1, "heads": 2, "feed_forward": 16,
                    "dropout": 0.2},
        "learn": "all",
    }
)  # fmt: skip


LASTING = recipe(
    average=0.9, drift={"segments": 9}, stages=[{"segments": 1, "steps": 1}, {"segments": 6, "steps": 5}], mixed=0
)


@pytest.mark.parametrize("of", [recipe(), DROPPING, recipe(rows_at_once=3, checkpointed=True), LASTING])
@pytest.mark.parametrize("cut", [1, 2, 5])
def test_resumed_is_uninterrupted(start, of, cut):
    """Figures and weights, bit for bit, wherever it was cut: in a stage, and between two."""
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


def test_rows_at_once_changes_nothing_but_memory(start):
    whole, parts = start(recipe(), "whole"), start(recipe(rows_at_once=1), "parts")
    take(whole, 1), take(parts, 1)
    for name, parameter in weights(whole).items():
        torch.testing.assert_close(parameter, weights(parts)[name], rtol=1e-4, atol=2e-5)


def test_it_learns(start):
    """Fifty steps on four documents, over and over: it must know them by heart."""
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
    with full_disk(1000), pytest.raises(RunError, match=r"cannot write a checkpoint.*none was written yet"):
        take(run, 1)

    def broken(*_, **__):
        raise StateNotFinite("memory holds NaN")

    monkeypatch.setattr(running, "unroll", broken)
    with pytest.raises(RunError, match=r"step 1: memory holds NaN; the last good checkpoint: none was written yet"):
        take(run, 1)


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
        with pytest.raises(RunError, match=f"cannot make the run's folder {tmp_path / name}: ."):
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


def test_random_numbers_of_every_cuda_device_are_kept(start, tmp_path, monkeypatch):
    """Two devices that are not there: only their random states are asked for."""
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
    with pytest.raises(RunError, match="holds a run"):
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
    with pytest.raises(RunError, match=f"of another architecture: {re.escape(name)} is"):
        checkpoint.restore(
            tmp_path / "run",
            recipe=recipe().digest(),
            tokenizer=run.learner.tokenizer.digest(),
            parameters=other,
            optimizer=torch.optim.AdamW(other.values()),
            average={},
        )


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
    """Same documents, other memories between their segments: another loss, from the first step on."""
    stages = [{"segments": 6, "steps": 1}]
    still, moved = (
        take(start(recipe(stages=stages, mixed=0, rows=16, drift=drift), name), 1)[0]["loss"]
        for drift, name in ((None, "still"), ({"segments": 40, "share": 1}, "moved"))
    )
    assert moved != still
    assert moved == pytest.approx(still, abs=0.5)


def test_drift_is_refused_where_it_cannot_be(start):
    with pytest.raises(ConfigError, match=r"drift=9\.0: is for rmt, not lamemo"):
        start(DROPPING.model_copy(update={"drift": LASTING.drift}))
    language = {"name": "language", "vocabulary": 300}
    run = start(recipe(task=language, drift={"segments": 9}, mixed=0, stages=[{"segments": 4, "steps": 1}]), "l")
    with pytest.raises(ConfigError, match=r"drift=9\.0: language does not say where there is nothing to remember"):
        take(run, 1)


def test_a_run_goes_on_with_the_data_that_it_was_begun_with(start, data, tmp_path):
    """A tokenizer made of other texts has other words at the same numbers."""
    take(start(recipe()), 1)
    other = tmp_path / "other" / "books-260"
    other.mkdir(parents=True)
    (other / "book.txt").write_text(STORY.read_text().upper())
    (other / "another.txt").write_text(STORY.read_text()[:3000])
    with pytest.raises(RunError, match=r"was begun with other data: the tokenizer made of it was [0-9a-f]{12}…"):
        start(recipe(), resume=True, data=other.parent)
    assert start(recipe(), resume=True).position.step == 1


def test_a_folder_with_a_model_is_not_begun_anew(start, tmp_path):
    run = start(recipe())
    take(run, 99)
    run.learner.save(tmp_path / "run" / MODEL, "of a test")
    (tmp_path / "run" / checkpoint.FILE).unlink()
    written = (tmp_path / "run" / "metrics.jsonl").read_text()
    with pytest.raises(RunError, match=r"holds a run \(model\)"):
        start(recipe())
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == written


def test_memories_that_nobody_goes_on_from_are_not_kept(start):
    run = start(recipe())
    take(run, 1)
    assert run._carried == []
    language = start(
        recipe(task={"name": "language", "vocabulary": 300}, mixed=0, stages=[{"segments": 1, "steps": 2}]), "l"
    )
    take(language, 1)
    assert [state.rows for state in language._carried] == [4]


def test_no_room_for_the_rows_names_what_to_change(start, monkeypatch):
    run = start(recipe(rows_at_once=3))
    take(run, 1)
    run.save()

    def full(*_, **__):
        raise torch.OutOfMemoryError("tried to allocate 2.00 GiB")

    monkeypatch.setattr(running, "unroll", full)
    with pytest.raises(RunError, match=r"step 1: rows_at_once=3 rows of \d+ tokens.*2\.00 GiB.*that of step 1 is kept"):
        take(run, 1)
    monkeypatch.setattr(run.task, "evaluate", full)
    with pytest.raises(RunError, match="step 1: no room to score documents of 2 segments"):
        run.score()


def test_small_figures_are_written_as_they_are(start):
    run = start(recipe(optimizer={"lr": 1e-5, "warmup": 500}))
    take(run, 1)
    assert [entry["lr"] for entry in run.journal.read()] == [pytest.approx(2e-8)]


INFINITE = {"segment_length": 16, "width": 16, "layers": 1, "heads": 2, "short_term": 8, "basis": 8, "samples": 8}


def test_a_seed_draws_all_weights(data, tmp_path):
    """Also those of memories that draw theirs by themselves; a model that is begun with keeps its own."""

    def made(number, **options):
        learner = {"memory": "infinite_scratch", "options": INFINITE | options, "learn": "all"}
        task = recipe().task
        found = make_learner(
            recipe(learner=learner).learner,
            made_tokenizer=made_once(task, data),
            models_dir=tmp_path,
            device=torch.device("cpu"),
            seed=number,
        )
        return {name: parameter.detach() for name, parameter in found.parameters.items() if parameter.std() > 0}

    first, again, other, named = made(0), made(0), made(1), made(1, seed=0)
    assert_same(first, again)
    assert_same(first, named)
    same = [name for name in first if torch.equal(first[name], other[name])]
    assert same == ["memory.layers.0.bias"], "where densities begin is no matter of chance"


def test_adapters_of_a_backbone_with_transposed_weights(tmp_path):
    learner = {
        "memory": "rmt", "options": {"segment_length": 24, "memory_tokens": 2}, "backbone": str(folders.backbone("gpt2")),
        "adapters": {"rank": 2, "alpha": 8},
    }  # fmt: skip
    found = make_learner(
        recipe(learner=learner).learner, made_tokenizer=None, models_dir=tmp_path, device=torch.device("cpu"), seed=0
    )
    torch.manual_seed(0)
    for parameter in found.parameters.values():
        torch.nn.init.normal_(parameter, std=0.1)
    found.save(tmp_path / MODEL, "")
    loaded = load_model(str(tmp_path / MODEL), models_dir=tmp_path)
    plain = load_model(str(folders.backbone("gpt2")), models_dir=tmp_path, memory="rmt", options=learner["options"])
    text, memory = torch.arange(20)[None] + 5, found.memory.eval()
    with torch.no_grad():
        expected, got, without = (m.forward(text, m.initial_state(1)) for m in (memory, loaded.memory, plain.memory))
    torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02)  # the updates are stored in bfloat16
    assert not torch.allclose(without, expected, rtol=0.2, atol=0.2)


def test_a_checkpoint_is_no_pickle(start, tmp_path):
    take(start(recipe()), 1)
    with safe_open(tmp_path / "run" / checkpoint.FILE, "pt") as opened:
        assert json.loads(opened.metadata()["position"])["step"] == 1
        assert any(name.startswith("optimizer.exp_avg.") for name in opened.keys())  # noqa: SIM118


def test_the_model_folder_is_what_was_trained(start, tmp_path):
    run = start(recipe())
    take(run, 99)
    assert run.finished
    run.learner.save(tmp_path / "run" / MODEL, "of a test")
    loaded = load_model(str(tmp_path / "run" / MODEL), models_dir=tmp_path)
    assert (loaded.trained, loaded.memory_name, loaded.description) == (True, "rmt", "of a test")
    text = torch.tensor([loaded.tokenizer.encode("It was a dark and stormy night; the rain fell in torrents.")[:20]])
    memory = run.learner.memory.eval()
    with torch.no_grad():
        expected = memory.forward(text, memory.initial_state(1))
        torch.testing.assert_close(loaded.memory.forward(text, loaded.memory.initial_state(1)), expected)


@pytest.fixture(scope="module")
def pretrained(data, tmp_path_factory):
    """A backbone in a folder, with a tokenizer that has the answers as tokens."""
    folder = tmp_path_factory.mktemp("pretrained")
    learner = make_learner(
        recipe().learner,
        made_tokenizer=made_once(recipe().task, data),
        models_dir=folder,
        device=torch.device("cpu"),
        seed=1,
    )
    learner.save(folder / "made", "")
    return folder / "made" / "backbone"


@pytest.mark.parametrize("memory", ["rmt", "armt", "infinite"])
def test_adapters_alone_learn_and_are_what_is_served(start, tmp_path, pretrained, memory):
    options = {"segment_length": 24, **({"basis": 8, "samples": 8} if memory == "infinite" else {"memory_tokens": 2})}
    of = recipe(
        learner={
            "memory": memory, "options": options, "backbone": str(pretrained), "adapters": {"rank": 2, "alpha": 8},
        },
        task=recipe().task.model_dump(),
        stages=[{"segments": 2, "steps": 3}],
        optimizer={"lr": 0.05, "warmup": 0},
    )  # fmt: skip
    run = start(of)
    frozen = {
        name: parameter.detach().clone()
        for name, parameter in run.learner.memory.named_parameters()
        if name not in run.learner.parameters
    }
    assert any("lora_A" in name for name in run.learner.parameters)
    assert all("lora_" in name or not name.startswith("backbone.") for name in run.learner.parameters)
    take(run, 99)
    for name, parameter in run.learner.memory.named_parameters():
        assert name not in frozen or torch.equal(parameter, frozen[name]), name
    run.learner.save(tmp_path / "run" / MODEL, "")
    loaded = load_model(str(tmp_path / "run" / MODEL), models_dir=tmp_path)
    plain = load_model(str(pretrained), models_dir=tmp_path, memory=memory, options=options)
    text = torch.tensor([loaded.tokenizer.encode("It was a dark and stormy night; the rain fell in torrents.")])[:, :20]
    memory = run.learner.memory.eval()
    with torch.no_grad():
        expected = memory.forward(text, memory.initial_state(1))
        got, untrained = (m.forward(text, m.initial_state(1)) for m in (loaded.memory, plain.memory))
    # The updates are stored in bfloat16.
    torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02)
    assert not torch.allclose(untrained, expected, rtol=0.2, atol=0.2)
    # Another run begins with them, if its adapters are of the same kind.
    learner = of.learner.model_copy(update={"start": str(tmp_path / "run" / MODEL)})
    for name, begun in weights(start(recipe(learner=learner), "second")).items():
        torch.testing.assert_close(begun, weights(run)[name].bfloat16().float(), rtol=0, atol=0)
    other = learner.model_copy(update={"adapters": learner.adapters.model_copy(update={"alpha": 4})})
    with pytest.raises(ConfigError, match=r"its adapters \(scale 4;.* are others than the recipe's"):
        start(recipe(learner=other), "third")


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
        ("[2]", "line 2: no entry of a run, which has a step"),
        ('{"loss": 1}', "line 2: no entry of a run, which has a step"),
        ('{"step": "2"}', "line 2: no entry of a run, which has a step"),
        ('{"step": 2, "loss": 1, "correct": 0}', "line 2: a step without segments"),
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


def test_a_run_begins_with_the_weights_of_a_model(start, tmp_path):
    first = start(recipe())
    take(first, 2)
    first.learner.save(tmp_path / "model", "a beginning")
    learner = first.recipe.learner.model_copy(update={"start": str(tmp_path / "model")})
    second = start(recipe(learner=learner, seed=5), "second")
    assert_same(weights(second), weights(first))
    take(second, 1)
    name = next(iter(second.learner.parameters))
    assert not torch.equal(weights(second)[name], weights(first)[name])
    # From scratch all weights are in one file.
    whole = start(DROPPING, "whole")
    whole.learner.save(tmp_path / "whole-model", "")
    learner = DROPPING.learner.model_copy(update={"start": str(tmp_path / "whole-model")})
    assert_same(weights(start(recipe(learner=learner, seed=5), "from-whole")), weights(whole))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"options": {"segment_length": 24, "memory_tokens": 3}}, "'memory_tokens': 2.*'memory_tokens': 3"),
        ({"backbone": recipe().learner.backbone.model_copy(update={"layers": 2})}, "num_hidden_layers is 1.*is 2"),
        ({"memory": "lamemo", "options": {"width": 16, "heads": 2, "layers": 1}, "backbone": None}, "its memory is"),
        ({"start": "nowhere"}, "nowhere"),
    ],
)
def test_a_model_of_another_kind_is_no_beginning(start, tmp_path, changes, complaint):
    first = start(recipe())
    first.learner.save(tmp_path / "model", "")
    learner = first.recipe.learner.model_copy(update={"start": str(tmp_path / "model")} | changes)
    with pytest.raises(EverlongModelError, match=complaint):
        start(recipe(learner=learner), "second")


def test_a_tokenizer_of_other_data_is_no_beginning(start, tmp_path):
    first = start(recipe())
    first.learner.save(tmp_path / "model", "")
    learner = first.recipe.learner.model_copy(update={"start": str(tmp_path / "model")})
    file = tmp_path / "model" / "backbone" / "tokenizer.json"
    tree = json.loads(file.read_text())
    vocabulary = tree["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(tree))
    with pytest.raises(ConfigError, match="its tokenizer is another one"):
        start(recipe(learner=learner), "second")
