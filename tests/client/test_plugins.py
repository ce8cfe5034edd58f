"""The commands of other distributions: they are listed without being imported, and run with their own arguments."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint, PackageNotFoundError
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from everlong_client.cli import plugins
from everlong_client.cli.main import app

ROOT = Path(__file__).parents[2]
FOREIGN = {"torch", "transformers", "fastapi", "everlong_server", "everlong_models", "everlong_lab"}
PROJECTS = [ROOT / "pyproject.toml", ROOT / "lab" / "pyproject.toml"]


@pytest.fixture(autouse=True)
def _plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    commands = {name: f"tests.client.plugins:{name}" for name in ("tree", "clicked", "plain", "gone")}
    commands["absent"] = "no_such_module_here:command"
    summaries = {"test": "tests.client.plugins:SUMMARIES", "broken": "no_such_module_here:SUMMARIES"}
    groups = {"everlong.commands": commands, "everlong.summaries": summaries}

    def entry_points(group: str) -> list[EntryPoint]:
        return [EntryPoint(name, target, group) for name, target in groups[group].items()]

    monkeypatch.setattr(plugins, "entry_points", entry_points)
    plugins._summaries.cache_clear()
    yield
    plugins._summaries.cache_clear()


def run(*args: str) -> Result:
    return CliRunner().invoke(app, list(args), prog_name="everlong")


@pytest.mark.parametrize(
    ("args", "output"),
    [
        (["tree", "pull", "smollm2"], "pulled smollm2\n"),
        (["clicked", "a", "--loud", "b"], "a b!\n"),
        (["clicked", "--", "--loud"], "--loud\n"),
        (["plain", "ab", "--times", "3"], "ababab\n"),
    ],
)
def test_a_plugin_is_run_with_its_own_arguments(args: list[str], output: str):
    result = run(*args)
    assert (result.exit_code, result.stdout) == (0, output)


def test_a_plugin_shows_its_own_help():
    assert "Usage: everlong plain [OPTIONS]" in run("plain", "--help").stdout
    assert "Fetch something." in run("tree", "--help").stdout
    assert "Usage: everlong tree pull" in run("tree", "pull", "--help").stdout


@pytest.mark.parametrize(("args", "code"), [(["tree", "show"], 3), (["plain"], 2), (["clicked", "--quiet"], 2)])
def test_a_plugins_exit_code(args: list[str], code: int):
    assert run(*args).exit_code == code


@pytest.mark.parametrize(
    ("name", "reason"), [("absent", "No module named 'no_such_module_here'"), ("gone", "has no attribute 'gone'")]
)
def test_a_plugin_that_cannot_be_loaded(name: str, reason: str):
    result = run(name)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: `everlong {name}` cannot be loaded from ")
    assert reason in result.stderr
    assert len(result.stderr.splitlines()) == 1


def words(output: str) -> str:
    """Return the output without line breaks and without the frames that Typer draws."""
    return " ".join(re.sub(r"[^\x20-\x7e…]", " ", output).split())


def test_help_describes_all_commands():
    result = run("--help")
    assert result.exit_code == 0
    for name in (
        "ask",
        "ingest",
        "chat",
        "memory",
        "status",
        "documents",
        "sessions",
        "tree",
        "clicked",
        "plain",
        "gone",
        "absent",
    ):
        assert f" {name} " in result.stdout
    assert "tree Grow a tree of commands." in words(result.stdout)
    assert result.stdout.index("Use a server") < result.stdout.index("Other commands")
    assert "absent Run a command of no_such_module_here:command." in words(result.stdout)


@pytest.mark.parametrize("project", PROJECTS, ids=["everlong", "everlong-lab"])
def test_each_command_of_this_repository_has_a_description(project: Path):
    entries = tomllib.loads(project.read_text())["project"]["entry-points"]
    (summaries,) = (EntryPoint("", target, "").load() for target in entries["everlong.summaries"].values())
    assert summaries.keys() == entries["everlong.commands"].keys()
    for summary in summaries.values():
        assert re.fullmatch(r"[A-Z][^.]{10,80}\.", summary), "one sentence on one line"


@pytest.mark.parametrize(
    ("installed", "hint"),
    [
        ([], "More commands come with everlong (the server) and everlong-lab (training, evaluation and benchmarks): "
             "pip install everlong everlong-lab"),
        (["everlong"], "More commands come with everlong-lab (training, evaluation and benchmarks): "
                       "pip install everlong-lab"),
        (["everlong", "everlong-lab"], "`everlong --help` lists the commands."),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["serve", "bench", "x"])
def test_an_unknown_command_names_the_packages_that_are_not_installed(
    monkeypatch: pytest.MonkeyPatch, installed: list[str], hint: str, name: str
):
    def version(distribution: str) -> str:
        if distribution not in installed:
            raise PackageNotFoundError(distribution)
        return "1"

    monkeypatch.setattr(plugins, "version", version)
    result = run(name, "--port", "1")
    assert result.exit_code == 2
    assert f"No such command '{name}'. {hint}" in words(result.stderr)


@pytest.mark.parametrize(("wrong", "right"), [("chatt", "chat"), ("memroy", "memory"), ("clickd", "clicked")])
def test_a_mistyped_command_gets_a_suggestion(wrong: str, right: str):
    result = run(wrong, "--some", "option")
    assert result.exit_code == 2
    assert f"No such command '{wrong}'. Did you mean '{right}'?" in words(result.stderr)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("everlong st", {"status"}),
        ("everlong tr", {"tree"}),
        ("everlong tree ", {"pull", "show"}),
        ("everlong plain --t", {"--times"}),
        ("everlong absent --t", set()),
        ("everlong ask --keep", {"--keep"}),
    ],
)
def test_a_shell_completes_commands_and_options(line: str, words: set[str]):
    parts = line.split(" ")
    variables = {"_EVERLONG_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(parts) - 1)}
    result = CliRunner().invoke(app, [], prog_name="everlong", env=variables)
    assert {*result.stdout.split()} == words


def test_an_unknown_option_is_no_command():
    result = run("--hlep")
    assert result.exit_code == 2
    assert "No such option: --hlep" in words(result.stderr)


@pytest.mark.parametrize("args", [["--help"], ["chat", "--help"], ["--version"]])
def test_only_the_summaries_of_the_server_are_imported(args: list[str], tmp_path: Path):
    """In its own process, with the entry points of this repository's distributions."""
    groups = [tomllib.loads(project.read_text())["project"]["entry-points"] for project in PROJECTS]
    metadata = tmp_path / "everything-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: everything\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(_merged(groups))
    code = f"""
import sys
from everlong_client.cli.main import app
try:
    app({args!r}, prog_name="everlong")
finally:
    print(*(name for name in sys.modules if name.partition(".")[0] in {FOREIGN}), sep="\\n", file=sys.stderr)
"""
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    imported = {*done.stderr.split()}
    if args == ["--help"]:
        assert "serve Start the server." in words(done.stdout)
        assert "train Train a memory as a recipe describes." in words(done.stdout)
        packages = ("everlong_server", "everlong_lab")
        assert imported <= {f"{package}{module}" for package in packages for module in ("", ".cli", ".cli.summaries")}
    else:
        assert imported == set()


def _merged(groups: list[dict[str, dict[str, str]]]) -> str:
    """Return the text of an entry_points.txt with all entries of the groups."""
    names = {name: None for group in groups for name in group}
    return "\n".join(
        f"[{name}]\n"
        + "\n".join(f"{key} = {target}" for group in groups for key, target in group.get(name, {}).items())
        for name in names
    )
