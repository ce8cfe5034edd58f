"""Commands that other distributions add to `everlong`, through the entry points of the group `everlong.commands`.

Their names are listed from metadata alone; a command is imported when it is run, so that `everlong --help` and
`everlong chat` never wait for torch.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from everlong_client.cli.terminal import fail
from everlong_client.errors import APIConnectionError, AuthenticationError, EverlongError

__all__ = ["Commands"]

GROUP = "everlong.commands"
OF_THE_SERVER = ("serve", "keys", "encryption", "models", "doctor", "bench", "train", "eval")


class Commands(TyperGroup):
    """The client's own commands and the plugins'; what goes wrong in them ends in one line, not in a traceback."""

    # Typer brings its own copy of click from some version on, so click's types are not nameable here.

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(_plugins())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        plugin = _plugins().get(cmd_name)
        return Plugin(cmd_name, plugin) if plugin or cmd_name in OF_THE_SERVER else None

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except APIConnectionError as error:
            fail(f"{error}; `everlong serve` starts a server, --url names another one")
        except AuthenticationError as error:
            fail(f"{error}; --api-key or EVERLONG_API_KEY gives the key")
        except EverlongError as error:
            fail(str(error))
        except OSError as error:
            if isinstance(error, BrokenPipeError):  # `everlong … | head`: click ends it quietly
                raise
            fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


class Plugin(TyperCommand):
    """A command that is imported when it is run; `entry` is None for one whose distribution is not installed."""

    def __init__(self, name: str, entry: EntryPoint | None) -> None:
        origin = entry.dist.name if entry and entry.dist else "everlong"
        super().__init__(name, help=f"(from {origin})", add_help_option=False)
        self._entry = entry

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = args  # --help included: they are for the command itself
        return args

    def invoke(self, ctx: Any) -> Any:
        if self._entry is None:
            fail(f"`{ctx.command_path}` is a command of the server, which is not installed: pip install everlong")
        try:
            command = _command(self._entry.load())
        except (ImportError, AttributeError) as error:
            fail(f"`{ctx.command_path}` cannot be loaded from {self._entry.value}: {error}")
        return command.main(args=ctx.args, prog_name=ctx.command_path)


def _plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _command(target: Any) -> Any:
    if isinstance(target, typer.Typer):
        return get_command(target)
    if hasattr(target, "main"):  # a click command, of click's or of Typer's own copy
        return target
    app = typer.Typer(add_completion=False)
    app.command()(target)
    return get_command(app)
