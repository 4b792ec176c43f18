"""`penstock groups`: the groups that read a buffer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from penstock.buffer import Groups
from penstock.cli.output import date_or_none, say, say_json, show
from penstock.cli.places import (
    DEFAULTS,
    MANIFEST_PATH,
    AsJson,
    ManifestPath,
    StorageOptions,
    Where,
    beginning,
    has_manifest,
    open_with,
)
from penstock.errors import InvalidInput
from penstock.storage import url_of

groups_app = typer.Typer(help="The groups that read a buffer, each at its own pace.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The group's name.")]
Begin = Annotated[str, typer.Option(help="earliest, latest, or a sequence that is there.")]


@groups_app.command("list")
def list_groups(
    where: Where, path: ManifestPath = MANIFEST_PATH, as_json: AsJson = False, storage_options: StorageOptions = None
) -> None:
    """Show every group: how far it is, how far behind, and its consumer."""
    found = Groups(open_with(where, storage_options), path).list()
    if as_json:
        say_json([asdict(group) for group in found])
        return
    rows = list[list[str]]()
    for group in found:
        acked = "nothing" if group.acked_through < 0 else str(group.acked_through)
        owner = group.owner or ("none yet" if not group.epoch else "not known")
        rows.append([group.name, acked, str(group.lag), str(group.epoch), owner, date_or_none(group.taken_at)])
    show(["group", "acked through", "lag (batches)", "epoch", "last taken over by", "at"], rows)


@groups_app.command("create")
def create_group(
    where: Where,
    name: Name,
    start: Begin = "earliest",
    path: ManifestPath = MANIFEST_PATH,
    storage_options: StorageOptions = None,
) -> None:
    """Create a group. From now on the buffer keeps what the group has not acked."""
    store = open_with(where, storage_options)
    is_new = not has_manifest(store, path)
    if is_new and name == DEFAULTS.group:
        raise InvalidInput(
            f"there is no manifest {path!r} in {url_of(store)}, and a new buffer has the group {name!r} by itself"
        )
    Groups(store, path).create(name, beginning(start))
    say(f"created the group {name!r}, which begins at {start}{', in a new buffer' if is_new else ''}")


@groups_app.command("drop")
def drop_group(
    where: Where,
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Drop the last group too.")] = False,
    path: ManifestPath = MANIFEST_PATH,
    storage_options: StorageOptions = None,
) -> None:
    """Drop a group; what was kept only for it can be deleted. Its consumer is fenced."""
    Groups(open_with(where, storage_options), path).drop(name, force=force)
    say(f"dropped the group {name!r}")


@groups_app.command("reset")
def reset_group(
    where: Where,
    name: Name,
    to: Annotated[str, typer.Option(help="earliest, latest, or a sequence that is there.")],
    path: ManifestPath = MANIFEST_PATH,
    storage_options: StorageOptions = None,
) -> None:
    """Let a group go on at another place. Its consumer is fenced.

    A Spark query goes on at its checkpoint. One that is behind the acks is refused; one that is ahead goes on there,
    and what lies between is acked unread. To read events again, give the query a new checkpoint.
    """
    Groups(open_with(where, storage_options), path).reset(name, beginning(to))
    say(f"reset the group {name!r}: it goes on at {to}")
