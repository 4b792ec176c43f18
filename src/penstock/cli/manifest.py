"""`penstock manifest`: look at what lies in a queue."""

from __future__ import annotations

import base64
import json
import os
from typing import Annotated

import msgspec
import typer

from penstock.buffer import BatchDescriptor, Manifest
from penstock.buffer.manifest import MANIFEST_PATH
from penstock.buffer.native_head import NEW, encode_head
from penstock.buffer.upgrading import upgrade
from penstock.cli.produce import StorageOptions, open_with
from penstock.errors import NotFound
from penstock.storage import ObjectStore, open_store

_NATIVE = ("revision", "groups", "forgotten_through", "floor", "floor_set_at")

manifest_app = typer.Typer(help="Look at the manifest of a buffer.", no_args_is_help=True)


@manifest_app.callback()
def manifest() -> None:
    """Look at the manifest of a buffer."""


@manifest_app.command()
def dump(
    where: Annotated[str, typer.Argument(help="A buffer (directory or URL), or a manifest's own file or URL.")],
    path: Annotated[str, typer.Option(help="The manifest's path inside the buffer.")] = MANIFEST_PATH,
) -> None:
    """Print a manifest as JSON. Takes no epoch, and so disturbs nobody."""
    found = _find(where, path)
    if found is None:
        typer.echo(f"penstock: there is no manifest {path!r} in {where}: an empty queue", err=True)
        found = Manifest.decode(encode_head(NEW))
    typer.echo(json.dumps(_as_json(found), indent=2, ensure_ascii=False))


@manifest_app.command("upgrade")
def upgrade_command(
    where: Annotated[str, typer.Argument(help="The buffer: a path or a URL.")],
    path: Annotated[str, typer.Option(help="The manifest's path inside the buffer.")] = MANIFEST_PATH,
    storage_options: StorageOptions = None,
) -> None:
    """Make a manifest of version 1 version 2, for good.

    Penstock's producers and consumers go on by themselves, if they are of this release or newer. Those of OpenData
    cannot read version 2: stop them first.
    """
    typer.echo("OpenData's producers and consumers cannot read version 2: they must be stopped by now.", err=True)
    done = upgrade(open_with(where, storage_options), path)
    if done.is_new:
        typer.echo(f"upgraded {where} to version 2, with {done.entries} batches that wait in it")
    else:
        typer.echo(f"{where} is version 2 already")


def _find(where: str, path: str) -> Manifest | None:
    local = where.removeprefix("file://")
    if "://" not in local:
        if os.path.isfile(local):
            with open(local, "rb") as file:
                return Manifest.decode(file.read())
        if not os.path.isdir(local):
            raise NotFound(f"there is no file or directory {local}")
    found = _read(open_store(where), path)
    parent, _, name = where.rstrip("/").rpartition("/")
    if found is not None or "://" not in parent.rstrip("/") or parent.endswith(":/"):
        return found
    return _read(open_store(parent), name)  # perhaps it is the manifest's own URL


def _read(store: ObjectStore, path: str) -> Manifest | None:
    try:
        store.head(path)
    except NotFound:
        return None
    return Manifest.read(store, path)


def _as_json(found: Manifest) -> dict[str, object]:
    shown: dict[str, object] = {
        "version": found.version,
        "epoch": found.epoch,
        "next_sequence": found.next_sequence,
        "entries": [_entry_as_json(entry) for entry in found.entries],
    }
    if found.head is not None:
        known = msgspec.to_builtins({name: getattr(found.head, name) for name in _NATIVE})
        shown |= known | {"segments": [msgspec.structs.asdict(one) for one in found.head.segments]}
        shown["writers"] = {name: msgspec.structs.asdict(one) for name, one in found.head.writers.items()}
    return shown


def _entry_as_json(entry: BatchDescriptor) -> dict[str, object]:
    return {
        "sequence": entry.sequence,
        "location": entry.location,
        "size": entry.size,
        "records": entry.records,
        "metadata": [
            {
                "start_index": item.start_index,
                "ingestion_time_ms": item.ingestion_time_ms,
                "payload_base64": base64.b64encode(item.payload).decode(),
            }
            for item in entry.metadata
        ],
    }
