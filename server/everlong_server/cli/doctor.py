"""`everlong doctor`."""

from __future__ import annotations

import typer
from rich.markup import escape
from rich.table import Table

from everlong_server.cli.common import out, settings_or_fail

doctor = typer.Typer(add_completion=False)


@doctor.command()
def _doctor() -> None:
    """Check this machine and the settings, and list what is wrong."""
    from everlong_server.doctor import run_checks

    table, bad = Table("check", "", "result"), 0
    for check in run_checks(settings_or_fail()):
        bad += not check.ok
        table.add_row(check.name, "[green]ok[/]" if check.ok else "[bold red]wrong[/]", escape(check.detail))
    out.print(table)
    if bad:
        raise typer.Exit(1)
