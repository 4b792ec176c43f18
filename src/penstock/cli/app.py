"""The command itself, and how its errors are printed."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from penstock import __version__
from penstock.cli.commands import LazyGroup
from penstock.cli.output import give_up_stdout, is_of_stdout, say
from penstock.core import traceback_of
from penstock.errors import PenstockError

app = typer.Typer(
    name="penstock",
    cls=LazyGroup,
    help="Durable event pipelines for Spark, without a broker.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Durable event pipelines for Spark, without a broker."""


def main() -> None:
    """Run the command. A Penstock error, or output that cannot be written, is one line on stderr and exit status 1."""
    try:
        app()
    except PenstockError as error:
        _fail(str(error))
    except OSError as error:
        if not is_of_stdout(error):
            _fail_unforeseen(error)
        give_up_stdout()
        _fail(f"standard output cannot be written: {error.strerror}")
    except Exception as error:  # noqa: BLE001  printed as Python prints it, but with escapes
        _fail_unforeseen(error)


def _fail(why: str) -> NoReturn:
    say(f"penstock: {why}", err=True)
    sys.exit(1)


def _fail_unforeseen(error: Exception) -> NoReturn:
    for line in traceback_of(error).split("\n"):
        say(line, err=True)
    sys.exit(1)
