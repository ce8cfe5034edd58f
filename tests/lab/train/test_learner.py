"""Learners: the recipe, the starting weights, and the model folder."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from everlong_lab.train.learner import make_learner
from everlong_lab.train.run import MODEL
from everlong_models.errors import ConfigError, EverlongModelError
from everlong_models.model import load_model
from everlong_models.weights import MANIFEST
from tests.lab.train.conftest import DROPPING, assert_same, made_once, recipe, take, weights
from tests.models import model_folders

INFINITE = {"segment_length": 16, "width": 16, "layers": 1, "heads": 2, "short_term": 8, "basis": 8, "samples": 8}


def test_a_seed_draws_all_weights(data, tmp_path):
    """This includes memories with a seed option; a starting model keeps its seed."""

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


def test_in_bfloat16_frozen_weights_take_half_the_memory_and_those_that_learn_stay_exact(tmp_path):
    small = {"segment_length": 16, "window": 24, "sinks": 4}
    adapted = {
        "memory": "window",
        "options": small,
        "backbone": str(model_folders.backbone("llama")),
        "adapters": {"rank": 2},
    }
    whole = {"memory": "window", "options": small, "backbone": adapted["backbone"], "learn": "all"}
    for learner, frozen in ((adapted, {torch.bfloat16}), (whole, set())):
        found = make_learner(
            recipe(learner=learner).learner, made_tokenizer=None, models_dir=tmp_path, device=torch.device("cpu"), seed=0,
            bfloat16=True,
        )  # fmt: skip
        assert {weight.dtype for weight in found.memory.parameters() if not weight.requires_grad} == frozen
        assert {weight.dtype for weight in found.parameters.values()} == {torch.float32}


def test_adapters_may_begin_at_a_later_layer(tmp_path):
    def made(first_layer):
        adapted = {
            "memory": "window",
            "options": {"segment_length": 16, "window": 24, "sinks": 4},
            "backbone": str(model_folders.backbone("llama")),
            "adapters": {"rank": 2, "first_layer": first_layer},
        }
        found = make_learner(
            recipe(learner=adapted).learner,
            made_tokenizer=None,
            models_dir=tmp_path,
            device=torch.device("cpu"),
            seed=0,
        )
        return {int(name.partition(".layers.")[2].partition(".")[0]) for name in found.parameters}

    assert made(0) == {0, 1}
    assert made(1) == {1}
    with pytest.raises(ConfigError, match=r"first_layer.*must be less than the 2 layers"):
        made(2)


def test_adapters_of_a_backbone_with_transposed_weights(tmp_path):
    learner = {
        "memory": "rmt", "options": {"segment_length": 24, "memory_tokens": 2}, "backbone": str(model_folders.backbone("gpt2")),
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
    plain = load_model(
        str(model_folders.backbone("gpt2")), models_dir=tmp_path, memory="rmt", options=learner["options"]
    )
    text, memory = torch.arange(20)[None] + 5, found.memory.eval()
    with torch.no_grad():
        expected, got, without = (m.forward(text, m.initial_state(1)) for m in (memory, loaded.memory, plain.memory))
    torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02)  # the updates are stored in bfloat16
    assert not torch.allclose(without, expected, rtol=0.2, atol=0.2)


@pytest.mark.parametrize("template", [None, "instruct"])
def test_the_model_folder_names_the_template_of_the_recipe(start, tmp_path, template):
    run = start(recipe(learner=recipe().learner.model_dump() | {"template": template}))
    run.learner.save(tmp_path / MODEL, "")
    assert ("template" in json.loads((tmp_path / MODEL / MANIFEST).read_text())) == (template is not None)
    assert load_model(str(tmp_path / MODEL), models_dir=tmp_path).template == (template or "few-words")


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
    """Save a backbone with a tokenizer in which answers are single tokens."""
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
    with pytest.raises(ConfigError, match=r"its adapters \(scale 4;.* differ from the recipe's"):
        start(recipe(learner=other), "third")


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
        ({"options": {"segment_length": 24, "memory_tokens": 3}}, "its memory's memory_tokens is 2, the recipe's is 3"),
        ({"backbone": recipe().learner.backbone.model_copy(update={"layers": 2})}, "num_hidden_layers is 1.*is 2"),
        (
            {"memory": "lamemo", "options": {"width": 16, "heads": 2, "layers": 1}, "backbone": None},
            "its memory's name is rmt, the recipe's is lamemo",
        ),
        ({"start": "nowhere"}, "nowhere"),
    ],
)
def test_a_model_of_another_kind_is_no_beginning(start, tmp_path, changes, complaint):
    first = start(recipe())
    first.learner.save(tmp_path / "model", "")
    learner = first.recipe.learner.model_copy(update={"start": str(tmp_path / "model")} | changes)
    with pytest.raises(EverlongModelError, match=complaint):
        start(recipe(learner=learner), "second")


def test_a_memory_that_draws_goes_on_with_the_seed_that_it_began_with(start, tmp_path):
    of = recipe(
        learner={
            "memory": "infinite_scratch", "learn": "all",
            "options": {
                "segment_length": 24, "width": 16, "layers": 1, "heads": 2, "short_term": 8, "basis": 8, "samples": 8,
                "sticky": "independent",
            },
        },
        seed=3,
    )  # fmt: skip
    first = start(of)
    first.learner.save(tmp_path / "model", "")
    learner = of.learner.model_copy(update={"start": str(tmp_path / "model")})
    assert_same(weights(start(of.model_copy(update={"learner": learner, "seed": 5}), "second")), weights(first))


def test_a_resumed_run_needs_the_model_that_it_began_with_no_more(start, tmp_path):
    first = start(recipe())
    first.learner.save(tmp_path / "model", "")
    of = recipe(learner=first.recipe.learner.model_copy(update={"start": str(tmp_path / "model")}))
    second = start(of, "second")
    take(second, 1)
    second.save()
    shutil.rmtree(tmp_path / "model")
    assert_same(weights(start(of, "second", resume=True)), weights(second))


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
