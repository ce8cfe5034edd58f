"""EleutherAI's lm-eval, unmodified: it measures the same on a served model as on the same weights in transformers.

On documents longer than a model's context, it measures the memory, as the model's own class does. The first run installs it beside the environment of the tests, whose PyTorch and transformers it uses.
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
import torch

from everlong_lab.tasks.facts import MOVES, PEOPLE, PLACES
from everlong_models import Model, load_model
from everlong_models.backbone.loading import DEFAULT_BACKBONE, find_backbone
from everlong_models.catalogue.entry import TRAINED
from everlong_server.settings import load_settings
from tests.pages import Block, run_by
from tests.process import Server

FILES = Path(__file__).parents[1] / "data"
pytestmark = [pytest.mark.slow, pytest.mark.docs, pytest.mark.timeout(1200)]

BLOCK, LONG_BLOCK = run_by("tests/compat/test_lm_eval.py")
WANTED = "lm-eval[api]==0.4.13"
COMMON: dict[str, Any] = {"dataset_path": "json", "test_split": "test"}
GENERATED: dict[str, Any] = {
    "doc_to_target": "answer",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 12, "do_sample": False, "temperature": 0},
    "metric_list": [{"metric": "exact_match"}],
    "filter_list": [
        {"name": "place", "filter": [
            {"function": "regex", "regex_pattern": f"({'|'.join(PLACES)})"}, {"function": "take_first"},
        ]},
    ],
}  # fmt: skip
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
    "places_text": {
        "output_type": "generate_until",
        "doc_to_text": "{{text}}\nQuestion: {{question}}\nAnswer: the",
        **GENERATED,
    },
    "places_chat": {
        "output_type": "generate_until",
        "doc_to_text": "{{text}} {{question}} Answer with one word.",
        **GENERATED,
    },
}
"""A task of each kind: likelihoods of choices, of whole texts, and generation, without and with a chat format."""
LONG_TASKS: dict[str, dict[str, Any]] = {
    "long_choice": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}} {{question}} Answer:",
        "doc_to_choice": list(PLACES),
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}],
    },
    "long_text": {
        "output_type": "generate_until",
        "doc_to_text": "{{text}} {{question}} Answer:",
        **GENERATED,
    },
}
LONG = 24
"""Number of long documents."""


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
    folder, rng, lines = tmp_path_factory.mktemp("tasks"), random.Random(0), []
    for _ in range(24):
        moves = [(rng.choice(PEOPLE), rng.choice(PLACES)) for _ in range(4)]
        person = rng.choice(moves)[0]
        place = dict(moves)[person]
        choices = rng.sample([place, *rng.sample([each for each in PLACES if each != place], 3)], 4)
        text = " ".join(f"{who} went to the {where}." for who, where in moves)
        line = {"text": text, "question": f"Where is {person}?", "choices": choices, "answer": place}
        lines.append(line | {"label": choices.index(place)})
    write_tasks(folder, "places", lines, TASKS)
    return folder


@pytest.fixture(scope="module")
def long_tasks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, str]]]:
    """A folder with tasks about documents of 400 words, and these documents: one sentence of each is about a person."""
    folder, rng, lines = tmp_path_factory.mktemp("long"), random.Random(0), []
    words = (FILES / "valley-of-fear.md").read_text().split()
    for _ in range(LONG):
        start, at = rng.randrange(len(words) - 400), rng.randrange(350)
        person, place = rng.choice(PEOPLE), rng.choice(PLACES)
        fact = f"{person} {rng.choice(MOVES)} the {place}."
        text = " ".join([*words[start : start + at], fact, *words[start + at : start + 400]])
        lines.append({"text": text, "question": f"Where is {person}?", "answer": place})
    write_tasks(folder, "long", lines, LONG_TASKS)
    return folder, lines


def write_tasks(folder: Path, name: str, lines: list[dict[str, Any]], tasks: dict[str, dict[str, Any]]) -> None:
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for task, fields in tasks.items():
        files = {"dataset_kwargs": {"data_files": {"test": str(data)}}}
        (folder / f"{task}.yaml").write_text(json.dumps({"task": task} | COMMON | files | fields))


def measure(lm_eval: Path, tasks: Path, to: Path, arguments: list[str]) -> dict[str, Any]:
    """Run lm-eval with these arguments and return the figure of each task."""
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


def commands(block: Block, server: Server, **replaced: str) -> list[list[str]]:
    """Return the arguments of each lm_eval in a block, with this server's address and other texts replaced."""
    code = block.code.replace("\\\n", " ").replace("http://127.0.0.1:8080", server.url)
    for old, new in replaced.items():
        assert old in code
        code = code.replace(old, new)
    return [line.split()[1:] for line in code.splitlines() if line.startswith("lm_eval ")]


def test_it_measures_what_it_measures_with_transformers(lm_eval: Path, tasks: Path, tmp_path: Path) -> None:
    backbone = find_backbone(DEFAULT_BACKBONE, models_dir=load_settings([]).models_dir)
    texts = "places_choice,places_perplexity,places_text"
    with Server(DEFAULT_BACKBONE, tmp_path / "data") as server:
        server.start()
        tokenizer = {"HuggingFaceTB/SmolLM2-135M-Instruct": str(backbone)}
        completions, _ = commands(BLOCK, server, **tokenizer, TASKS=texts)
        _, chats = commands(BLOCK, server, **tokenizer, TASKS="places_chat")
        served = measure(lm_eval, tasks, tmp_path / "served", completions)
        served |= measure(lm_eval, tasks, tmp_path / "served chat", chats)
    weights = ["run", "--model", "hf", "--model_args", f"pretrained={backbone},dtype=float32", "--device", "cpu"]
    own = measure(lm_eval, tasks, tmp_path / "own", [*weights, "--tasks", texts])
    own |= measure(lm_eval, tasks, tmp_path / "own chat", [*weights, "--tasks", "places_chat", "--apply_chat_template"])
    assert served.keys() == own.keys() == TASKS.keys()
    # Served weights keep their four bits, so the last digits differ: a choice between near equals may fall the other way.
    assert served["places_perplexity"] == pytest.approx(own["places_perplexity"], rel=0.005)
    for task in ("places_choice", "places_text", "places_chat"):
        assert served[task] == pytest.approx(own[task], abs=1.5 / 24), (served, own)
    # Better than chance, so that equal figures mean something.
    assert own["places_choice"] > 1 / 4
    assert own["places_text"] > 1 / 6
    assert own["places_chat"] > 0


def test_on_long_documents_it_measures_the_memory(
    lm_eval: Path, long_tasks: tuple[Path, list[dict[str, str]]], tmp_path: Path
) -> None:
    """The model reads 32 tokens at once, and a document has about 800."""
    folder, documents = long_tasks
    model = load_model("rmt-detect", models_dir=tmp_path)
    with Server("rmt-detect", tmp_path / "data") as server:
        server.start()
        (command,) = commands(
            LONG_BLOCK, server, TASKS="long_choice,long_text", TOKENIZER=str(TRAINED / "rmt-detect" / "backbone")
        )
        served = measure(lm_eval, folder, tmp_path / "served", command)
        cut = [each.replace("max_length=32768", "max_length=64") for each in command]
        assert cut != command
        without = measure(lm_eval, folder, tmp_path / "without", cut)
    own = sum(likeliest_place(model, each) == each["answer"] for each in documents) / LONG
    assert served == {"long_choice": own, "long_text": own}
    assert own >= 22 / 24
    # lm-eval itself cuts the prompts here: the fact is rarely among the last 64 tokens.
    assert max(without.values()) < 0.5


def likeliest_place(model: Model, document: dict[str, str]) -> str:
    """Return the place that the model finds likeliest, by the classes that also train it."""
    ids = model.tokenizer.encode(f"{document['text']} {document['question']} Answer:")
    length = model.memory.segment_length
    before = (len(ids) - 1) // length * length
    assert before > 20 * length
    with torch.inference_mode():
        state = model.memory.read(torch.tensor([ids[:before]]), model.memory.initial_state(1))
        scores = model.memory(torch.tensor([ids[before:]]), state)[0, -1]
    return max(PLACES, key=lambda place: float(scores[model.tokenizer.encode(f" {place}")[0]]))
