from __future__ import annotations

from pathlib import Path

import pytest
import torch

from everlong_lab.train.learner import make_learner
from everlong_lab.train.recipe import load_recipe, recipe_names
from everlong_models.errors import ConfigError, RecipeError


@pytest.mark.parametrize("name", recipe_names())
def test_what_comes_with_the_package_is_valid_and_says_what_it_is(name):
    assert load_recipe(name).description


def test_changes():
    found = load_recipe("facts-detect", ["optimizer.lr=3e-4", "stages.0.steps=7", "rows=5", "check.every=2"])
    assert (found.optimizer.lr, found.stages[0].steps, found.rows, found.check.every) == (3e-4, 7, 5, 2)
    assert found.digest() != load_recipe("facts-detect").digest()
    assert load_recipe("facts-detect").digest() == load_recipe("facts-detect", ["description=else"]).digest()
    assert load_recipe("facts-detect").digest() == load_recipe("facts-detect", ["learner.template=instruct"]).digest()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        (["optimizer.speed=1"], r"facts-detect: optimizer\.speed=1: Extra inputs are not permitted"),
        (["optimizer.lr=-1"], r"optimizer\.lr=-1.*greater than 0"),
        (["task.kind=guess"], r"task\.facts\.kind='guess'.*'memorize', 'detect' or 'reasoning'"),
        (["task.name=chess"], r"task.*chess"),
        (["stages.0.steps=0"], r"stages\.0\.steps=0"),
        (["optimizer.lr=.inf"], r"optimizer\.lr=inf: .*finite"),
        (["optimizer.lr=.nan"], r"optimizer\.lr=nan: .*finite"),
        (["learner.backbone.feedforward=3"], r"learner\.backbone\.feedforward=3: Extra inputs are not permitted"),
        (["learner.backbone.width=1"], r"learner\.backbone\.width=1: .*greater than or equal to 2"),
        (["learner.backbone=3"], r"learner\.backbone=3: "),
        (["auxiliary=inf"], r"auxiliary=inf: .*finite"),
        (["optimizer.betas=[1.5,2]"], r"optimizer\.betas\.0=1\.5: .*less than 1"),
        (["optimizer.betas=[0.9,-1]"], r"optimizer\.betas\.1=-1: .*greater than or equal to 0"),
        ([f"seed={10**30}"], r"seed=10{30}: .*less than 9223372036854775808"),
    ],
)
def test_a_wrong_key_or_value_is_named(changes, error):
    with pytest.raises(RecipeError, match=error):
        load_recipe("facts-detect", changes)


def test_files(tmp_path):
    with pytest.raises(RecipeError, match=r"cannot read the recipe .*none\.yaml"):
        load_recipe(str(tmp_path / "none.yaml"))
    with pytest.raises(RecipeError, match=r"no recipe .nonsense..*facts-detect"):
        load_recipe("nonsense")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1")
    with pytest.raises(RecipeError, match="is not YAML"):
        load_recipe(str(broken))
    broken.write_text("- 1")
    with pytest.raises(RecipeError, match="must be a mapping of keys, found list"):
        load_recipe(str(broken))
    with pytest.raises(ConfigError, match="must be KEY=VALUE"):
        load_recipe("facts-detect", ["rows"])
    for nowhere in ("rows.more=1", "rows.more.still=1", "stages.9.steps=1"):
        with pytest.raises(ConfigError, match="is not a key of the recipe"):
            load_recipe("facts-detect", [nowhere])


def test_a_recipe_extends_another_one(tmp_path):
    """Mappings are merged, all other values replaced."""
    ours = tmp_path / "ours.yaml"
    ours.write_text("extends: sorting-sticky\nlearner: {options: {tau: 0.5}}\nstages: [{segments: 1, steps: 2}]\n")
    found, base = load_recipe(str(ours), ["rows=5"]), load_recipe("sorting-sticky")
    assert found.learner.options == base.learner.options | {"tau": 0.5}
    assert (len(found.stages), found.rows, found.task) == (1, 5, base.task)
    for extended in (str(ours), "[1]"):
        ours.write_text(f"extends: {extended}")
        with pytest.raises(RecipeError, match=r"ours\.yaml: extends=.*: must be the name or file of another recipe"):
            load_recipe(str(ours))
    ours.write_text("extends: nonsense")
    with pytest.raises(RecipeError, match="no recipe 'nonsense'"):
        load_recipe(str(ours))


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["rmt", "armt", "infinite"])
def test_what_the_default_recipes_train_is_small_enough_to_publish(memory, tmp_path):
    folder = Path.home() / ".cache" / "everlong" / "models"
    learner = make_learner(
        load_recipe(f"default-{memory}").learner,
        made_tokenizer=None,
        models_dir=folder,
        device=torch.device("cpu"),
        seed=0,
    )
    learner.save(tmp_path / "model", "")
    assert sum(file.stat().st_size for file in (tmp_path / "model").rglob("*") if file.is_file()) < 20e6
