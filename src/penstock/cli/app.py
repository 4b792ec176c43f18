"""The command itself: its words, and how an error looks to whoever typed it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from penstock import __version__
from penstock.cli.consume import consume_command
from penstock.cli.demo import run_demo
from penstock.cli.groups import groups_app, writers_app
from penstock.cli.manifest import manifest_app
from penstock.cli.metalog import metalog_app
from penstock.cli.output import console, give_up_stdout, is_of_stdout
from penstock.cli.produce import produce_command
from penstock.cli.queue import queue_app
from penstock.cli.run import run_command
from penstock.cli.ship import ship_command
from penstock.cli.status import status_command
from penstock.errors import PenstockError

app = typer.Typer(
    name="penstock",
    help="Durable event pipelines for Spark, without a broker.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Durable event pipelines for Spark, without a broker."""


app.add_typer(manifest_app, name="manifest")
app.add_typer(groups_app, name="groups")
app.add_typer(writers_app, name="writers")
app.add_typer(queue_app, name="queue")
app.add_typer(metalog_app, name="metalog")
app.command("ship")(ship_command)
app.command("produce")(produce_command)
app.command("consume")(consume_command)
app.command("status")(status_command)
app.command("run")(run_command)


@app.command()
def demo(
    directory: Annotated[
        Path | None,
        typer.Argument(help="Where the demo keeps everything; a new temporary directory by default."),
    ] = None,
    producers: Annotated[int, typer.Option(min=1, max=64, help="How many services push at once.")] = 4,
    events: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many events each of them pushes.")] = 25_000,
    kills: Annotated[int, typer.Option(min=0, max=1_000, help="How often the pipeline's driver is killed.")] = 1,
) -> None:
    """Run the main job on this machine: services, queues, a buffer, Spark, tables; its driver is killed on the way."""
    if not run_demo(directory, producers=producers, events=events, kills=kills, console=console()):
        raise typer.Exit(1)


def main() -> None:
    """Run the command. An error of ours, or no room for an answer, is one line on standard error, and exit status 1."""
    try:
        app()
    except PenstockError as error:
        _fail(str(error))
    except OSError as error:
        if not is_of_stdout(error):
            raise
        give_up_stdout()
        _fail(f"standard output cannot be written: {error.strerror}")


def _fail(why: str) -> NoReturn:
    typer.echo(f"penstock: {why}", err=True)
    sys.exit(1)
