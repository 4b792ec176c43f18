"""`penstock groups` and `penstock writers`: who reads a buffer, and who writes it."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from penstock.buffer.groups import Groups, Writers
from penstock.buffer.manifest import MANIFEST_PATH
from penstock.cli.produce import StorageOptions, open_with

groups_app = typer.Typer(help="The groups that read a buffer, each at its own pace.", no_args_is_help=True)
writers_app = typer.Typer(help="The writers that a buffer remembers.", no_args_is_help=True)

Where = Annotated[str, typer.Argument(help="The buffer: a path or a URL.")]
Path = Annotated[str, typer.Option(help="The manifest's path inside the buffer.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(help="The group's name.")]
Begin = Annotated[str, typer.Option(help="earliest, latest, or a sequence that is there.")]


@groups_app.command("list")
def list_groups(
    where: Where, path: Path = MANIFEST_PATH, as_json: AsJson = False, storage_options: StorageOptions = None
) -> None:
    """Show every group: how far it is, how far behind, and who reads for it."""
    found = Groups(open_with(where, storage_options), path).list()
    if as_json:
        typer.echo(json.dumps([asdict(group) for group in found], indent=2))
        return
    table = Table("group", "acked through", "lag (batches)", "epoch", "last taken over by", "at")
    for group in found:
        acked = "nothing" if group.acked_through < 0 else str(group.acked_through)
        owner = group.owner or ("nobody yet" if not group.epoch else "not known")
        table.add_row(group.name, acked, str(group.lag), str(group.epoch), owner, _date(group.taken_at))
    _print(table)


@groups_app.command("create")
def create_group(
    where: Where,
    name: Name,
    start: Begin = "earliest",
    path: Path = MANIFEST_PATH,
    storage_options: StorageOptions = None,
) -> None:
    """Make a group. From now on nothing leaves the buffer that it has not acked."""
    Groups(open_with(where, storage_options), path).create(name, _begin(start))
    typer.echo(f"created the group {name!r}, which begins at {start}")


@groups_app.command("drop")
def drop_group(
    where: Where,
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Drop the last group too.")] = False,
    path: Path = MANIFEST_PATH,
    storage_options: StorageOptions = None,
) -> None:
    """Drop a group, and with it what only it held back. Its consumer is fenced."""
    Groups(open_with(where, storage_options), path).drop(name, force=force)
    typer.echo(f"dropped the group {name!r}")


@groups_app.command("reset")
def reset_group(
    where: Where,
    name: Name,
    to: Annotated[str, typer.Option(help="earliest, latest, or a sequence that is there.")],
    path: Path = MANIFEST_PATH,
    storage_options: StorageOptions = None,
) -> None:
    """Let a group begin again somewhere. Its consumer is fenced; a checkpoint of Spark's that is ahead is refused."""
    Groups(open_with(where, storage_options), path).reset(name, _begin(to))
    typer.echo(f"reset the group {name!r}: it goes on at {to}")


@writers_app.command("list")
def list_writers(
    where: Where, path: Path = MANIFEST_PATH, as_json: AsJson = False, storage_options: StorageOptions = None
) -> None:
    """Show the writers that the buffer remembers, and what each did last."""
    found = Writers(open_with(where, storage_options), path).list()
    if as_json:
        typer.echo(json.dumps({name: msgspec.structs.asdict(writer) for name, writer in found.items()}, indent=2))
        return
    table = Table("writer", "kind", "last transaction", "its first sequence", "at")
    for name, writer in found.items():
        kind = "named" if writer.is_named else "producer"
        table.add_row(name, kind, str(writer.transaction), str(writer.first_sequence), _date(writer.at))
    _print(table)


@writers_app.command("drop")
def drop_writer(
    where: Where,
    name: Annotated[str, typer.Argument(help="The writer's name: of a Spark query its id.")],
    path: Path = MANIFEST_PATH,
    storage_options: StorageOptions = None,
) -> None:
    """Forget a writer. What it sends again is appended again: drop it only when it will not come back."""
    Writers(open_with(where, storage_options), path).drop(name)
    typer.echo(f"dropped the writer {name!r}")


def _print(table: Table) -> None:
    """A table; where no terminal is, as wide as it needs to be: names are for copying."""
    console = Console()
    (console if console.is_terminal else Console(width=500)).print(table)


def _begin(word: str) -> str | int:
    return int(word) if word.isdecimal() else word


def _date(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC" if milliseconds else ""
