"""`penstock writers`: the writers that a buffer remembers."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.buffer import Writers
from penstock.cli.output import date_or_none, say, say_json, show
from penstock.cli.places import MANIFEST_PATH, AsJson, ManifestPath, StorageOptions, Where, open_with

writers_app = typer.Typer(help="The writers that a buffer remembers.", no_args_is_help=True)


@writers_app.command("list")
def list_writers(
    where: Where, path: ManifestPath = MANIFEST_PATH, as_json: AsJson = False, storage_options: StorageOptions = None
) -> None:
    """Show the writers that the buffer remembers, and what each did last."""
    found = Writers(open_with(where, storage_options), path).list()
    if as_json:
        say_json({name: msgspec.structs.asdict(writer) for name, writer in found.items()})
        return
    rows = list[list[str]]()
    for name, writer in found.items():
        kind = "named" if writer.is_named else "producer"
        rows.append([name, kind, str(writer.transaction), str(writer.first_sequence), date_or_none(writer.at)])
    show(["writer", "kind", "last transaction", "its first sequence", "at"], rows)


@writers_app.command("drop")
def drop_writer(
    where: Where,
    name: Annotated[str, typer.Argument(help="The writer's name: of a Spark query its id.")],
    path: ManifestPath = MANIFEST_PATH,
    storage_options: StorageOptions = None,
) -> None:
    """Forget a writer. What it sends again is appended again: drop it only when it will not come back."""
    Writers(open_with(where, storage_options), path).drop(name)
    say(f"dropped the writer {name!r}")
