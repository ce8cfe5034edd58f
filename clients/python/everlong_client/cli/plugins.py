"""Commands that other distributions add to `everlong`, as entry points of the group `everlong.commands`.

Their names come from the installed metadata. A command is imported only when it runs, so that `everlong --help` and
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
    """The client's own commands and those of plugins. Prints expected errors as one line instead of a traceback."""

    # Recent versions of Typer contain their own copy of click, so click's types cannot be named here.

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
    """A command that is imported when it runs. `entry` is None if its distribution is not installed."""

    def __init__(self, name: str, entry: EntryPoint | None) -> None:
        origin = entry.dist.name if entry and entry.dist else "everlong"
        super().__init__(name, help=f"(from {origin})", add_help_option=False)
        self._entry = entry

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = args  # includes --help, which the command itself handles
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
    if hasattr(target, "main"):  # a command of click, or of Typer's copy of it
        return target
    app = typer.Typer(add_completion=False)
    app.command()(target)
    return get_command(app)
