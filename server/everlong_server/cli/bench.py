"""`everlong bench`."""

from __future__ import annotations

from typing import Annotated

import typer

from everlong_server.cli.common import Output, command, err, fail, out, write

bench = typer.Typer(add_completion=False)


@bench.command()
def _bench(
    name: Annotated[str, typer.Argument(help="which: flat, read, restart")],
    output: Output = None,
    quick: Annotated[bool, typer.Option(help="smaller sizes, for trying it out")] = False,
) -> None:
    """Measure something, and hold it against its target."""
    from everlong_server.bench import BENCHMARKS

    if name not in BENCHMARKS:
        raise fail(f"no benchmark {name!r}; there are {', '.join(sorted(BENCHMARKS))}")
    report = BENCHMARKS[name](quick=quick, progress=lambda message: err.print(f"[dim]{message}[/]"))
    report.show(out)
    write(report.document(command=command()), output)
