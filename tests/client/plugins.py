"""Commands that another distribution could add: a Typer app, a click command, a plain function."""

import click
import typer

SUMMARIES = {"tree": "Grow a tree of commands.", "clicked": "Print words.", "plain": "Print a name."}

tree = typer.Typer()


@tree.command()
def pull(name: str) -> None:
    """Fetch something."""
    typer.echo(f"pulled {name}")


@tree.command()
def show() -> None:
    raise typer.Exit(3)


@click.command()
@click.argument("words", nargs=-1)
@click.option("--loud", is_flag=True)
def clicked(words: tuple[str, ...], loud: bool) -> None:
    click.echo(" ".join(words) + "!" * loud)


def plain(name: str, times: int = 1) -> None:
    """A plain function."""
    typer.echo(name * times)
