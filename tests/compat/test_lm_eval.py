"""EleutherAI's lm-eval, unmodified: it measures the same on a served model as on the same weights in transformers.

The first run installs it beside the environment of the tests, whose PyTorch and transformers it uses.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from everlong_models.backbone.loading import DEFAULT_BACKBONE, find_backbone
from everlong_server.settings import load_settings
from tests.pages import run_by
from tests.process import Server

pytestmark = [pytest.mark.slow, pytest.mark.docs, pytest.mark.timeout(1200)]

(BLOCK,) = run_by("tests/compat/test_lm_eval.py")
WANTED = "lm-eval[api]==0.4.13"
PEOPLE, PLACES = ("Mary", "John", "Daniel", "Sandra"), ("kitchen", "garden", "office", "bathroom", "hallway", "bedroom")
COMMON: dict[str, Any] = {"dataset_path": "json", "test_split": "test"}
TASKS: dict[str, dict[str, Any]] = {
    "places_choice": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}\nQuestion: {{question}}\nAnswer: the",
        "doc_to_choice": "choices",
        "doc_to_target": "label",
        "metric_list": [{"metric": "acc"}],
    },
    "places_perplexity": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "text",
        "metric_list": [{"metric": "bits_per_byte"}],
    },
    "places_chat": {
        "output_type": "generate_until",
        "doc_to_text": "{{text}} {{question}} Answer with one word.",
        "doc_to_target": "answer",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 12, "do_sample": False, "temperature": 0},
        "metric_list": [{"metric": "exact_match"}],
        "filter_list": [
            {"name": "place", "filter": [
                {"function": "regex", "regex_pattern": f"({'|'.join(PLACES)})"}, {"function": "take_first"},
            ]},
        ],
    },
}  # fmt: skip
"""A task of each kind: likelihoods of choices, of whole texts, and generation."""


@pytest.fixture(scope="module")
def lm_eval() -> Path:
    """The installed program."""
    venv = Path(__file__).parent / "lm_eval" / ".venv"
    done = venv / "installed.txt"
    if not done.exists() or done.read_text() != WANTED:
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True, timeout=120)
        places = venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        (places / "tests.pth").write_text(sysconfig.get_path("purelib"))
        subprocess.run([venv / "bin" / "pip", "install", "-q", WANTED], check=True, capture_output=True, timeout=800)
        done.write_text(WANTED)
    return venv / "bin" / "lm_eval"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tasks: where is a person, after four moves?"""
    folder, rng = tmp_path_factory.mktemp("tasks"), random.Random(0)
    with (folder / "places.jsonl").open("w") as file:
        for _ in range(24):
            moves = [(rng.choice(PEOPLE), rng.choice(PLACES)) for _ in range(4)]
            person = rng.choice(moves)[0]
            place = dict(moves)[person]
            choices = rng.sample([place, *rng.sample([each for each in PLACES if each != place], 3)], 4)
            text = " ".join(f"{who} went to the {where}." for who, where in moves)
            line = {"text": text, "question": f"Where is {person}?", "choices": choices, "answer": place}
            file.write(json.dumps(line | {"label": choices.index(place)}) + "\n")
    data = {"dataset_kwargs": {"data_files": {"test": str(folder / "places.jsonl")}}}
    for name, task in TASKS.items():
        (folder / f"{name}.yaml").write_text(json.dumps({"task": name} | COMMON | data | task))
    return folder


def test_it_measures_what_it_measures_with_transformers(lm_eval: Path, tasks: Path, tmp_path: Path) -> None:
    backbone = find_backbone(DEFAULT_BACKBONE, models_dir=load_settings([]).models_dir)

    def measured(name: str, arguments: list[str]) -> dict[str, Any]:
        to = tmp_path / name
        environment = os.environ | {"OPENAI_API_KEY": "none", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            [lm_eval, *arguments, "--include_path", tasks, "--output_path", to], env=environment, timeout=500,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        (results,) = to.rglob("results*.json")
        return {
            task: value
            for task, figures in json.loads(results.read_text())["results"].items()
            for metric, value in figures.items()
            if metric.split(",")[0] in ("acc", "bits_per_byte", "exact_match")
        }

    with Server(DEFAULT_BACKBONE, tmp_path / "data") as server:
        server.start()
        served: dict[str, Any] = {}
        code = BLOCK.code.replace("\\\n", " ").replace("http://127.0.0.1:8080", server.url)
        code = code.replace("HuggingFaceTB/SmolLM2-135M-Instruct", str(backbone))
        _, completions, chats = (line.split()[1:] for line in code.splitlines())
        served |= measured("served", [each.replace("TASKS", "places_choice,places_perplexity") for each in completions])
        served |= measured("served chat", [each.replace("TASKS", "places_chat") for each in chats])
    weights = ["run", "--model", "hf", "--model_args", f"pretrained={backbone},dtype=float32", "--device", "cpu"]
    own = measured("own", [*weights, "--tasks", "places_choice,places_perplexity"])
    own |= measured("own chat", [*weights, "--tasks", "places_chat", "--apply_chat_template"])
    assert served.keys() == own.keys() == TASKS.keys()
    # Served weights keep their four bits, so the last digits differ: a choice between near equals may fall the other way.
    assert served["places_perplexity"] == pytest.approx(own["places_perplexity"], rel=0.005)
    for task in ("places_choice", "places_chat"):
        assert served[task] == pytest.approx(own[task], abs=1.5 / 24), (served, own)
    # Better than chance, so that equal figures mean something.
    assert own["places_choice"] > 1 / 4
    assert own["places_chat"] > 0
