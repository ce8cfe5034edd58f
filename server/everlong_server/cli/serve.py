"""`everlong serve`.

The settings parse the command line themselves. The help page lists them as Typer options, so that it looks like the pages of
the other commands.
"""

from __future__ import annotations

import gc
import inspect
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand
from typer.main import get_command

from everlong_server.cli.common import settings_or_fail

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

serve = typer.Typer(add_completion=False)

_METAVARS = {int: "INTEGER", float: "FLOAT", dict: "JSON", tuple: "JSON", str: "TEXT", bool: "true|false"}


class _Serve(TyperCommand):
    """Has the settings as options when the shell completes the line."""

    def get_params(self, ctx: Any) -> list[Any]:
        params = super().get_params(ctx)
        return [*params, *get_command(_help_page()).params] if ctx.resilient_parsing else params


@serve.command(
    cls=_Serve,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    add_help_option=False,
)
def _serve(context: typer.Context) -> None:
    """Start the server."""
    # Imported modules and model weights stay alive, so collecting garbage would waste a second. Enabled again after loading.
    gc.disable()
    if "--help" in context.args or "-h" in context.args:
        _help_page()(["--help"], prog_name=context.command_path)
    settings = settings_or_fail(context.args)
    from everlong_server.process.serving import serve_forever

    raise typer.Exit(serve_forever(settings))


def _help_page() -> typer.Typer:
    """Return a program whose only use is its help page, with all settings in groups."""
    from everlong_server.cli.setting_groups import GROUPS
    from everlong_server.settings import Settings

    def page(**_: Any) -> None:
        """Start the server.

        Every flag is also an environment variable: --max-streams is EVERLONG_MAX_STREAMS. Flags win over variables.
        """

    parameters = [
        _parameter(name, Settings.model_fields[name], group) for group, names in GROUPS.items() for name in names
    ]
    page.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    page.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    program = typer.Typer(add_completion=False)
    program.command()(page)
    return program


def _parameter(name: str, field: FieldInfo, group: str) -> inspect.Parameter:
    """Return the parameter of an option that describes a setting."""
    kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    kind: Any = kinds[0] if type(None) in get_args(field.annotation) else field.annotation
    default, flag = field.get_default(call_default_factory=True), f"--{name.replace('_', '-')}"
    shown: bool | str | None
    annotation: type
    if field.annotation is bool:  # a switch
        shown, flag, metavar, annotation = default, f"{flag}/--no-{flag[2:]}", None, bool
    else:
        shown, annotation = (None if default in (None, (), {}) else str(default)), str
        metavar = (
            "|".join(get_args(kind)) if get_origin(kind) is Literal else _METAVARS.get(get_origin(kind) or kind, "PATH")
        )
    option = typer.Option(flag, help=field.description, rich_help_panel=group, metavar=metavar)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=shown, annotation=Annotated[annotation, option]
    )
