"""`everlong serve`."""

from __future__ import annotations

import gc

import typer

from everlong_server.cli.common import fail

serve = typer.Typer(add_completion=False)


@serve.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    add_help_option=False,
)
def _serve(context: typer.Context) -> None:
    """Start the server."""
    # Imported modules and model weights stay alive, so collecting garbage would waste a second. Enabled again after loading.
    gc.disable()
    from everlong_server.settings import SettingsError, load_settings

    try:
        settings = load_settings(context.args)
    except SettingsError as error:
        raise fail(str(error)) from None
    from everlong_server.process.serving import serve_forever

    raise typer.Exit(serve_forever(settings))
