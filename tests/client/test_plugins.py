"""The commands of other distributions: they are listed without being imported, and run with their own arguments."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
from typer.testing import CliRunner, Result

from everlong_client.cli.main import app


@pytest.fixture(autouse=True)
def _plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = {"tree": "tree", "clicked": "clicked", "plain": "plain", "gone": "gone"}
    entries = [
        EntryPoint(name, f"tests.client.plugins:{target}", "everlong.commands") for name, target in targets.items()
    ]
    entries.append(EntryPoint("absent", "no_such_module_here:command", "everlong.commands"))
    monkeypatch.setattr("everlong_client.cli.plugins.entry_points", lambda group: entries)


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


def test_help_lists_all():
    result = run("--help")
    assert result.exit_code == 0
    for name in ("ingest", "chat", "tree", "clicked", "plain", "absent"):
        assert f" {name} " in result.stdout
    assert "(from everlong)" in result.stdout


@pytest.mark.parametrize("name", ["serve", "models", "doctor", "bench"])
def test_the_servers_commands_without_the_server(name: str):
    result = run(name, "--port", "1")
    assert result.exit_code == 1
    assert (
        f"error: `everlong {name}` is a command of the server, which is not installed: pip install everlong"
        in result.stderr
    )


def test_no_such_command():
    result = run("chatt")
    assert result.exit_code == 2
    assert "No such command 'chatt'" in result.stderr


@pytest.mark.parametrize("args", [["--help"], ["chat", "--help"], ["--version"]])
def test_the_client_loads_nothing_of_the_server(args: list[str]):
    """With the installed entry points, in its own process."""
    code = f"""
import sys
from everlong_client.cli.main import app
try:
    app({args!r}, prog_name="everlong")
finally:
    heavy = {{"torch", "transformers", "everlong_server", "everlong_models", "fastapi"}} & set(sys.modules)
    assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "everlong" in done.stdout
