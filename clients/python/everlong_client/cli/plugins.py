"""Commands that other distributions add to `everlong`, through entry points.

The group `everlong.commands` names the commands, and the group `everlong.summaries` dictionaries with their descriptions. A
command is imported only when it runs, so that `everlong --help` and `everlong chat` never wait for torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from everlong_client.cli.terminal import fail
from everlong_client.errors import APIConnectionError, AuthenticationError, EverlongError

COMMANDS = "everlong.commands"
SUMMARIES = "everlong.summaries"
DISTRIBUTIONS = {"everlong": "the server", "everlong-lab": "training, evaluation and benchmarks"}
"""The distributions that add commands, and what their commands are for."""
PANELS = {"everlong": "Run a server", "everlong-lab": "Train and measure models"}
"""The headings of their commands in the help, in this order."""


class Commands(TyperGroup):
    """The client's own commands and those of plugins. Prints expected errors as one line instead of a traceback."""

    # Recent versions of Typer contain their own copy of click, so click's types cannot be named here.

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(_plugins(), key=_place)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        plugin = _plugins().get(cmd_name)
        return plugin and Plugin(plugin)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if ctx.resilient_parsing:  # the shell completes the line: it needs the plugin's own commands and options
            plugin = _plugins().get(name)
            with suppress(ImportError, AttributeError):
                return (name, _command(plugin.load()), args[1:]) if plugin else super().resolve_command(ctx, args)
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            ctx.fail(_no_such_command(name, self.list_commands(ctx)))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except APIConnectionError as error:
            fail(f"{error}; start a server with `everlong serve`, or name another one with --url")
        except AuthenticationError as error:
            fail(f"{error}; set the key with --api-key or EVERLONG_API_KEY")
        except EverlongError as error:
            fail(str(error))
        except OSError as error:
            if isinstance(error, BrokenPipeError):  # `everlong … | head`: click exits without a message
                raise
            fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


class Plugin(TyperCommand):
    """A command of another distribution, which is imported when it runs."""

    def __init__(self, entry: EntryPoint) -> None:
        summary = _summaries().get(entry.name) or f"Run a command of {entry.dist.name if entry.dist else entry.value}."
        super().__init__(entry.name, help=summary, add_help_option=False, rich_help_panel=_panel(entry))
        self._entry = entry

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = args  # includes --help, which the command itself handles
        return args

    def invoke(self, ctx: Any) -> Any:
        try:
            command = _command(self._entry.load())
        except (ImportError, AttributeError) as error:
            fail(f"`{ctx.command_path}` cannot be loaded from {self._entry.value}: {error}")
        return command.main(args=ctx.args, prog_name=ctx.command_path)


def _plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=COMMANDS)}


def _panel(entry: EntryPoint) -> str:
    """Return the heading of a command in the help."""
    return PANELS.get(entry.dist.name if entry.dist else "", "Other commands")


def _place(name: str) -> tuple[int, bool, str]:
    """Return the place of a command in the help: by its heading, `serve` first."""
    headings = [*PANELS.values(), _panel(entry := _plugins()[name])]
    return headings.index(_panel(entry)), name != "serve", name


@cache
def _summaries() -> Mapping[str, str]:
    """Return the plugins' descriptions by command. Imports the modules that have them, but no command."""
    summaries: dict[str, str] = {}
    for entry in entry_points(group=SUMMARIES):
        try:
            summaries |= entry.load()
        except (ImportError, AttributeError):  # a broken plugin must not break `everlong --help`
            continue
    return summaries


def _no_such_command(name: str, known: list[str]) -> str:
    """Return the error for an unknown command, with similar commands, or else the distributions that may have it."""
    if similar := get_close_matches(name, known):
        return f"No such command {name!r}. Did you mean {' or '.join(map(repr, similar))}?"
    missing = [distribution for distribution in DISTRIBUTIONS if not _is_installed(distribution)]
    if not missing:
        return f"No such command {name!r}. `everlong --help` lists the commands."
    packages = " and ".join(f"{distribution} ({DISTRIBUTIONS[distribution]})" for distribution in missing)
    return f"No such command {name!r}. More commands come with {packages}: pip install {' '.join(missing)}"


def _is_installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


def _command(target: Any) -> Any:
    if isinstance(target, typer.Typer):
        return get_command(target)
    if hasattr(target, "main"):  # a command of click, or of Typer's copy of it
        return target
    app = typer.Typer(add_completion=False)
    app.command()(target)
    return get_command(app)
