"""The package's recipes on CMU-DoG and facts, for two steps at toy size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from everlong_lab.eval.dialogue import default_ways, dialogue, sample
from everlong_lab.tasks.dialogue import dialogues
from everlong_lab.train.learner import make_learner
from everlong_lab.train.recipe import load_recipe, recipe_names
from everlong_lab.train.run import MODEL
from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.loading import load_backbone
from everlong_models.model import load_model
from tests.lab.tasks.test_dialogue import CHAT, store
from tests.models import model_folders

SMALL = [name for name in recipe_names() if name.startswith("dialogue-small-")]
AROUND = [name for name in recipe_names() if name.startswith("dialogue-") and name not in SMALL]
FEW = ["stages=[{segments: 4, steps: 2}]", "rows=2", "check={samples: 2}", "task.vocabulary=512"]
SHORT = {
    "transformer_xl": ["width=16"],
    "compressive": ["width=16", "memory_length=32", "compressed_length=8"],
    "infinite_scratch": ["width=16", "short_term=8", "basis=8", "samples=8"],
    "rmt": ["memory_tokens=2"],
    "infinite": ["basis=8", "samples=8", "rank=4"],
}


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("films")
    chats = [[*CHAT, ("user1", 3, f"Bye, number {number}.")] for number in range(4)]
    for split in ("train", "valid", "test"):
        store(folder, chats, split)
    return folder


def changes(name: str) -> list[str]:
    memory = load_recipe(name).learner.memory
    options = ["segment_length=32", *SHORT[memory]]
    return [*FEW, *(f"learner.options.{option}" for option in options)]


@pytest.mark.parametrize("name", [SMALL[0], *(pytest.param(name, marks=pytest.mark.long) for name in SMALL[1:])])
def test_dialogue_from_scratch_is_trained_and_measured(name: str, films: Path, start) -> None:
    sizes = ["learner.backbone.width=16"] if load_recipe(name).learner.backbone else []
    run = start(load_recipe(name, [*changes(name), *sizes]), data=films)
    assert [update.step for update in run.steps()] == [1, 2]
    assert run.score()["perplexity"] > 1
    run.learner.save(run.folder / MODEL, run.recipe.description)
    model = load_model(str(run.folder / MODEL), models_dir=films)
    assert model.trained
    sampled = sample(dialogues(films, "test"), responses=3, written=2, seed=0)
    backbone = model.memory.backbone if isinstance(getattr(model.memory, "backbone", None), Backbone) else None
    ways = default_ways(backbone, model.tokenizer, sampled)
    assert ways == ("dialogue", "memory"), "no window holds a document"
    without, with_it = dialogue(model.memory, backbone, model.tokenizer, sampled=sampled, ways=ways)
    assert (without.way, with_it.way) == ways
    assert without.responses == with_it.responses >= 3
    assert without.perplexity != with_it.perplexity


@pytest.mark.parametrize("name", AROUND)
def test_dialogue_around_a_backbone_is_trained(name: str, films: Path, start) -> None:
    small = [f"learner.backbone={model_folders.backbone()}", "learner.adapters.rank=2", "rows_at_once=1"]
    run = start(load_recipe(name, [*changes(name), *small]), data=films)
    before = {key: value.detach().clone() for key, value in run.learner.parameters.items()}
    assert len(list(run.steps())) == 2
    moved = {key for key, value in run.learner.parameters.items() if not torch.equal(value, before[key])}
    assert any("lora" in key for key in moved)
    assert any("lora" not in key for key in moved), "the memory's own weights learn, too"


FROM_SCRATCH = [name for name in recipe_names() if name.startswith(("characters-", "language-", "sorting-"))]
TOY = {
    "transformer_xl": ["feed_forward=32"],
    "lamemo": ["feed_forward=32"],
    "compressive": ["feed_forward=32", "memory_length=16", "compressed_length=4"],
    "infinite_scratch": ["short_term=8", "basis=8", "samples=8"],
}


@pytest.mark.long
@pytest.mark.parametrize("name", FROM_SCRATCH + SMALL)
def test_all_that_a_recipe_has_learns(name: str, films: Path, start) -> None:
    """This includes the gate of an ∞-former, which affects only later segments."""
    recipe = load_recipe(name)
    few = ["stages=[{segments: 4, steps: 4}]", "mixed=0", "rows=2", "check={samples: 2}"]
    if name in SMALL:
        options, of = changes(name)[len(FEW) :], {"data": films}
        few.append("task.vocabulary=512")
    else:
        options, of = (
            [f"learner.options.{o}" for o in ("segment_length=24", "width=16", *TOY[recipe.learner.memory])],
            {},
        )
        few += ["task.vocabulary=512", "task.characters=50000"] if recipe.task.name == "language" else []
    sizes = ["learner.backbone.width=16"] if recipe.learner.backbone else []
    run = start(load_recipe(name, [*few, *options, *sizes]), **of)
    before = {key: value.detach().clone() for key, value in run.learner.parameters.items()}
    assert len(list(run.steps())) == 4
    same = {key for key, value in run.learner.parameters.items() if torch.equal(value, before[key])}
    assert not same


def test_the_papers_models_on_dialogue_are_all_there() -> None:
    assert [name.removeprefix("dialogue-small-") for name in SMALL] == [
        "compressive",
        "infinite",
        "none",
        "rmt",
        "sticky",
        "txl",
    ]
    assert set(AROUND) == {"dialogue-infinite", "dialogue-rmt", "dialogue-sticky"}
    sizes = set()
    for name in SMALL:
        recipe = load_recipe(name)
        made = load_backbone(str(model_folders.backbone()), models_dir=Path())[1].to_hf()
        learner = make_learner(
            recipe.learner.model_copy(
                update={"options": recipe.learner.options | ({} if recipe.learner.backbone else {"vocab_size": 1024})}
            ),
            made_tokenizer=made,
            models_dir=Path(),
            device=torch.device("cpu"),
            seed=0,
        )
        sizes.add((recipe.stages, recipe.rows, recipe.optimizer, recipe.task))
        count = sum(parameter.numel() for parameter in learner.parameters.values())
        if recipe.learner.backbone:
            count += 96 * (1024 - len(made))
        assert count == pytest.approx(477_000, rel=0.005), name
    assert len(sizes) == 1, "equal steps"


def test_memorize_is_trained_by_itself(start) -> None:
    small = ["learner.backbone={width: 16, layers: 1, heads: 2, feed_forward: 16, positions: 64}"]
    few = ["stages=[{segments: 1, steps: 1}, {segments: 3, steps: 1}]", "rows=4", "check={samples: 4}", "mixed=0"]
    run = start(load_recipe("facts-memorize", [*few, *small, "task.vocabulary=512", "task.noise_characters=20000"]))
    assert [update.segments for update in run.steps()] == [1, 3]
    batch, tokenizer = run.task.batch(5, 8, 3), run.learner.tokenizer
    for row in batch.tokens.tolist():
        fact, _, rest = tokenizer.decode(row).strip().partition(".")
        person, place = fact.split()[0], fact.split()[-1]
        assert rest.endswith(f" Where is {person}? Answer: {place}")


def test_reasoning_starts_from_a_model_of_the_package(tmp_path: Path) -> None:
    """The starting model has the recipe's sizes and the tokenizer made from its data."""
    recipe = load_recipe("facts-reasoning").learner
    assert recipe.start is not None
    binding = load_model(recipe.start, models_dir=tmp_path)
    learner = make_learner(
        recipe, made_tokenizer=binding.tokenizer.to_hf(), models_dir=tmp_path, device=torch.device("cpu"), seed=1
    )
    tokens = torch.tensor(
        [binding.tokenizer.encode(" The office is north of the garden. What is north of the garden?")]
    )
    memory = learner.memory
    torch.testing.assert_close(
        memory.forward(tokens, memory.initial_state()), binding.memory.forward(tokens, binding.memory.initial_state())
    )
