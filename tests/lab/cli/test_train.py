"""`everlong train` on the command line: real processes that are stopped, killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import Result
from typer.testing import CliRunner

from everlong_lab.cli.train import train as command
from everlong_lab.train.checkpoint import FILE
from everlong_lab.train.journal import CURVE
from everlong_models.model import load_model
from tests.lab.train.conftest import recipe
from tests.process import wait_for
from tests.tinymodel import NOVEL, STORY


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "books-260").mkdir()
    for file in (NOVEL, STORY):
        (folder / "books-260" / file.name).write_text(file.read_text()[:40_000])
    return folder


@pytest.fixture
def arguments(tmp_path):
    """Return arguments for the tiny recipe with `steps` steps on one thread."""
    file = tmp_path / "tiny.yaml"

    def make(steps: int, out: str) -> list[str]:
        learner = recipe().learner
        noisy = learner.model_copy(
            update={"options": learner.options | {"noise": 0.2}}
        )  # which draws numbers at every step
        tree = recipe(learner=noisy, stages=[{"segments": 1, "steps": steps}], save_minutes=0.001).model_dump(
            mode="json"
        )
        file.write_text(yaml.safe_dump(tree))
        return [str(file), "--out", str(tmp_path / out), "--threads", "1"]

    return make


@pytest.fixture
def invoke(arguments):
    """Run the command in this process, which saves the seconds of starting another one."""
    threads = torch.get_num_threads()

    def run(*options: str, steps: int = 4, out: str = "run", env: dict[str, str] | None = None) -> Result:
        return CliRunner().invoke(command, [*arguments(steps, out), *options], env=env)

    yield run
    torch.set_num_threads(threads)


@pytest.fixture
def train(data, arguments):
    """Start `everlong train` in a process of its own."""

    def start(*options: str, steps: int = 4, out: str = "run") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "everlong_client", "train", *arguments(steps, out), "--data", str(data)]
        return subprocess.Popen(
            [*command, *options],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"COLUMNS": "300"},
        )

    return start


def finish(process: subprocess.Popen[str]) -> str:
    _, said = process.communicate(timeout=240)
    return said


def steps(folder: Path) -> list[int]:
    entries = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [entry["step"] for entry in entries if "loss" in entry]


@pytest.mark.long
def test_a_run_leaves_a_model_a_curve_and_its_figures(train, tmp_path):
    process = train()
    said = finish(process)
    assert process.returncode == 0, said
    assert "accuracy" in said
    assert "after 4 steps" in said
    assert steps(tmp_path / "run") == [1, 2, 3, 4]
    assert (tmp_path / "run" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert load_model(str(tmp_path / "run" / "model"), models_dir=tmp_path).trained


@pytest.mark.long
def test_told_to_stop_then_killed_then_resumed(train, invoke, data, tmp_path):
    """SIGTERM leaves a checkpoint of the last step, SIGKILL an older one; a resumed run ends as if never interrupted."""
    folder, many = tmp_path / "run", 150
    process = train(steps=many)
    wait_for(lambda: (folder / "metrics.jsonl").exists() and len(steps(folder)) > 2)
    process.send_signal(signal.SIGTERM)
    said = finish(process)
    assert process.returncode == 0
    assert "continue with --resume" in said
    stopped = len(steps(folder))
    assert 2 < stopped < many
    process = train("--resume", steps=many)
    wait_for(lambda: len(steps(folder)) > stopped + 2)
    process.kill()
    finish(process)
    assert f"after {many} steps" in invoke("--data", str(data), "--resume", steps=many).stderr
    invoke("--data", str(data), steps=many, out="undisturbed")
    assert steps(folder) == list(range(1, many + 1))
    model = "model/memory.safetensors"
    assert (folder / model).read_bytes() == (tmp_path / "undisturbed" / model).read_bytes()
    assert (folder / FILE).read_bytes() != b""


@pytest.mark.parametrize("minutes", ["0", "-1", "nan"])
def test_a_time_that_is_none(invoke, minutes):
    done = invoke("--max-minutes", minutes)
    assert done.exit_code == 1
    assert f"--max-minutes={minutes}: must be greater than 0" in done.stderr


def test_the_data_folder_may_be_a_variable(invoke, data):
    done = invoke(steps=1, env={"EVERLONG_DATA": str(data)})
    assert done.exit_code == 0, done.stderr
    wrong = invoke(out="other", env={"EVERLONG_PORT": "x"})
    assert wrong.exit_code == 1
    assert "EVERLONG_PORT" in wrong.stderr


def test_max_minutes(invoke, data, tmp_path):
    done = invoke("--data", str(data), "--max-minutes", "0.0001", steps=5000)
    assert done.exit_code == 0, done.stderr
    assert "stopped at step" in done.stderr
    assert (tmp_path / "run" / FILE).exists()
    assert (tmp_path / "run" / CURVE).read_bytes().startswith(b"\x89PNG")
    assert load_model(str(tmp_path / "run" / "model"), models_dir=tmp_path).trained, "what it has learnt so far"


@pytest.mark.long
def test_bfloat16(invoke, data, tmp_path):
    """In bfloat16 the run has nearly the same loss, and its weights are still float32."""
    losses = {}
    for options in ((), ("--bfloat16",)):
        done = invoke("--data", str(data), *options, steps=2, out="".join(options) or "float32")
        assert done.exit_code == 0, done.stderr
        assert (options[0].strip("-") if options else "float32") + ", matmul peak" in " ".join(done.stderr.split())
        folder = tmp_path / ("".join(options) or "float32")
        losses[options] = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])["loss"]
        model = load_model(str(folder / "model"), models_dir=tmp_path)
        assert {weight.dtype for weight in model.memory.parameters()} == {torch.float32}
    full, few = losses.values()
    assert few == pytest.approx(full, rel=0.02)
    assert few != full


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--set", "optimizer.speed=1"], "optimizer.speed=1: Extra inputs are not permitted"),
        (["--resume"], "nothing to resume"),
        (["--set", "learner.memory=elephant"], "learner.memory='elephant'"),
        (["--set", "learner.memory=native"], "learner.memory='native': cannot be trained here"),
        (["--set", "learner.options.memory_tokens=24"], "must be smaller than segment_length=24"),
        (["--set", "learner.backbone=./nowhere"], "no backbone './nowhere'"),
        (["--set", "task.noise=books-9"], "no data set 'books-9'"),
        (["--device", "cuda:7"], "cuda:7"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(invoke, data, options, error):
    done = invoke("--data", str(data), *options)
    assert done.exit_code == 1
    assert error in done.stderr
    assert "Traceback" not in done.stderr
