"""The website built from docs/: it builds without a warning, its references are complete, and its figures are the measured ones."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import click
import pytest
import torch
import typer
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from everlong_client.cli.main import app
from everlong_lab.train.recipe import load_recipe
from everlong_models.backbone.backbone import Backbone
from everlong_models.model import MEMORIES, memory_config
from everlong_server.observability.metrics import Metrics
from everlong_server.settings import PREFIX, Settings, load_settings
from tests.pages import PAGES as EVERY_PAGE
from tests.pages import blocks, docs_module, run_by
from tests.process import Server, everlong
from tests.tinymodel import DATA

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
RECIPE, COMMANDS = blocks("docs/guide/own-model.md")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = pytest.importorskip("mkdocs.commands.build", reason="needs everlong[docs]").build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))  # aborts at a warning
    return folder


def test_links_are_rewritten_for_the_site() -> None:
    pytest.importorskip("mkdocs", reason="needs everlong[docs]")
    relinked = docs_module("hooks").relinked
    assert relinked("[a](../SECURITY.md#what-is-not)", "docs/x.md") == "[a](security.md#what-is-not)"
    assert relinked("[a](docs/research/results.md), [b](LICENSE)", "README.md") == "[a](research/results.md), b"
    assert relinked("[a](../../SECURITY.md)", "docs/guide/x.md") == "[a](../security.md)"
    assert relinked("[a](faq.md), [b](../index.md)", "docs/guide/x.md") == "[a](faq.md), [b](../index.md)"
    assert relinked("[a](../docs/guide/faq.md#rag)", "deploy/README.md") == "[a](guide/faq.md#rag)"
    assert relinked("![a](pictures/cost.svg)", "docs/x.md") == "![a](pictures/cost.svg)"
    assert relinked("[a](gone.md) [b](https://x.test/y)", "docs/x.md") == "[a](gone.md) [b](https://x.test/y)"


def test_the_references_are_complete(site: Path) -> None:
    settings = (site / "guide" / "settings.html").read_text()
    for name, field in Settings.model_fields.items():
        assert f"<code>{PREFIX}{name.upper()}</code>" in settings
        words = re.findall(r"[\w ]+", field.description or "")
        assert max(words, key=len) in settings
    metrics = (site / "guide" / "metrics.html").read_text()
    for line in Metrics().render().decode().splitlines():
        if line.startswith("# TYPE") and not line.split()[2].endswith("_created"):
            assert f"<code>{line.split()[2]}</code>" in metrics
    api = (site / "guide" / "api.html").read_text()
    document = json.loads((ROOT / "clients" / "openapi.json").read_text())
    for path, methods in document["paths"].items():
        assert all(f"<code>{method.upper()} {path}</code>" in api for method in methods)
    assert all(f'<h3 id="{name.lower()}">' in api for name in document["components"]["schemas"])


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="(?:https?:)?//', page.read_text()) == []


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert {str(page.relative_to(DOCS)) for page in PAGES} <= named


def test_the_picture_of_the_cost_is_up_to_date() -> None:
    pictures = docs_module("pictures")
    assert pictures.FILE.read_text() == pictures.draw(), "run: python docs/pictures.py"


@pytest.fixture(scope="module")
def states() -> dict[str, int]:
    """Bytes of each memory's state, around a small backbone with the layers and width of the default one."""
    config = LlamaConfig(
        vocab_size=8, hidden_size=576, intermediate_size=8, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192,
    )  # fmt: skip
    with torch.device("cpu"):
        backbone = Backbone(LlamaForCausalLM(config))
    found = {}
    for name in ("window", "rmt", "armt", "compact", "infinite"):
        kind = MEMORIES[name]
        options = {} if kind.training_free else load_recipe(f"default-{name}", ()).learner.options
        found[name] = kind.build(memory_config(name, options), backbone).initial_state(1).nbytes
    return found


def test_sizes_are_those_of_the_code(states: dict[str, int]) -> None:
    assert states == docs_module("pictures").STATES
    operations = (DOCS / "guide" / "operations.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) \| ([\d,]+) \|$", operations, re.MULTILINE)
    assert [(name, _number(size), _number(sessions)) for name, size, sessions in rows] == [
        (name, size, 10**9 // size) for name, size in states.items()
    ]
    told = re.findall(r"^\| `(\w+)` .*\| ([\d,]+) bytes \|", (DOCS / "guide" / "concepts.md").read_text(), re.MULTILINE)
    assert {name: _number(size) for name, size in told} == states


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def test_figures_are_measured_ones() -> None:
    """Every decimal figure of the FAQ is on the page of its measurement, and so are the speeds of the operations page."""
    performance = (DOCS / "research" / "performance.md").read_text()
    measured = (DOCS / "research" / "results.md").read_text() + performance
    text = (DOCS / "guide" / "faq.md").read_text()
    cache = 2 * 30 * 3 * 64 * 4  # bytes a token, as the FAQ has it
    assert f"{cache:,} bytes" in text
    figures = set(re.findall(r"(?<![\d.,v])\d+\.\d+(?![\d.])", text)) - {f"{cache * 100_000 / 1e9:.1f}"}
    assert len(figures) > 10
    for figure in figures:
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", measured), figure
    operations = (DOCS / "guide" / "operations.md").read_text()
    speeds = re.findall(r"^\| (RMT|ARMT|∞-former) \| ([\d,]+) \| [\d,]+ \|$", operations, re.MULTILINE)
    names = {"RMT": "rmt", "ARMT": "armt", "∞-former": "infinite"}
    faster, _ = performance.split("## On a machine without AVX-512")
    rows = re.findall(r"^\| (\w+) \| smollm2-135m-instruct \| ([\d,]+) \|", faster, re.MULTILINE)
    assert dict(rows) == {names[name]: speed for name, speed in speeds}


def test_readme_and_quickstart_have_the_same_commands() -> None:
    quickstart, readme = ([block.code for block in blocks(page)] for page in ("docs/guide/quickstart.md", "README.md"))
    assert len(quickstart) == 5
    assert set(quickstart) <= set(readme)


def commands() -> Iterator[tuple[str, str]]:
    """Yield page and arguments of every `everlong …` in a code block of README and docs, without its comment."""
    for page in EVERY_PAGE:
        for line in "".join(block.code for block in blocks(page) if block.language == "sh").splitlines():
            inside = r"docker compose (?:exec server |run .*--entrypoint )"
            if found := re.match(rf"(?:\S*/|{inside})?everlong (?:server )?(?P<rest>.*?)(?:\s#.*)?$", line):
                yield page, found["rest"]


def check_command(arguments: list[str]) -> None:
    """Check that a command and its options exist. Raises click's errors, or `SettingsError`."""
    named: dict[str, str] = {}
    for file in (ROOT / "pyproject.toml", ROOT / "lab" / "pyproject.toml"):
        named |= tomllib.loads(file.read_text())["project"]["entry-points"]["everlong.commands"]
    server = {name: EntryPoint(name, target, "everlong.commands") for name, target in named.items()}
    name, *rest = arguments
    if name == "serve":
        load_settings(rest)
        return
    command: Any = typer.main.get_command(server[name].load() if name in server else app)
    if name not in server:
        rest = arguments
    while isinstance(command, click.Group) or hasattr(command, "commands"):
        if not rest and command.invoke_without_command:
            break
        if not rest:
            raise click.UsageError(f"no command after {name!r}")
        if rest[0] not in command.commands:
            raise click.UsageError(f"no command {rest[0]!r}")
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context(name, list(rest))


@pytest.mark.parametrize(("page", "line"), sorted(set(commands())))
def test_commands_of_the_documentation_exist(page: str, line: str) -> None:
    check_command(shlex.split(line))


@pytest.mark.parametrize("wrong", ["keys", "chat --ulr X", "eval fact X", "train --ouf X", "eval language X --texts"])
def test_wrong_commands_are_detected(wrong: str) -> None:
    with pytest.raises(Exception, match=r"(?i)no such option|no command|requires an argument"):
        check_command(shlex.split(wrong))


def test_the_recipe_of_your_own_model_is_valid(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(RECIPE.code)
    recipe = load_recipe(str(tmp_path / "own.yaml"), ())
    assert recipe.learner.backbone == "my-model"


@pytest.mark.slow
@pytest.mark.docs
@pytest.mark.timeout(900)
def test_your_own_model_in_four_commands(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the commands of the page as they are, with a tiny backbone and a tiny recipe."""
    monkeypatch.chdir(tmp_path)
    tree = yaml.safe_load(RECIPE.code)
    tree["learner"]["options"] |= {"segment_length": 32, "memory_tokens": 2}
    tree["stages"][0]["steps"] = 2
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(tree))
    (tmp_path / "my-model").symlink_to(tiny_model / "backbone")
    (tmp_path / "data" / "mine").mkdir(parents=True)
    for book in DATA.glob("*-*.md"):
        (tmp_path / "data" / "mine" / book.name).write_text(book.read_text()[:100_000])
    assert run_by("tests/test_site.py") == [COMMANDS]
    train, measure, without, serve = [shlex.split(line)[1:] for line in COMMANDS.code.splitlines()]
    perplexities = []
    for command in (train, measure, without):
        more = ["--json", str(tmp_path / "figures.json")] if command[0] == "eval" else ["--threads", "1"]
        done = everlong(*command, *more)
        assert done.returncode == 0, done.stderr
        if command[0] == "eval":
            perplexities.append(json.loads((tmp_path / "figures.json").read_text()))
    assert perplexities[0] != perplexities[1]
    assert serve[:2] == ["serve", "--model"]
    with Server(tmp_path / serve[2], tmp_path / "served") as server:
        server.start()
        (model,) = server.http.get("/v1/models").json()["data"]
        assert model["memory_trained"] is True
