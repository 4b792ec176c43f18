"""Prints `docs/reference/cli.md`: every command with its arguments and options, from the commands themselves.

Run it after a change of a command: `python scripts/cli_reference.py > docs/reference/cli.md`. A test compares the two.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import typer

from penstock.cli.app import app
from penstock.cli.commands import COMMANDS, load

_INTRO = """\
# Command line

`penstock --help` lists the commands, and `penstock COMMAND --help` says what this page says. A place is a path or a
URL: `data/events`, `file:///data/events`, `s3://bucket/prefix`, `gs://…`, `az://…`. An error is one line on standard
error, and the exit status is 1; a wrong option is exit status 2."""


def main() -> None:
    """Print the page."""
    group = typer.Typer()
    for name in COMMANDS:
        loaded = load(name)
        if isinstance(loaded, typer.Typer):
            group.add_typer(loaded, name=name)
        else:
            group.command(name)(loaded)
    parts = [_INTRO, *_options_of_penstock()]
    for name, built in typer.main.get_group(group).commands.items():
        parts += _pages(f"penstock {name}", built, level=2)
    sys.stdout.write("\n\n".join(parts) + "\n")


def _options_of_penstock() -> Iterator[str]:
    yield "## penstock"
    yield _table(typer.main.get_group(app).params)


def _pages(name: str, command: Any, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}"
    below = getattr(command, "commands", {})
    if not below:
        yield f"```text\n{name} {' '.join(_usage(command))}\n```"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield textwrap.fill(paragraph, 120, break_long_words=False, break_on_hyphens=False)
    if command.params:
        yield _table(command.params)
    for name_below, command_below in below.items():
        yield from _pages(f"{name} {name_below}", command_below, level + 1)


def _usage(command: Any) -> list[str]:
    options = ["[OPTIONS]"] if any(not _is_argument(param) for param in command.params) else []
    return options + [_argument(param) for param in command.params if _is_argument(param)]


def _table(params: list[Any]) -> str:
    rows = [f"| {_names(param)} | {_default(param)} | {_cell(param.help or '')} |" for param in params]
    return "\n".join(["| argument or option | default | |", "|---|---|---|", *rows])


def _is_argument(param: Any) -> bool:
    return bool(param.param_type_name == "argument")


def _argument(param: Any) -> str:
    if param.metavar:
        return str(param.metavar)
    return str(param.name.upper()) if param.required else f"[{param.name.upper()}]"


def _names(param: Any) -> str:
    if _is_argument(param):
        return f"`{_argument(param)}`"
    *others, last = (*param.opts, *param.secondary_opts)
    value = "" if param.is_flag else f" {param.metavar or param.name.upper()}"
    return ", ".join(f"`{name}`" for name in (*others, last + value))


def _default(param: Any) -> str:
    if param.required:
        return "required"
    if param.default in (None, False, ""):
        return ""
    return f"`{param.default}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    main()
